/** What a sandbox reaches, and which of its ports are reached from the server's host. */
import { isIP } from "node:net";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { innerReach, parseHostRule } from "../../sandbox/index.ts";
import { LOCAL_OWNER } from "../authentication/keys.ts";
import { endpoint, type AnyEndpoint } from "../endpoint.ts";
import type { Services } from "../services.ts";
import { PublishedPorts } from "./published-ports.ts";
import { allowedHosts, networkDocument, networkSchema, sandboxId, sandboxParams } from "./wire.ts";

const port = z.coerce.number().int().min(1).max(65_535);
const changeRequest = z.strictObject({ allow: allowedHosts });
const publishRequest = z.strictObject({
  /** Of the sandbox's loopback. */
  port: z.int().min(1).max(65_535),
  /** Of the server's host; only who runs the server may name another than loopback. */
  address: z.string().refine((text) => isIP(text) !== 0, "is no IP address").default("127.0.0.1"),
  /** 0: one that is free; only who runs the server may choose. */
  host_port: z.int().min(0).max(65_535).default(0),
});
const portSchema = z.strictObject({ port: z.int(), address: z.string(), host_port: z.int() });
const portParams = z.strictObject({ id: sandboxId, port });

const NETWORK = { 200: { description: "Its network as it is now", schema: networkSchema } };
const PORT = { description: "The port of the host", schema: portSchema };

export function networkRoutes({ sandboxes }: Pick<Services, "sandboxes">): readonly AnyEndpoint[] {
  const ports = new PublishedPorts(sandboxes);
  return [
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/network",
      id: "getSandboxNetwork",
      summary: "What it may reach, how much it has, and what it was refused",
      params: sandboxParams,
      responses: NETWORK,
      handle: ({ params, request }) => networkDocument(sandboxes.get(request.owner.id, params.id)),
    }),
    endpoint({
      method: "PUT",
      path: "/v1/sandboxes/{id}/network",
      id: "allowHosts",
      summary: "Replace the list of a sandbox whose network is allowlist; what is open and no longer allowed ends",
      params: sandboxParams,
      body: changeRequest,
      responses: NETWORK,
      handle: async ({ params, body, request }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        checkAllowed(request.owner.id, body.allow);
        await sandboxes.allow(entry, body.allow);
        return networkDocument(entry);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/ports",
      id: "listPorts",
      summary: "Its ports that are published on the server's host",
      params: sandboxParams,
      responses: { 200: { description: "By their numbers", schema: z.strictObject({ ports: z.array(portSchema).max(LIMITS.publishedPorts) }) } },
      handle: async ({ params, request }) => ({ ports: (await ports.list(sandboxes.get(request.owner.id, params.id))).map(portDocument) }),
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/ports",
      id: "publishPort",
      summary: "Publish a port on the server's host, until the sandbox or the server ends. Nobody is asked for a key there. The same again changes nothing (200), something else is a conflict (409).",
      params: sandboxParams,
      body: publishRequest,
      responses: { 200: PORT, 201: PORT },
      handle: async ({ params, body, request, reply }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        if (request.owner.id !== LOCAL_OWNER.id && (body.address !== "127.0.0.1" || body.host_port !== 0)) throw new MwError("forbidden", "only who runs the server chooses addresses and ports of its host", { fix: "leave address and host_port out: a free port of loopback is taken" });
        const { published, fresh } = await ports.publish(entry, { port: body.port, address: body.address, hostPort: body.host_port });
        return reply.code(fresh ? 201 : 200).send(portDocument(published));
      },
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/sandboxes/{id}/ports/{port}",
      id: "endPort",
      summary: "Publish a port of the sandbox no longer; its connections end",
      params: portParams,
      responses: { 204: { description: "Done" } },
      handle: async ({ params, request, reply }) => {
        await ports.end(sandboxes.get(request.owner.id, params.id), params.port);
        return reply.code(204).send();
      },
    }),
  ];
}

/**
 * The proxy of the lists is a process of this host: an entry that names what lies inside would make an owner's machine a neighbour of the host's services, the keyless interface of this
 * server among them. Throws `forbidden` for anybody but who runs the server, `invalid_input` for what is no entry.
 */
export function checkAllowed(owner: string, hosts: readonly string[]): void {
  for (const rule of hosts.map(parseHostRule)) {
    const what = owner === LOCAL_OWNER.id ? null : innerReach(rule);
    if (what !== null) throw new MwError("forbidden", `the allowed host ${JSON.stringify(rule.text)} is ${what}: only who runs the server opens what is not the internet`, { fix: "name hosts and addresses of the internet" });
  }
}

function portDocument({ port: inside, address, hostPort }: { readonly port: number; readonly address: string; readonly hostPort: number }): z.infer<typeof portSchema> {
  return { port: inside, address, host_port: hostPort };
}

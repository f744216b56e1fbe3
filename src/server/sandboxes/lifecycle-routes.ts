/** Making, finding and ending sandboxes; pauses, snapshots and forks. */
import { setMaxListeners } from "node:events";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { endpoint, type AnyEndpoint } from "../endpoint.ts";
import { aborted } from "../request-signal.ts";
import type { Services } from "../services.ts";
import { checkAllowed } from "./network-routes.ts";
import type { SandboxEntry, SandboxRequest } from "./sandbox-entry.ts";
import {
  createRequest,
  forkRequest,
  forkResult,
  listQuery,
  metricsDocument,
  metricsSchema,
  pauseRequest,
  renewRequest,
  resumeRequest,
  sandboxDocument,
  sandboxList,
  sandboxParams,
  sandboxSchema,
  snapshotDocument,
  snapshotList,
  snapshotParams,
  snapshotRequest,
  snapshotSchema,
  snapshotTaken,
} from "./wire.ts";

const ONE = { description: "The sandbox", schema: sandboxSchema };
const DONE = { description: "Done" };

export function lifecycleRoutes({ sandboxes }: Pick<Services, "sandboxes">): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "POST",
      path: "/v1/sandboxes",
      id: "createSandbox",
      summary: "Make a sandbox. With the header Idempotency-Key the same request gives the same sandbox as long as it lives (200), another request is a conflict (409).",
      body: createRequest,
      responses: { 200: ONE, 201: ONE },
      handle: async ({ body, request, reply }) => {
        const key = request.headers["idempotency-key"];
        if (key !== undefined && (typeof key !== "string" || key === "" || key.length > 256)) throw new MwError("invalid_input", "Idempotency-Key takes 1 to 256 characters");
        checkAllowed(request.owner.id, body.allow ?? []);
        // What one client no longer waits for, another may: a creation with a key goes on.
        const signal = key === undefined ? aborted(request.raw, reply.raw) : NEVER;
        const { entry, fresh } = await sandboxes.create(request.owner.id, requestOf(body), { signal, ...(key === undefined ? {} : { key }) });
        return reply.code(fresh ? 201 : 200).send(sandboxDocument(entry));
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes",
      id: "listSandboxes",
      summary: "List sandboxes, oldest first. Further query parameters metadata.NAME=VALUE leave only those whose metadata say so.",
      query: listQuery,
      responses: { 200: { description: "A page; next is the cursor of the one after it", schema: sandboxList } },
      handle: ({ query, request }) => {
        const wanted = metadataFilter(query);
        const all = sandboxes.list(request.owner.id).filter((entry) => (query.state === undefined || entry.state === query.state) && matches(entry, wanted) && (query.cursor === undefined || entry.listKey > query.cursor));
        const page = all.toSorted((a, b) => (a.listKey < b.listKey ? -1 : 1)).slice(0, query.limit);
        return { sandboxes: page.map(sandboxDocument), next: page.length < all.length ? (page.at(-1)?.listKey ?? null) : null };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}",
      id: "getSandbox",
      summary: "One sandbox",
      params: sandboxParams,
      responses: { 200: ONE },
      handle: ({ params, request }) => sandboxDocument(sandboxes.get(request.owner.id, params.id)),
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/sandboxes/{id}",
      id: "killSandbox",
      summary: "End a sandbox, and wait until nothing of it is left",
      params: sandboxParams,
      responses: { 204: DONE },
      handle: async ({ params, request, reply }) => {
        await sandboxes.kill(sandboxes.get(request.owner.id, params.id));
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/renew",
      id: "renewSandbox",
      summary: "The lease now ends ttl_ms from now",
      params: sandboxParams,
      body: renewRequest,
      responses: { 200: ONE },
      handle: async ({ params, body, request }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        if (entry.state === "paused") throw new MwError("sandbox_paused", `the sandbox ${entry.id} is paused: it has no lease until it is resumed`);
        await sandboxes.renew(entry, body.ttl_ms);
        return sandboxDocument(entry);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/metrics",
      id: "getSandboxMetrics",
      summary: "What it uses now",
      params: sandboxParams,
      responses: { 200: { description: "Null where this host does not count it", schema: metricsSchema } },
      handle: async ({ params, request }) => metricsDocument(await (await sandboxes.running(sandboxes.get(request.owner.id, params.id))).metrics()),
    }),
    ...(["freeze", "thaw"] as const).map((verb) =>
      endpoint({
        method: "POST",
        path: `/v1/sandboxes/{id}/${verb}`,
        id: `${verb}Sandbox`,
        summary: verb === "freeze" ? "Stop all its processes where they are" : "Let them go on",
        params: sandboxParams,
        responses: { 204: DONE },
        handle: async ({ params, request, reply }) => {
          await (await sandboxes.running(sandboxes.get(request.owner.id, params.id)))[verb]();
          return reply.code(204).send();
        },
      }),
    ),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/pause",
      id: "pauseSandbox",
      summary: "Keep it on disk and give its memory back; it has no lease while it is paused",
      params: sandboxParams,
      body: pauseRequest,
      responses: { 200: ONE },
      handle: async ({ params, body, request }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        await sandboxes.pause(entry, body.memory);
        return sandboxDocument(entry);
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/resume",
      id: "resumeSandbox",
      summary: "Go on where it was paused, with a new lease; one that runs keeps at least what it had",
      params: sandboxParams,
      body: resumeRequest,
      responses: { 200: ONE },
      handle: async ({ params, body, request }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        await sandboxes.resume(entry, body.ttl_ms ?? entry.ttlMs);
        return sandboxDocument(entry);
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/fork",
      id: "forkSandbox",
      summary: "Children that start as it is now, while it goes on; each succeeds or fails by itself",
      params: sandboxParams,
      body: forkRequest,
      responses: { 200: { description: "In the order of their numbers", schema: forkResult } },
      handle: async ({ params, body, request }) => {
        const entry = sandboxes.get(request.owner.id, params.id);
        const children = await sandboxes.fork(entry, body.count, { memory: body.memory, ttlMs: body.ttl_ms ?? entry.ttlMs });
        return { children: children.map((child) => ("entry" in child ? { sandbox: sandboxDocument(child.entry) } : { error: { code: child.error.code, detail: child.error.message } })) };
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/snapshots",
      id: "createSnapshot",
      summary: "Keep what it is now; others start from it",
      params: sandboxParams,
      body: snapshotRequest,
      responses: { 201: { description: "The snapshot, and how long the sandbox stood still", schema: snapshotTaken } },
      handle: async ({ params, body, request, reply }) => {
        const { snapshot, method, stoppedMs } = await sandboxes.snapshot(sandboxes.get(request.owner.id, params.id), { memory: body.memory, ...(body.name === undefined ? {} : { name: body.name }) });
        return reply.code(201).send({ ...snapshotDocument(snapshot), method, stopped_ms: stoppedMs });
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/snapshots",
      id: "listSnapshots",
      summary: "List snapshots, oldest first",
      query: z.strictObject({ sandbox: z.string().exactOptional() }),
      responses: { 200: { description: "All of this owner", schema: snapshotList } },
      handle: async ({ query, request }) => ({ snapshots: (await sandboxes.snapshots(request.owner.id)).filter((snapshot) => query.sandbox === undefined || snapshot.sandbox === query.sandbox).map(snapshotDocument) }),
    }),
    endpoint({
      method: "GET",
      path: "/v1/snapshots/{reference}",
      id: "getSnapshot",
      summary: "One snapshot, by id or name",
      params: snapshotParams,
      responses: { 200: { description: "The snapshot", schema: snapshotSchema } },
      handle: async ({ params, request }) => snapshotDocument(await sandboxes.getSnapshot(request.owner.id, params.reference)),
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/snapshots/{reference}",
      id: "removeSnapshot",
      summary: "Remove a snapshot; sandboxes that started from it keep what they use",
      params: snapshotParams,
      responses: { 204: DONE },
      handle: async ({ params, request, reply }) => {
        await sandboxes.removeSnapshot(request.owner.id, params.reference);
        return reply.code(204).send();
      },
    }),
  ];
}

const NEVER = new AbortController().signal;
setMaxListeners(0, NEVER);

function requestOf(body: z.output<typeof createRequest>): SandboxRequest {
  return {
    image: body.image,
    snapshot: body.snapshot,
    snapshotFilesOnly: body.snapshot_files_only,
    template: body.image ?? body.snapshot ?? "host",
    cpus: body.cpus,
    memoryBytes: body.memory_bytes,
    diskBytes: body.disk_bytes,
    pids: body.pids,
    network: body.network,
    allow: body.allow,
    env: body.env,
    user: body.user,
    workdir: body.workdir,
    hostname: body.hostname,
    ...(body.checkpointable ? { checkpointable: true } : {}),
    metadata: body.metadata,
    ttlMs: body.ttl_ms,
    onTimeout: body.on_timeout,
    pauseMemory: body.pause_memory,
    autoResume: body.auto_resume,
  };
}

function metadataFilter(query: Readonly<Record<string, unknown>>): ReadonlyMap<string, string> {
  const wanted = new Map<string, string>();
  for (const [name, value] of Object.entries(query)) {
    if (["state", "limit", "cursor"].includes(name)) continue;
    if (!name.startsWith("metadata.") || typeof value !== "string") throw new MwError("invalid_input", `the query has no parameter ${JSON.stringify(name.slice(0, 100))}`, { fix: "metadata.NAME=VALUE, state, limit and cursor are taken" });
    wanted.set(name.slice("metadata.".length), value);
  }
  return wanted;
}

function matches(entry: SandboxEntry, wanted: ReadonlyMap<string, string>): boolean {
  return [...wanted].every(([name, value]) => entry.facts.request.metadata[name] === value);
}

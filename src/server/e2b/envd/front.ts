/**
 * The data plane: requests for a sandbox, told from all others by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, by a host name `PORT-ID.domain`, or by a signature. Port 49983
 * is the guest agent, which is the server itself: nothing of it runs in the sandbox. Other ports are the sandbox's own.
 *
 * The agent needs the sandbox's token (`X-Access-Token`), or a signature for one file. Its control routes, which in the original only the host's orchestrator may call, do not exist.
 */
import { timingSafeEqual } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { messageOf } from "../../../core/errors.ts";
import { execEnvironment } from "../../../sandbox/index.ts";
import type { Sandbox } from "../../../sandbox/sandbox.ts";
import type { SandboxEntry } from "../../sandboxes/sandbox-entry.ts";
import type { Front } from "../../services.ts";
import type { Facade } from "../facade.ts";
import { ENVD_PORT } from "../sandbox-facts.ts";
import { Accounts } from "./accounts.ts";
import type { Rpc } from "./connect-protocol.ts";
import { filesHttp } from "./files-http.ts";
import { filesystemService } from "./filesystem-service.ts";
import type { Guest } from "./guest.ts";
import type { PortProxy } from "./port-proxy.ts";
import { processService } from "./process-service.ts";
import { hasExpired, isSignedBy, signedRequest } from "./signature.ts";
import { Watchers } from "./watchers.ts";

interface Target {
  readonly id: string;
  readonly port: number;
}

export class DataPlane implements Front {
  readonly #facade: Facade;
  readonly #ports: PortProxy;
  readonly #accounts: Accounts;
  readonly #watchers = new WeakMap<Sandbox, Watchers>();

  constructor(facade: Facade, ports: PortProxy) {
    this.#facade = facade;
    this.#ports = ports;
    this.#accounts = facade.accounts;
  }

  claims(request: IncomingMessage): boolean {
    return targetOf(request) !== null || isUnaddressed(request);
  }

  handle(request: IncomingMessage, response: ServerResponse): void {
    this.#answer(request, response).catch((error: unknown) => {
      this.#facade.services.log(`data plane, ${request.method ?? ""}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
      if (response.headersSent) response.destroy();
      else refuse(response, 500, "the server failed at this request; its log says how");
    });
  }

  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const target = targetOf(request);
    const entry = target === null ? null : this.#facade.services.sandboxes.find(target.id);
    if (target === null || entry === null || target.port === ENVD_PORT || !this.#mayReach(entry, request)) {
      socket.end("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
      return;
    }
    this.#facade.services.sandboxes.running(entry).then(
      (sandbox) => this.#ports.upgrade(sandbox, target.port, request, socket, head),
      () => socket.end("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
    );
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://sandbox");
    const target = targetOf(request) ?? this.#bySignature(request, url);
    if (target === null) {
      refuse(response, 401, "no sandbox has given such a signature");
      return;
    }
    const entry = this.#facade.services.sandboxes.find(target.id);
    if (entry === null) {
      gone(response, target.id, "The sandbox was not found");
      return;
    }
    if (target.port !== ENVD_PORT) {
      await this.#port(entry, target, request, response);
      return;
    }
    if (request.method === "OPTIONS") {
      response.writeHead(204, { "access-control-allow-origin": "*", "access-control-allow-methods": "*", "access-control-allow-headers": "*", "access-control-max-age": "7200" }).end();
      return;
    }
    if (url.pathname === "/health" && request.method === "GET") {
      // Asking whether it runs does not wake it.
      if (entry.state === "paused") gone(response, target.id, "The sandbox is paused");
      else response.writeHead(204, { "cache-control": "no-store" }).end();
      return;
    }
    const denied = this.#denied(entry, request, url);
    if (denied !== null) {
      refuse(response, 401, denied);
      return;
    }
    await this.#agent(entry, request, response, url);
  }

  /** With the token, or the right to this one file. */
  async #agent(entry: SandboxEntry, request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    let at: Guest;
    try {
      at = { entry, sandbox: await this.#facade.services.sandboxes.running(entry) };
    } catch (error) {
      gone(response, entry.id, messageOf(error));
      return;
    }
    if (url.pathname === "/files") {
      await filesHttp(this.#accounts, at, request, response, url);
      return;
    }
    if (url.pathname === "/metrics" && request.method === "GET") {
      const sample = (await this.#facade.observations.metrics(entry)).at(-1);
      json(response, 200, { ts: sample?.timestampUnix ?? 0, cpu_count: sample?.cpuCount ?? 0, cpu_used_pct: sample?.cpuUsedPct ?? 0, mem_total: sample?.memTotal ?? 0, mem_used: sample?.memUsed ?? 0, mem_cache: sample?.memCache ?? 0, disk_used: sample?.diskUsed ?? 0, disk_total: sample?.diskTotal ?? 0 });
      return;
    }
    if (url.pathname === "/envs" && request.method === "GET") {
      json(response, 200, execEnvironment(at.sandbox.spec));
      return;
    }
    const rpc = request.method === "POST" ? this.#rpcOf(at, url.pathname) : null;
    if (rpc === null) refuse(response, 404, "the agent has no such route");
    else await rpc(request, response);
  }

  #rpcOf(at: Guest, path: string): Rpc | null {
    const [, service = "", method = "", more] = path.split("/");
    if (more !== undefined) return null;
    const { runtime } = this.#facade.services;
    const guest = (): Promise<Guest> => Promise.resolve(at);
    const methods =
      service === "process.Process"
        ? processService({ runtime, accounts: this.#accounts, observations: this.#facade.observations, hubOf: ({ sandbox }) => this.#facade.hubOf(sandbox) }, guest)
        : service === "filesystem.Filesystem"
          ? filesystemService({ runtime, accounts: this.#accounts, watchersOf: ({ sandbox }) => of(this.#watchers, sandbox, () => new Watchers(sandbox, runtime)) }, guest)
          : {};
    return Object.hasOwn(methods, method) ? (methods[method] ?? null) : null;
  }

  async #port(entry: SandboxEntry, { port }: Target, request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (!this.#mayReach(entry, request)) {
      refuse(response, 403, "the ports of this sandbox need its traffic access token (E2b-Traffic-Access-Token)");
      return;
    }
    let sandbox: Sandbox;
    try {
      sandbox = await this.#facade.services.sandboxes.running(entry);
    } catch (error) {
      gone(response, entry.id, messageOf(error));
      return;
    }
    await this.#ports.forward(sandbox, port, request, response);
  }

  #mayReach(entry: SandboxEntry, request: IncomingMessage): boolean {
    const { traffic } = this.#facade.secrets.of(entry);
    return traffic === null || equal(request.headers["e2b-traffic-access-token"], traffic);
  }

  /** Why the agent does not listen, or null. */
  #denied(entry: SandboxEntry, request: IncomingMessage, url: URL): string | null {
    const { access } = this.#facade.secrets.of(entry);
    const given = request.headers["x-access-token"];
    if (given !== undefined) return equal(given, access) ? null : "the access token is not this sandbox's";
    if (url.pathname !== "/files") return "the sandbox's access token is missing (X-Access-Token)";
    const signed = signedRequest(url, request.method);
    if (signed === null || !isSignedBy(signed, access)) return "neither an access token nor a valid signature comes with the request";
    return hasExpired(signed, this.#facade.services.runtime.now()) ? "signature is already expired" : null;
  }

  /** An address that names no sandbox: the one whose token has signed it. */
  #bySignature(request: IncomingMessage, url: URL): Target | null {
    const signed = signedRequest(url, request.method);
    if (signed === null) return null;
    for (const entry of this.#facade.services.sandboxes.all()) {
      const { extra } = entry.facts.request;
      if (extra?.["access"] !== undefined && isSignedBy(signed, extra["access"])) return { id: entry.id, port: ENVD_PORT };
    }
    return null;
  }
}

function of<Value>(map: WeakMap<Sandbox, Value>, sandbox: Sandbox, make: () => Value): Value {
  const known = map.get(sandbox);
  if (known !== undefined) return known;
  const made = make();
  map.set(sandbox, made);
  return made;
}

function targetOf({ headers }: IncomingMessage): Target | null {
  const id = headers["e2b-sandbox-id"];
  if (typeof id === "string" && id !== "") return { id, port: portOf(headers["e2b-sandbox-port"]) ?? ENVD_PORT };
  const match = /^(\d{1,5})-([a-z0-9]{4,63})\./i.exec(headers.host ?? "");
  const port = portOf(match?.[1]);
  return match === null || port === null ? null : { id: (match[2] ?? "").toLowerCase(), port };
}

function portOf(text: string | readonly string[] | undefined): number | null {
  const port = typeof text === "string" && /^\d{1,5}$/.test(text) ? Number(text) : 0;
  return port >= 1 && port <= 65_535 ? port : null;
}

function isUnaddressed({ url = "" }: IncomingMessage): boolean {
  return url.startsWith("/files?") && url.includes("signature=");
}

function equal(given: string | readonly string[] | undefined, right: string): boolean {
  const [a, b] = [Buffer.from(typeof given === "string" ? given : ""), Buffer.from(right)];
  return a.length === b.length && timingSafeEqual(a, b);
}

/** What clients read as: this sandbox is no more. */
function gone(response: ServerResponse, sandboxId: string, message: string): void {
  json(response, 502, { sandboxId: sandboxId.slice(0, 100), message, code: 502 });
}

function refuse(response: ServerResponse, status: number, message: string): void {
  json(response, status, { code: status, message });
}

function json(response: ServerResponse, status: number, document: unknown): void {
  const text = JSON.stringify(document);
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text), "access-control-allow-origin": "*" }).end(text);
}


/**
 * The one server: every HTTP interface of the product on one port, behind one authentication. It owns nothing that lasts; modules do.
 *
 * Its end: no new connections, streams are told (`draining`), requests under way have their time, modules close, and only then are machines ended by the caller.
 */
import { setMaxListeners } from "node:events";
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import fastify, { type FastifyInstance } from "fastify";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { Authenticator } from "./authentication/authenticate.ts";
import { firstKey, KeyRing } from "./authentication/keys.ts";
import { isLoopback } from "./authentication/peer-user.ts";
import { mountBasics } from "./basics.ts";
import { SandboxManager, type SandboxLimits } from "./sandboxes/manager.ts";
import { answerProblems } from "./problem.ts";
import type { Front, Owner, Services, ServerModule } from "./services.ts";
import { Upgrades } from "./upgrades.ts";

export interface ServerOptions extends Pick<Services, "home" | "version" | "runtime" | "env" | "machines" | "warm" | "keepsMachines" | "runs" | "log" | "board"> {
  readonly modules: Readonly<Record<string, ServerModule>>;
  /** Address to listen on. Beyond loopback every request needs a key. */
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly limits?: SandboxLimits;
}

export interface OpenServer {
  readonly url: string;
  /** File with the first key; null where it was given in the environment. */
  readonly keyFile: string | null;
  /** Whether requests of the same user of this host need no key. */
  readonly keyless: boolean;
  /** Requests under way have `graceMs` to end. */
  close(graceMs: number): Promise<void>;
}

/** Rejects `environment` when it cannot listen there. */
export async function openServer(options: ServerOptions): Promise<OpenServer> {
  const { home, env, runtime, host, log } = options;
  const first = firstKey(home, env["MW_API_KEY"], runtime);
  const keyless = isLoopback(host) || host === "localhost";
  // Where the kernel tells nobody's user, nobody is let in without a key.
  const keys = new KeyRing(home, first.key);
  const authenticator = new Authenticator(keys, { keylessUser: keyless ? (process.getuid?.() ?? null) : null });
  const draining = new AbortController();
  // Everything that lasts listens to it.
  setMaxListeners(0, draining.signal);
  const upgrades = new Upgrades((request) => authenticator.ownerOf(request));
  const fronts: Front[] = [];
  const sandboxes = await SandboxManager.open({ ...options, draining: draining.signal, owners: () => keys.owners });
  const services: Services = { ...options, sandboxes, draining: draining.signal, upgrades, addFront: (front) => void fronts.push(front) };
  const { app, server } = createApp(authenticator, fronts, log, runtime);
  server.on("upgrade", (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const front = fronts.find((candidate) => candidate.claims(request));
    if (front === undefined) void upgrades.handle(request, socket, head);
    else front.upgrade(request, socket, head);
  });
  mountBasics(app, services);
  for (const mount of Object.values(options.modules)) await app.register(async (scope) => mount(scope, services));
  try {
    await app.listen({ host, port: options.port });
  } catch (error) {
    sandboxes.close();
    await app.close();
    throw cannotListen(error, options);
  }
  return {
    url: addressOf(server),
    keyFile: first.file,
    keyless,
    close: async (graceMs) => {
      draining.abort(new MwError("cancelled", "the server ends"));
      upgrades.close();
      sandboxes.close();
      const grace = new AbortController();
      runtime.sleep(graceMs, grace.signal).then(() => server.closeAllConnections(), () => undefined);
      await app.close();
      grace.abort("closed");
    },
  };
}

/** Without modules, and not listening. */
function createApp(authenticator: Authenticator, fronts: readonly Front[], log: (line: string) => void, runtime: ServerOptions["runtime"]): { readonly app: FastifyInstance; readonly server: Server } {
  // The framework's listener is known only when it asks for the server.
  let server: Server | null = null;
  const app = fastify({
    serverFactory: (listener: RequestListener) => {
      const answer = (request: IncomingMessage, response: ServerResponse): void => {
        const front = fronts.find((candidate) => candidate.claims(request));
        if (front === undefined) listener(request, response as Parameters<RequestListener>[1]);
        else front.handle(request, response);
      };
      server = createServer({ maxHeaderSize: LIMITS.gatewayHeaderBytes, headersTimeout: LIMITS.gatewayHeadersMs, requestTimeout: 0, keepAliveTimeout: LIMITS.serverIdleMs }, answer);
      return server;
    },
    logger: false,
    bodyLimit: LIMITS.serverBodyBytes,
    genReqId: ({ headers }) => namedBy(headers) ?? Buffer.from(runtime.randomBytes(8)).toString("hex"),
    forceCloseConnections: "idle",
    return503OnClosing: true,
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 4096 },
  });
  if (server === null) throw new MwError("internal", "the web framework made no server");
  // Clients name the type of a body that they do not send.
  const parseJson = app.getDefaultJsonParser("error", "error");
  app.removeContentTypeParser("application/json");
  app.addContentTypeParser("application/json", { parseAs: "string" }, (request, body, done) => {
    if (body === "") done(null, undefined);
    // It was asked for as text.
    else void parseJson(request, body as string, done);
  });
  // Set by the hook below before anybody reads it; open routes do not.
  app.decorateRequest("owner", null as unknown as Owner);
  answerProblems(app, log);
  app.addHook("onRequest", (request, reply, done) => {
    void reply.header("x-request-id", request.id);
    if (request.routeOptions.config.open === true) {
      done();
      return;
    }
    try {
      request.owner = authenticator.ownerOf(request.raw);
      done();
    } catch (error) {
      done(error as Error);
    }
  });
  return { app, server };
}

/** A client's own name for its request, where it can be one. */
function namedBy(headers: IncomingMessage["headers"]): string | null {
  const name = headers["x-request-id"];
  return typeof name === "string" && /^[\w.-]{1,64}$/.test(name) ? name : null;
}

function addressOf(server: Server): string {
  // A server that listens on TCP has such an address.
  const { address, port, family } = server.address() as AddressInfo;
  return `http://${family === "IPv6" ? `[${address}]` : address}:${port}`;
}

function cannotListen(error: unknown, { host, port }: ServerOptions): unknown {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  const fix = { EADDRINUSE: "another program uses it: give another port (--port 0 takes any free one)", EADDRNOTAVAIL: "give an address of this host", EACCES: "ports below 1024 are root's: give another" }[code];
  return fix === undefined ? error : new MwError("environment", `cannot listen on ${host}:${port}: ${code}`, { fix, cause: error });
}

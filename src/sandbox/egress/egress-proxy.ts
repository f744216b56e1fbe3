/**
 * The way out of machines whose network is `allowlist`. They have loopback and services, nothing else; one of the services is this proxy, in the controller on the host's side.
 * Programs in the machine find it in the usual variables (`HTTPS_PROXY` and so on). A connection comes with the name of its machine, written by the forwarder: what it may do is
 * decided by that machine's list.
 *
 *   connection -> preface -> request -> name allowed? -> addresses of the name -> allowed? -> connected to one of those -> passed on
 *                                          no: 403                                no: 403        no: 502
 *
 * All that a machine can make this hold is bounded: connections by the forwarder, heads, requests on one connection, requests and tunnels under way, lookups, refusals.
 */
import { rmSync } from "node:fs";
import { chmod } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { SandboxId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { readPreface } from "../service-preface.ts";
import { type Answer, HOW_TO_ALLOW, lastWords } from "./answers.ts";
import { authority, decide, parseAuthority, type Destination } from "./destination.ts";
import { dial, type Dialled } from "./dial.ts";
import { forward, oddRequest, parseTarget, refuse } from "./forward.ts";
import { type Flow, type FlowCount, MachineEgress } from "./machine-egress.ts";
import { hostResolver, type Resolve } from "./resolve.ts";
import { runTunnel } from "./tunnel.ts";

export interface EgressProxyOptions {
  /** Of the unix socket that machines' connections are forwarded to. */
  readonly socketPath: string;
  readonly runtime: Runtime;
  /** Default: the host's. */
  readonly resolve?: Resolve;
}

export async function openEgressProxy(options: EgressProxyOptions): Promise<EgressProxy> {
  rmSync(options.socketPath, { force: true });
  const proxy = new EgressProxy(options);
  await proxy.listen();
  return proxy;
}

export class EgressProxy {
  readonly socketPath: string;
  readonly #runtime: Runtime;
  readonly #resolve: Resolve;
  readonly #server: Server;
  readonly #machines = new Map<SandboxId, MachineEgress>();
  readonly #flows: FlowCount = { open: 0 };
  readonly #sockets = new Map<Duplex, { readonly machine: MachineEgress; pending: number }>();

  constructor({ socketPath, runtime, resolve = hostResolver() }: EgressProxyOptions) {
    this.socketPath = socketPath;
    this.#runtime = runtime;
    this.#resolve = resolve;
    this.#server = createServer({
      maxHeaderSize: LIMITS.egressHeadBytes,
      headersTimeout: LIMITS.egressHeadMs,
      // A body may take as long as its server likes, while something moves.
      requestTimeout: 0,
      keepAliveTimeout: LIMITS.egressIdleMs / 4,
      connectionsCheckingInterval: LIMITS.egressHeadMs / 2,
    });
    // Headers are bounded by their bytes; one that was dropped silently could be the one that matters.
    this.#server.maxHeadersCount = 0;
    this.#server.timeout = LIMITS.egressIdleMs;
    this.#readPrefaces();
    this.#server.on("request", (request: IncomingMessage, response: ServerResponse) => void this.#onRequest(request, response));
    this.#server.on("connect", (request: IncomingMessage, socket: Duplex, head: Buffer) => void this.#onConnect(request, socket, head));
    this.#server.on("clientError", (error: NodeJS.ErrnoException, socket: Duplex) => this.#onMalformed(error, socket));
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve, reject) => this.#server.once("error", reject).listen(this.socketPath, resolve));
    await chmod(this.socketPath, 0o600);
    // Machines keep their controller alive, not their way out.
    this.#server.unref();
  }

  /** From now on connections of this machine are served, by this list, which may be changed through what is returned; `changed` is called then. */
  admit(sandbox: SandboxId, hosts: readonly string[], changed: () => void = () => undefined): MachineEgress {
    const machine = new MachineEgress(hosts, this.#runtime, this.#flows, changed);
    this.#machines.set(sandbox, machine);
    return machine;
  }

  /** Ends all that the machine has open. */
  forget(sandbox: SandboxId): void {
    const machine = this.#machines.get(sandbox);
    this.#machines.delete(sandbox);
    machine?.close();
    for (const [socket, of] of this.#sockets) if (of.machine === machine) socket.destroy();
  }

  async close(): Promise<void> {
    for (const sandbox of this.#machines.keys()) this.forget(sandbox);
    for (const socket of this.#sockets.keys()) socket.destroy();
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeAllConnections();
    });
    rmSync(this.socketPath, { force: true });
  }

  /** The HTTP server takes over a connection once it is known whose it is. */
  #readPrefaces(): void {
    const [serve] = this.#server.listeners("connection");
    this.#server.removeAllListeners("connection");
    this.#server.on("connection", (socket: Socket) => {
      void readPreface(socket, LIMITS.egressHeadMs).then((sandbox) => {
        const machine = sandbox === null ? undefined : this.#machines.get(sandbox);
        if (machine === undefined || socket.destroyed) {
          socket.destroy();
          return;
        }
        this.#sockets.set(socket, { machine, pending: 0 });
        socket.once("close", () => this.#sockets.delete(socket));
        serve?.call(this.#server, socket);
      });
    });
  }

  async #onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const of = this.#sockets.get(request.socket);
    if (of === undefined || request.socket.destroyed || of.pending >= LIMITS.egressPipelined) {
      request.socket.destroy();
      return;
    }
    const { machine } = of;
    of.pending++;
    response.once("close", () => of.pending--);
    request.on("error", () => undefined);
    response.on("error", () => undefined);
    const target = parseTarget(request.url ?? "");
    const odd = target === null ? NOT_FOR_US : oddRequest(request);
    if (target === null || odd !== null) {
      machine.refuse("protocol", target?.destination.host ?? "", target?.destination.port ?? null, odd ?? NOT_FOR_US);
      // What follows a request that could not be understood could not be either.
      response.shouldKeepAlive = false;
      refuse(response, { status: target === null ? 400 : 501, reason: odd ?? NOT_FOR_US, hint: HOW_TO_ALLOW });
      return;
    }
    const flow = this.#begin(machine, target.destination);
    if ("status" in flow) {
      refuse(response, flow);
      return;
    }
    try {
      const reached = await this.#reach(machine, flow, target.destination, request.socket);
      if ("status" in reached) refuse(response, reached);
      else await forward(request, response, target, flow, reached.socket).finally(() => reached.socket.destroy());
    } catch (error) {
      refuse(response, { status: 500, reason: `the proxy failed: ${error instanceof Error ? error.message : String(error)}` });
    } finally {
      flow.end();
    }
  }

  async #onConnect(request: IncomingMessage, client: Duplex, head: Buffer): Promise<void> {
    const of = this.#sockets.get(client);
    client.on("error", () => undefined);
    // A tunnel amid answers that are still to come would have them in it.
    if (of === undefined || of.pending > 0) {
      client.destroy();
      return;
    }
    const { machine } = of;
    const destination = parseAuthority(request.url ?? "", null);
    if (destination === null) {
      const reason = `CONNECT needs HOST:PORT, not ${JSON.stringify((request.url ?? "").slice(0, 300))}`;
      machine.refuse("protocol", "", null, reason);
      lastWords(client, { status: 400, reason });
      return;
    }
    const flow = this.#begin(machine, destination);
    if ("status" in flow) {
      lastWords(client, flow);
      return;
    }
    try {
      const reached = await this.#reach(machine, flow, destination, client);
      if ("status" in reached) lastWords(client, reached);
      else await runTunnel(machine, flow, destination, client, head, reached.socket).finally(() => reached.socket.destroy());
    } catch {
      client.destroy();
    } finally {
      flow.end();
    }
  }

  #begin(machine: MachineEgress, destination: Destination): Flow | Answer {
    const flow = machine.begin();
    if (flow !== null) return flow;
    const reason = "this sandbox has as many connections to the outside as it may have at once";
    machine.refuse("busy", destination.host, destination.port, reason);
    return { status: 503, reason, hint: "Close some, or wait." };
  }

  async #reach(machine: MachineEgress, flow: Flow, destination: Destination, client: Duplex): Promise<Dialled | Answer> {
    const gone = new AbortController();
    const stop = (): void => gone.abort();
    client.once("close", stop);
    flow.onCut(stop);
    flow.goesTo(destination, null);
    try {
      const decision = await machine.lookups.use(() => decide(machine.rules, destination, this.#resolve));
      if (decision.kind === "refused") {
        machine.refuse(decision.reason, destination.host, destination.port, decision.message);
        return { status: 403, reason: decision.message, hint: HOW_TO_ALLOW };
      }
      if (decision.kind === "unknown") return { status: 502, reason: decision.message };
      const dialled = await dial(decision.addresses, destination.port, gone.signal);
      if (dialled === null) return { status: 504, reason: `${authority(destination)} does not take connections` };
      flow.goesTo(destination, dialled.address);
      // The list may have changed meanwhile.
      if (!gone.signal.aborted) return dialled;
      dialled.socket.destroy();
      return { status: 403, reason: `${authority(destination)} is no longer allowed`, hint: HOW_TO_ALLOW };
    } finally {
      client.off("close", stop);
    }
  }

  #onMalformed(error: NodeJS.ErrnoException, socket: Duplex): void {
    const of = this.#sockets.get(socket);
    if (of === undefined || socket.destroyed || error.code === "ECONNRESET" || error.code === "EPIPE") {
      socket.destroy();
      return;
    }
    const long = error.code === "HPE_HEADER_OVERFLOW";
    const late = error.code === "ERR_HTTP_REQUEST_TIMEOUT";
    const reason = long ? `the head of the request is longer than ${LIMITS.egressHeadBytes} bytes` : late ? "the head of the request did not come in time" : "what came is no HTTP request, or could be read in two ways";
    if (!late) of.machine.refuse("protocol", "", null, reason);
    if (socket.writable && of.pending === 0) lastWords(socket, { status: long ? 431 : late ? 408 : 400, reason });
    else socket.destroy();
  }
}

const NOT_FOR_US = "this is the sandbox's proxy: ask it as one (GET http://HOST/PATH, or CONNECT HOST:PORT for TLS)";

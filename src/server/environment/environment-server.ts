/**
 * An environment server of verifiers v1: a ZeroMQ ROUTER with `health`, `run` and `cancel`, as prime-rl's orchestrator asks for rollouts (`verifiers/v1/serve/`).
 *
 * A request is `[id, method, msgpack]`. Two forms of answer are in use. `deltas`, since verifiers 0.4: `[id, "delta", msgpack]` with what is new of the trace, then
 * `[id, "reply", msgpack]` with the rest. `whole`, before that: `[id, msgpack]` with the episode in one piece. A failed request is an answer, and so is an aborted one: who asks
 * counts answers. Clients have no time-out and the socket no authentication; it is for loopback and for networks of one's own.
 */
import { Packr, Unpackr } from "msgpackr";
import type { Router } from "zeromq";
import { MwError, toMwError } from "../../core/errors.ts";
import { newId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { SingleRollouts } from "../single/single-rollouts.ts";
import { episodeOf, type WireEpisode } from "./episode.ts";
import { readCancel, readRun } from "./requests.ts";

export type EnvironmentWire = "deltas" | "whole";

export interface EnvironmentServerOptions {
  /** `tcp://127.0.0.1:5000`, `ipc:///path`; port 0 or `*` for a free one. */
  readonly address: string;
  readonly wire: EnvironmentWire;
  readonly rollouts: Pick<SingleRollouts, "run">;
  readonly runtime: Runtime;
  readonly version: string;
  readonly log: (line: string) => void;
}

export interface EnvironmentServer {
  /** As bound. */
  readonly address: string;
  /** Aborts what runs, and says so to who waits. */
  close(): Promise<void>;
}

/** Rejects `unsupported` where ZeroMQ is not installed, `usage` for an address that cannot be bound. */
export async function openEnvironmentServer(options: EnvironmentServerOptions): Promise<EnvironmentServer> {
  const { Router } = await import("zeromq").catch((cause: unknown) => {
    throw new MwError("unsupported", "the package zeromq is not installed", { fix: "npm install --include=optional", cause });
  });
  // What is for a client that is gone is dropped: with `mandatory` a send to it was seen to wait for ever, and the answers of everybody else behind it.
  const router = new Router({ mandatory: false, sendTimeout: LIMITS.environmentSendMs, sendHighWaterMark: 0, receiveHighWaterMark: 0, linger: 1000, maxMessageSize: LIMITS.environmentRequestBytes });
  const address = options.address.replace(/^(tcp:\/\/.*):0$/, "$1:*");
  try {
    await router.bind(address);
  } catch (cause) {
    router.close();
    throw new MwError("usage", `cannot listen at ${options.address}`, { fix: "an address such as tcp://127.0.0.1:5000 that nobody uses", cause });
  }
  const server = new Serving(router, options);
  const ended = server.serve();
  return {
    // It is bound.
    address: router.lastEndpoint ?? address,
    close: async () => {
      await server.end();
      router.close();
      await ended;
    },
  };
}

class Serving {
  readonly #router: Router;
  readonly #options: EnvironmentServerOptions;
  readonly #packr = new Packr({ useRecords: false, variableMapSize: true });
  readonly #unpackr = new Unpackr({ useRecords: false, mapsAsObjects: true, int64AsType: "number" });
  /** By client and request: names are the clients' own. */
  readonly #running = new Map<string, AbortController>();
  readonly #handling = new Set<Promise<void>>();
  /** The socket takes one message at a time. */
  #sending: Promise<void> = Promise.resolve();
  #ended = false;

  constructor(router: Router, options: EnvironmentServerOptions) {
    this.#router = router;
    this.#options = options;
  }

  async serve(): Promise<void> {
    for await (const frames of this.#router) {
      const [client, id, method, payload, ...more] = frames;
      if (client === undefined || id === undefined || method === undefined || payload === undefined || more.length > 0) {
        this.#options.log(`environment: a message of ${frames.length} parts was ignored; requests have four`);
        continue;
      }
      const handling = this.#handle(client, id, method.toString(), payload).finally(() => this.#handling.delete(handling));
      this.#handling.add(handling);
    }
  }

  async end(): Promise<void> {
    this.#ended = true;
    for (const running of this.#running.values()) running.abort(new MwError("cancelled", "the server is ending"));
    await Promise.all(this.#handling);
    await this.#sending;
  }

  async #handle(client: Buffer, id: Buffer, method: string, payload: Buffer): Promise<void> {
    let reply: Readonly<Record<string, unknown>>;
    try {
      const document: unknown = this.#unpackr.unpack(payload);
      reply = { success: true, error: null, ...(await this.#answer(client, id, method, document)) };
    } catch (error) {
      reply = { success: false, error: describe(error) };
    }
    await this.#send(client, id, "reply", reply);
  }

  async #answer(client: Buffer, id: Buffer, method: string, document: unknown): Promise<Readonly<Record<string, unknown>>> {
    switch (method) {
      case "health":
        return {};
      case "run":
        return await this.#run(client, id, document);
      case "cancel": {
        const running = this.#running.get(nameOf(client, Buffer.from(readCancel(document))));
        running?.abort(new MwError("cancelled", "the client asked for it"));
        return { cancelled: running !== undefined };
      }
      default:
        throw new MwError("usage", `there is no method ${JSON.stringify(method.slice(0, 64))}`, { fix: "health, run, cancel" });
    }
  }

  async #run(client: Buffer, id: Buffer, document: unknown): Promise<Readonly<Record<string, unknown>>> {
    const name = nameOf(client, id);
    if (this.#ended) throw new MwError("cancelled", "the server is ending");
    if (this.#running.has(name)) throw new MwError("conflict", "a request of this id is running");
    if (this.#running.size >= LIMITS.environmentRuns) throw new MwError("overloaded", `${this.#running.size} rollouts run already`, { fix: "ask for fewer at a time" });
    const running = new AbortController();
    this.#running.set(name, running);
    try {
      const { request, taskData, model, sampling } = readRun(document);
      const end = await this.#options.rollouts.run(request, running.signal);
      // The reply to an abort is an error: who asked has given up.
      running.signal.throwIfAborted();
      const { runtime, version } = this.#options;
      const episode = episodeOf(end, { id: newId("ex", runtime), trace: end.end.rollout ?? newId("ro", runtime), version, taskData, model, sampling });
      return await this.#told(client, id, episode);
    } finally {
      this.#running.delete(name);
    }
  }

  async #told(client: Buffer, id: Buffer, { head, trace }: WireEpisode): Promise<Readonly<Record<string, unknown>>> {
    if (this.#options.wire === "whole") return { episode: { ...head, traces: [trace] } };
    const { version, id: name, verifiers, task, nodes, calls, errors, extra_usage, request_rewrites, response_rewrites, ...scalars } = trace;
    await this.#send(client, id, "delta", { trace: name, open: { version, id: name, verifiers, task }, nodes, calls, errors, extra_usage, request_rewrites, response_rewrites, set: scalars });
    return { head, traces: [{ id: name, nodes: nodes.length, calls: calls.length }] };
  }

  /** A client that is gone is no error of ours. */
  #send(client: Buffer, id: Buffer, kind: "delta" | "reply", document: unknown): Promise<void> {
    const data = this.#packr.pack(document);
    const frames = this.#options.wire === "whole" ? [client, id, data] : [client, id, kind, data];
    this.#sending = this.#sending.then(() => this.#router.send(frames)).catch((error: unknown) => this.#options.log(`environment: an answer was not sent: ${describe(error)}`));
    return this.#sending;
  }
}

function nameOf(client: Buffer, id: Buffer): string {
  return `${client.toString("hex")}/${id.toString("hex")}`;
}

function describe(error: unknown): string {
  const { code, message, fix } = toMwError(error);
  return code === "cancelled" ? `Cancelled: ${message}` : `${code}: ${message}${fix === null ? "" : `. ${fix}`}`;
}

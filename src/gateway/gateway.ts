/** A gateway: listeners, and the sessions that they serve. */
import { MwError } from "../core/errors.ts";
import { newId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { CallBoard } from "./call-board.ts";
import { GatewayFailure } from "./failure.ts";
import { newToken } from "./server/credentials.ts";
import { SessionRegistry, type Asker } from "./server/registry.ts";
import { startServer, type GatewayServer } from "./server/server.ts";
import type { Gateway, GatewaySession, SessionOptions } from "./session.ts";
import { Session } from "./session/session.ts";
import type { Upstream, UpstreamFacts } from "./upstreams/upstream.ts";

export interface GatewayOptions {
  readonly runtime: Runtime;
  /** Of the unix socket; what is there is replaced. At most 107 bytes. */
  readonly socketPath: string;
  /** Loopback TCP: a port, 0 for any free one; null for none. */
  readonly port: number | null;
  /** Time for a request's headers, and for all of it, milliseconds; defaults are the limits. */
  readonly headersMs?: number;
  readonly bodyMs?: number;
  /** Shows the calls of its sessions. */
  readonly board?: CallBoard | undefined;
  /** Machines whose harnesses are at work already, with sessions of a process before this one: their requests wait until those are opened again. */
  readonly awaited?: readonly string[];
  /** Opens a session for a request from this host whose key none has; null refuses it. */
  readonly openFor?: (key: string) => Promise<GatewaySession | null>;
}

/** Rejects `environment` when it cannot listen. */
export async function openGateway(options: GatewayOptions): Promise<Gateway> {
  const gateway = new OpenGateway(options);
  await gateway.start();
  return gateway;
}

/** Throws `unsupported` when what the server gives cannot be trained on. */
export function expectTokens({ name }: Upstream, { capture, reason }: UpstreamFacts): void {
  if (capture === "tokens") return;
  throw new MwError("unsupported", `${name} returns no exact tokens, which training needs: ${reason ?? `its level is ${capture}`}`, { fix: "serve the model with vLLM or SGLang, or leave --require-tokens out" });
}

class OpenGateway implements Gateway {
  readonly #options: GatewayOptions;
  readonly #registry = new SessionRegistry();
  readonly #awaited = new Map<string, { readonly arrival: Promise<void>; readonly arrived: () => void }>();
  readonly #opening = new Map<string, Promise<GatewaySession | null>>();
  #server: GatewayServer | null = null;

  constructor(options: GatewayOptions) {
    this.#options = options;
    for (const sandbox of options.awaited ?? []) {
      let arrived = (): void => undefined;
      const arrival = new Promise<void>((resolve) => (arrived = resolve)).then(() => void this.#awaited.delete(sandbox));
      this.#awaited.set(sandbox, { arrival, arrived });
    }
  }

  get socketPath(): string {
    return this.#options.socketPath;
  }

  get url(): string | null {
    return this.#server?.url ?? null;
  }

  async start(): Promise<void> {
    const { socketPath, port, headersMs, bodyMs } = this.#options;
    this.#server = await startServer({ socketPath, port, headersMs, bodyMs, sessionOf: (asker) => this.#sessionOf(asker) });
  }

  async open(options: SessionOptions): Promise<GatewaySession> {
    const { runtime, board } = this.#options;
    const facts = await options.upstream.probe(options.model, AbortSignal.timeout(LIMITS.modelCallMs));
    if (options.purpose === "train") expectTokens(options.upstream, facts);
    const session = new Session(newId("ses", runtime), options.token ?? newToken(runtime.randomBytes(32)), options, {
      runtime,
      facts,
      board,
      onClosing: () => this.#registry.remove(session),
    });
    this.#registry.add(session);
    if (options.sandbox !== null) this.#awaited.get(options.sandbox)?.arrived();
    return session;
  }

  async close(): Promise<void> {
    for (const { arrived } of this.#awaited.values()) arrived();
    await Promise.all(this.#registry.sessions.map((session) => session.close()));
    await this.#server?.close();
  }

  async #sessionOf(asker: Asker): Promise<Session> {
    if (asker.sandbox !== null) await this.#arrival(asker.sandbox);
    const [key] = asker.keys;
    const { openFor } = this.#options;
    if (openFor !== undefined && key !== undefined && asker.sandbox === null && asker.path === null && !this.#registry.knows(key)) {
      if (this.#opening.size >= LIMITS.sessionsByKey && !this.#opening.has(key)) throw new GatewayFailure("rate_limited", `More than ${LIMITS.sessionsByKey} sessions were opened.`);
      const opened = await (this.#opening.get(key) ?? this.#openOnce(key, openFor));
      if (opened !== null) return this.#registry.find({ ...asker, keys: [opened.token] });
    }
    return this.#registry.find(asker);
  }

  /** Resolves at once for a machine that is not awaited. */
  async #arrival(sandbox: string): Promise<void> {
    const awaited = this.#awaited.get(sandbox);
    if (awaited === undefined) return;
    const over = new AbortController();
    try {
      const late = await Promise.race([awaited.arrival, this.#options.runtime.sleep(LIMITS.sessionArrivalMs, over.signal).then(() => true)]);
      if (late === true) throw new GatewayFailure("overloaded", "This session is not open again yet.", { retryAfterMs: 1000 });
    } finally {
      over.abort("over");
    }
  }

  /** Two first requests with one key get one session. */
  #openOnce(key: string, openFor: (key: string) => Promise<GatewaySession | null>): Promise<GatewaySession | null> {
    const opening = openFor(key);
    this.#opening.set(key, opening);
    opening.catch(() => this.#opening.delete(key));
    return opening;
  }
}

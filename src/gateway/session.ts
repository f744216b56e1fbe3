/** The contract of a session: one rollout's access to the model, and everything that is known about its calls. */
import type { SessionId } from "../core/ids.ts";
import type { CallSink, Call } from "./call.ts";
import type { Sampling, TurnRequest, Delta } from "./conversation.ts";
import type { Upstream } from "./upstreams/upstream.ts";

export interface SessionBudgets {
  /** Model calls that reach the engine. */
  readonly calls: number | null;
  /** Sampled tokens. */
  readonly tokens: number | null;
  /** Wall time from the opening, milliseconds. */
  readonly timeMs: number | null;
}

export interface SessionOptions {
  /** What it belongs to, for records: a rollout's id, or a name that the user gave. */
  readonly label: string;
  /** The sandbox whose service connections are this session's; null: reached by path or token only. */
  readonly sandbox: string | null;
  readonly upstream: Upstream;
  /** The upstream's name of the model; harnesses may call it what they like. */
  readonly model: string;
  /** What the run fixes; wins over what the harness asks for. */
  readonly sampling: Partial<Sampling>;
  readonly budgets: SessionBudgets;
  /** `train`: opening is refused (`unsupported`, with the reason) when the upstream does not capture tokens. */
  readonly purpose: "train" | "evaluate";
  readonly log: CallSink;
  /** Calls that the log has of earlier sessions: this one's are numbered after them. */
  readonly callsBefore?: number;
  /** What the harness has asked before, of which this session is the continuation: it counts into the budgets, and prompts extend its tokens. */
  readonly earlier?: readonly Call[];
  /**
   * The token of a session that a process before this one had open with the same harness, which goes on without knowing: it keeps the token, `earlier` are all the calls of that session,
   * and what it may not have got of the last answers it can ask for again.
   */
  readonly token?: string;
}

export interface SessionTotals {
  /** Calls that reached the engine, by how they ended. */
  readonly complete: number;
  readonly incomplete: number;
  readonly failed: number;
  readonly promptTokens: number;
  /** Of these: those that the server says it had cached. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** Wall time during which at least one call was in flight, milliseconds. */
  readonly modelMs: number;
  /** Versions of the policy that sampled, oldest first by when they were met; of those that say one. */
  readonly policyVersions: readonly string[];
  /** The budget that kept the harness from going on; null while nothing did. */
  readonly exhausted: keyof SessionBudgets | null;
  /** The last failure that was not the harness's own doing, for telling `model_error` from the rest; null again once a call is answered. */
  readonly lastFailure: { readonly kind: string; readonly message: string } | null;
}

export interface GatewaySession {
  readonly id: SessionId;
  /** Goes where the vendor's API key would be. Worth nothing outside this session. */
  readonly token: string;
  /** Below the gateway's address; followed by a dialect's own path, such as `/v1/chat/completions`. */
  readonly path: string;
  /** A call of a harness in this process: as over HTTP, without a dialect's codec. Rejects `GatewayFailure`. */
  complete(request: TurnRequest, options: { readonly onDelta?: (delta: Delta) => void | Promise<void>; readonly signal: AbortSignal }): Promise<Call>;
  totals(): SessionTotals;
  /** Calls in flight now. */
  readonly inFlight: number;
  /** Told whenever the number changes of calls of whose answers nothing has come yet: what freezes a machine while its model thinks. Returns the unsubscriber. */
  onThinking(listener: (thinking: number) => void): () => void;
  /** No new calls (410); those in flight get `drainMs` to end, then are aborted and logged as incomplete. Resolves when the log has everything. Idempotent. */
  close(drainMs?: number): Promise<SessionTotals>;
}

export interface Gateway {
  /** Where sandboxes reach it: the target of a `Service`. */
  readonly socketPath: string;
  /** Loopback address, `http://127.0.0.1:PORT`; null when it does not listen there. */
  readonly url: string | null;
  /** Rejects `unsupported` for a training session on an upstream without tokens, `upstream_failed` when it cannot be reached. */
  open(options: SessionOptions): Promise<GatewaySession>;
  /** Closes every session and the listeners. */
  close(): Promise<void>;
}

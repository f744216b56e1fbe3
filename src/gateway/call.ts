/** One model call as it went: the unit of the call log, from which traces and samples are made. */
import type { CallId } from "../core/ids.ts";
import type { Answer, Dialect, Sampling } from "./conversation.ts";
import type { RouteFacts } from "./dialects/dialect.ts";
import type { FailureKind } from "./failure.ts";
import type { MessageKey } from "./trace/message-key.ts";
import type { CallTokens, CaptureLevel } from "./upstreams/upstream.ts";

/**
 * - `complete`: the engine finished its answer, and all of it was in the log before the harness saw its end.
 * - `incomplete`: the engine's stream broke off, the harness hung up, or the session was closed meanwhile. Never trained.
 * - `failed`: no answer at all.
 */
export type CallStatus = "complete" | "incomplete" | "failed";

/** What the request said, in the short form that finds the call's place in the trace without decoding the request again. */
export interface ConversationFacts {
  /** `toolsKey` of the request's tools. */
  readonly tools: MessageKey;
  readonly toolCount: number;
  /** `messageKey` of each message, in order. */
  readonly messages: readonly MessageKey[];
  /** A letter a message: `s`ystem, `u`ser, `a`ssistant, `t`ool. */
  readonly roles: string;
  /** The answer was to have a given JSON form. */
  readonly structured: boolean;
}

export interface Call {
  readonly id: CallId;
  /** Position in the session in order of arrival, from 1. The log is in order of ends. */
  readonly number: number;
  /** Arrival, ISO 8601 with milliseconds. */
  readonly at: string;
  readonly durationMs: number;
  /** From arrival to the first piece of the answer; null when none came or it was not streamed by the engine. */
  readonly firstDeltaMs: number | null;
  /** `turn`: a harness in this process, whose request is a `TurnRequest` itself. */
  readonly dialect: Dialect | "turn";
  /** What of the request stood outside its body. */
  readonly route: RouteFacts;
  readonly status: CallStatus;
  readonly failure: { readonly kind: FailureKind; readonly message: string } | null;
  /** The body as the harness sent it, parsed, nothing left out. */
  readonly request: unknown;
  readonly conversation: ConversationFacts;
  /** Model and sampling as used, after the session's own settings. */
  readonly model: string;
  readonly sampling: Sampling;
  /** What the codec and the upstream noted: fields without effect, tries. */
  readonly notes: readonly string[];
  /** As far as it came for an incomplete call; null for a failed one. */
  readonly answer: Answer | null;
  readonly capture: CaptureLevel;
  readonly tokens: CallTokens | null;
  /** How often the stored answer was given out again to a retry of the harness. */
  readonly replays: number;
}

/** What model calls took, as their server counts it. */
export interface Tokens {
  readonly promptTokens: number;
  /** Of these: those that the server says it had cached. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

export function tokensOf({ answer, tokens }: Pick<Call, "answer" | "tokens">): Tokens {
  return { promptTokens: answer?.usage?.promptTokens ?? tokens?.promptIds.length ?? 0, cachedTokens: answer?.usage?.cachedTokens ?? 0, completionTokens: answer?.usage?.completionTokens ?? tokens?.completionIds.length ?? 0 };
}

/** Both together. */
export function plusTokens(a: Tokens, b: Tokens): Tokens {
  return { promptTokens: a.promptTokens + b.promptTokens, cachedTokens: a.cachedTokens + b.cachedTokens, completionTokens: a.completionTokens + b.completionTokens };
}

export const NO_TOKENS: Tokens = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 };

/** What a log need not store again of a call's prompt: its first `kept` ids are the first of the prompt and completion of call number `call`. */
export interface PromptReference {
  readonly call: number;
  readonly kept: number;
}

/** Where a session writes its calls. */
export interface CallSink {
  /**
   * Resolves when the call is durable; rejects when it cannot be, and then the harness gets an error instead of the answer's end. `prompt` names an appended call; null:
   * the prompt shares nothing with any.
   */
  append(call: Call, prompt: PromptReference | null): Promise<void>;
  /** The answer of an appended call was given out again to a retry: `Call.replays` is one more. */
  replayed(number: number): Promise<void>;
  /** It has taken as much as it should of one session: new calls are refused as when a budget is used up. Those under way are still taken. */
  readonly full?: boolean;
}

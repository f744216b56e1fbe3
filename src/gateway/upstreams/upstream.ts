/**
 * An inference server as the gateway uses it: a turn in, an answer with its exact tokens out.
 *
 * An upstream retries nothing that the harness could see twice: a failure before the first byte of an answer may be tried again inside (broken connections), whatever
 * comes after is a `GatewayFailure`. Aborting the signal ends the generation on the server.
 */
import type { Answer, Delta, Message, ToolDefinition, TurnRequest } from "../conversation.ts";

/**
 * What of an answer is known exactly. Training needs `tokens`: prompt ids, sampled ids and one logprob for each. `logprobs`: logprobs without ids. `text`: words only.
 */
export type CaptureLevel = "text" | "logprobs" | "tokens";

/** The tokens of one call, exactly as the engine had them. */
export interface CallTokens {
  readonly promptIds: readonly number[];
  /** Everything that was sampled, stop token included. */
  readonly completionIds: readonly number[];
  /** One for each completion id, natural logarithm, of the distribution that was sampled from; null where the engine gives none. */
  readonly logprobs: readonly number[] | null;
  /**
   * Policy version that sampled each run of completion ids: `[version, count]` pairs in order, whose counts add up to the completion. More than one where the weights
   * changed within the answer.
   */
  readonly versions: readonly (readonly [version: string, count: number])[];
}

export interface Generation {
  readonly answer: Answer;
  readonly tokens: CallTokens | null;
  /** The server's own id of the answer, where it gave one. */
  readonly upstreamId: string | null;
  /** What happened on the way that a reader of the log should know: fields given up, tries. */
  readonly notes: readonly string[];
}

/** Finds what was sampled before: how a rendered prompt extends the recorded tokens instead of spelling them anew. */
export interface TokenHistory {
  /**
   * The longest beginning of `messages` (at least up to an assistant message of ours) that an earlier call under the same tools ended with: how many messages it covers,
   * and the ids of that call's prompt and completion.
   */
  longestPrefix(messages: readonly Message[], tools: readonly ToolDefinition[]): { readonly messages: number; readonly ids: readonly number[] } | null;
}

export interface AnswerProgress {
  add(delta: Delta): void;
  /** The attempt has failed; the next one begins anew. */
  clear(): void;
}

export interface GenerateJob {
  /** With the sampling that is to be used. `model` is the upstream's name of the model. */
  readonly request: TurnRequest;
  /** Unique among all calls; sent where the engine takes one, so that the generation can be aborted by it. */
  readonly requestId: string;
  /** The same for all calls of a session: they go to one endpoint where there are several, which has their beginning in its cache. */
  readonly session?: string;
  /** Waits as long as it takes for a policy that is being updated, instead of being told to come back. */
  readonly patient?: boolean;
  /** Null: the harness does not stream, and the upstream need not. Awaited: a slow harness slows the engine. */
  readonly onDelta: ((delta: Delta) => void | Promise<void>) | null;
  /** Where `onDelta` is null: hears the pieces all the same, of every attempt, although none of them is given out. */
  readonly progress?: AnswerProgress;
  readonly history: TokenHistory | null;
  readonly signal: AbortSignal;
}

export interface UpstreamFacts {
  readonly capture: CaptureLevel;
  /** Why it is not `tokens`, and how to get there; null when it is. */
  readonly reason: string | null;
  /** As the server lists them; null where it does not. */
  readonly models: readonly { readonly id: string; readonly contextTokens: number | null }[] | null;
}

export interface Upstream {
  /** Kind and address for records and people, without keys: `vllm http://127.0.0.1:8000/v1`. */
  readonly name: string;
  /** Asks the server what it can do, with one tiny generation where nothing else tells. Rejects `MwError` `upstream_failed` when it cannot be reached. Remembered. */
  probe(model: string, signal: AbortSignal): Promise<UpstreamFacts>;
  /** Rejects `GatewayFailure`; with the signal's reason when it was aborted. */
  generate(job: GenerateJob): Promise<Generation>;
  /** Tokens of the prompt that `request` becomes; null where the server cannot tell. */
  countTokens(request: TurnRequest, signal: AbortSignal): Promise<number | null>;
  close(): Promise<void>;
}

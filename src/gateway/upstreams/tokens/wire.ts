/** What the endpoints that take token ids have in common: how they are asked, and what each piece of their answers says. */
import type { Sampling, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { isIds } from "../chat/tokens.ts";

export interface TokenAsk {
  readonly model: string;
  readonly requestId: string;
  readonly promptIds: readonly number[];
  readonly sampling: Sampling;
  /** What is left of the answer's length. */
  readonly maxTokens: number;
  readonly endIds: readonly number[];
  /** Alternatives of each token that the harness wants to see; null: none. */
  readonly topLogprobs: number | null;
  readonly responseFormat: TurnRequest["responseFormat"];
  readonly stream: boolean;
}

/** What came since the piece before. */
export interface TokenPiece {
  readonly ids: readonly number[];
  /** As many as `ids`; null where the server gives none. */
  readonly logprobs: readonly number[] | null;
  /** Alternatives by token; null where none came. */
  readonly top: readonly (readonly { readonly id: number; readonly logprob: number }[])[] | null;
  /** Why the answer ended; null before that. `abort`: the server gave up, as it does for new weights. */
  readonly finish: "stop" | "length" | "abort" | "error" | null;
  /** Policy versions of all ids of this request so far; null where the server does not say. */
  readonly versions: readonly (readonly [version: string, count: number])[] | null;
  readonly cachedTokens: number | null;
  readonly upstreamId: string | null;
}

export interface TokenWire {
  readonly base: "root" | "v1";
  readonly path: string;
  body(ask: TokenAsk): unknown;
  /** Reads the events of one answer, or its whole body, in order. Each gives what is new; null for those that say nothing. Throws `upstream` for what is no answer. */
  reader(): (body: Readonly<Record<string, unknown>>) => TokenPiece | null;
}

export const NOTHING_NEW: TokenPiece = { ids: [], logprobs: null, top: null, finish: null, versions: null, cachedTokens: null, upstreamId: null };

/** Names of what every engine knows by the same name. */
export function samplingFields(sampling: Sampling): Record<string, unknown> {
  const fields: Record<string, unknown> = {
    temperature: sampling.temperature,
    top_p: sampling.topP,
    top_k: sampling.topK,
    min_p: sampling.minP,
    presence_penalty: sampling.presencePenalty,
    frequency_penalty: sampling.frequencyPenalty,
    repetition_penalty: sampling.repetitionPenalty,
    stop: sampling.stop.length === 0 ? null : sampling.stop,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}

/** vLLM's `structured_outputs`. */
export function structuredOutputs(format: TurnRequest["responseFormat"]): Record<string, unknown> {
  if (format === null) return {};
  return { structured_outputs: format.type === "json_object" ? { json_object: true } : { json: format.schema } };
}

export function idsOf(value: unknown): readonly number[] {
  if (!isIds(value)) throw new GatewayFailure("upstream", "The model server gave token ids that are none.");
  return value;
}

export function finishOf(value: unknown): TokenPiece["finish"] {
  switch (value) {
    case null:
    case undefined:
      return null;
    case "length":
      return "length";
    case "abort":
    case "error":
      return value;
    default:
      return "stop";
  }
}

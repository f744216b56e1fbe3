/** What a trainer learns from: contiguous token sequences with a mask that says which tokens the policy sampled, and an account of every sampled token. */
import { MwError } from "../../core/errors.ts";
import type { CallKind } from "../trace/trace.ts";

/**
 * - `per-call`: a sample for each call. Exact and simple; long histories are repeated in every sample.
 * - `prefix-merge`: calls whose prompt begins with all tokens of an earlier call share a sample with it; where the tokens do not extend, a new sample starts.
 * - `realign`: as `prefix-merge`, but where only the spelling of a short last answer changed on its way through the harness, the sample goes on with the harness's spelling, and
 *   that answer is not trained (the algorithm of slime's agent rollouts). Fewer samples, a few tokens given up.
 */
export const BUILDERS = ["per-call", "prefix-merge", "realign"] as const;
export type Builder = (typeof BUILDERS)[number];

/**
 * Why sampled tokens are not trained:
 * `incomplete` the answer was cut off by a failure; `no_tokens` the upstream told no ids; `no_logprobs` it told no logprobs; `kind` calls of a kind that is not to be trained;
 * `realigned` the harness spelt the answer anew; `too_long` beyond the length that the trainer takes.
 */
export const DROP_CAUSES = ["incomplete", "no_tokens", "no_logprobs", "kind", "realigned", "too_long"] as const;
export type DropCause = (typeof DROP_CAUSES)[number];

/**
 * Why tokens of a sample have mask 0: `context` nobody sampled them there; `shared` they are trained in an earlier sample; `realigned` see the builder; `inherited` they were sampled
 * before this rollout branched from another one, whose samples train them.
 */
export const MASK_CAUSES = ["context", "shared", "realigned", "inherited"] as const;
export type MaskCause = (typeof MASK_CAUSES)[number];

/** A part of a sample with one origin. `call` is the call that sampled it, or whose prompt first held it. */
export interface Span {
  readonly start: number;
  /** Exclusive. */
  readonly end: number;
  readonly call: number;
  readonly origin: "trained" | MaskCause;
}

/** Arrays have one entry a token. */
export interface Sample {
  readonly tokenIds: Int32Array;
  /** 1: sampled by the policy, to be trained here. */
  readonly lossMask: Uint8Array;
  /** Natural logarithms as the engine returned them; 0 where the mask is 0. */
  readonly logprobs: Float32Array;
  /** Index into `SampleSet.versions`; -1 where the mask is 0. */
  readonly versions: Int32Array;
  /** Tokens before the first with mask 1. */
  readonly promptLength: number;
  /** Leading tokens that an earlier sample of the set has too. */
  readonly sharedLength: number;
  /** In order, without gaps. */
  readonly spans: readonly Span[];
  /** Calls whose answers are in it, in order. */
  readonly calls: readonly number[];
  /** Of the last of them. */
  readonly kind: CallKind;
}

export interface Ledger {
  /** Tokens that the engine sampled in all calls of the session; those of inherited calls count where they were sampled. */
  readonly sampled: number;
  readonly trained: number;
  readonly dropped: Readonly<Record<DropCause, number>>;
  /** Tokens in all samples. */
  readonly tokens: number;
  readonly masked: Readonly<Record<MaskCause, number>>;
}

export interface SampleSet {
  readonly builder: Builder;
  readonly samples: readonly Sample[];
  /** Names of the policy versions. */
  readonly versions: readonly string[];
  readonly ledger: Ledger;
}

/** Trained and dropped tokens make up the sampled ones, trained and masked ones the samples. Anything else is a bug of ours, and nothing may be trained on it. */
export function checkLedger({ sampled, trained, dropped, tokens, masked }: Ledger): void {
  const lost = sampled - trained - sum(dropped);
  const strange = tokens - trained - sum(masked);
  if (lost !== 0 || strange !== 0) throw new MwError("internal", `the account of the samples does not add up: ${lost} sampled tokens and ${strange} tokens of samples are unaccounted for`);
}

function sum(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

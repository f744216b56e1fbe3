/** One sample with everything that a trainer needs to know of the rollout and group that it comes from. */
import type { Sample } from "../../gateway/samples/sample.ts";

/** What is known of a sample beside its arrays. Plain JSON. */
export interface SampleFacts {
  /** `<rollout>/<segment>`. */
  readonly sample: string;
  readonly run: string;
  readonly group: string;
  readonly rollout: string;
  readonly task: string;
  readonly family: string;
  readonly task_digest: string | null;
  readonly attempt: number;
  readonly harness: string;
  readonly seed: string;
  /** Position among the rollout's samples, from 0, and how many they are. */
  readonly segment: number;
  readonly segments: number;
  readonly builder: string;
  /** Of the last call in it: `main`, `branch`, `subagent`, `compaction`. */
  readonly kind: string;
  readonly calls: readonly number[];
  readonly outcome: string;
  readonly stop_reason: string | null;
  /** Of the rollout, the same on all its samples; null unless scored. */
  readonly reward: number | null;
  readonly rewards: Readonly<Record<string, number>>;
  /** 1 / `segments`: what makes all samples of a rollout count as much as one. */
  readonly weight: number;
  readonly prompt_length: number;
  /** Leading tokens that an earlier sample of the rollout has too. */
  readonly shared_length: number;
  /** What the entries of `versions` stand for. */
  readonly version_names: readonly string[];
}

/** Arrays of one length: token ids, mask, logprobs, and index into `version_names` (-1 where the mask is 0). */
export type SampleArrays = Pick<Sample, "tokenIds" | "lossMask" | "logprobs" | "versions">;

export interface SampleRow {
  readonly facts: SampleFacts;
  readonly arrays: SampleArrays;
}

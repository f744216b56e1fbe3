/** From delivered groups to the arrays of one training step. */
import type { DeliveredGroup, DeliveredSample } from "../../delivery/delivery.ts";
import { MwError } from "../../core/errors.ts";
import type { ModelShape } from "../model/shape.ts";

/** Rows of `length` numbers; everything beyond what was trained is 0. */
export interface Batch {
  readonly rows: number;
  readonly length: number;
  readonly inputs: Int32Array;
  readonly targets: Int32Array;
  /** Of the policy that sampled. */
  readonly sampled: Float32Array;
  /** See `ObjectiveInputs`; 1 in sum. */
  readonly shares: Float32Array;
  /** By row. */
  readonly advantages: Float32Array;
  readonly inverseTemperatures: Float32Array;
  /** Tokens that are trained. */
  readonly tokens: number;
}

/** Rows and lengths come in steps: a compiled program is for one form. */
const ROW_STEP = 16;
const LENGTH_STEP = 8;
/** Keeps groups that differ by almost nothing from being blown up. */
const SPREAD_EPSILON = 1e-4;

/** Null when no token of the groups is to be trained. Rejects samples that this policy cannot have sampled. */
export function batchOf(shape: ModelShape, groups: readonly DeliveredGroup[]): Batch | null {
  const weighted = groups.flatMap((group) => {
    const advantages = advantagesOf(group);
    return group.samples.flatMap((sample) => {
      const advantage = sample.facts.usable ? advantages.get(sample.facts.rollout_id) : undefined;
      return advantage === undefined || !sample.arrays.lossMask.includes(1) ? [] : [{ sample, advantage }];
    });
  });
  if (weighted.length === 0) return null;
  // The last token is never read.
  const longest = Math.max(...weighted.map(({ sample }) => sample.arrays.tokenIds.length - 1));
  if (longest > shape.context) throw new MwError("invalid_input", `a sample of ${longest + 1} tokens was delivered to a policy with a context of ${shape.context}`, { fix: "these samples are of another policy: train that one" });
  const rows = Math.ceil(weighted.length / ROW_STEP) * ROW_STEP;
  const length = Math.min(shape.context, Math.ceil(longest / LENGTH_STEP) * LENGTH_STEP);
  const batch = {
    rows,
    length,
    inputs: new Int32Array(rows * length),
    targets: new Int32Array(rows * length),
    sampled: new Float32Array(rows * length),
    shares: new Float32Array(rows * length),
    advantages: new Float32Array(rows),
    inverseTemperatures: new Float32Array(rows).fill(1),
  };
  let tokens = 0;
  let total = 0;
  for (const [row, { sample, advantage }] of weighted.entries()) {
    batch.advantages[row] = advantage;
    batch.inverseTemperatures[row] = 1 / temperatureOf(sample);
    const { tokenIds, lossMask, logprobs } = sample.arrays;
    for (let at = 0; at + 1 < tokenIds.length; at++) {
      const cell = row * length + at;
      batch.inputs[cell] = checked(tokenIds[at], shape.vocabulary, 0);
      if (lossMask[at + 1] !== 1) continue;
      batch.targets[cell] = checked(tokenIds[at + 1], shape.spoken, shape.spokenFrom);
      batch.sampled[cell] = logprobs[at + 1] ?? 0;
      batch.shares[cell] = sample.facts.weight;
      total += sample.facts.weight;
      tokens++;
    }
  }
  for (let cell = 0; cell < batch.shares.length; cell++) batch.shares[cell] = (batch.shares[cell] ?? 0) / total;
  return { ...batch, tokens };
}

/**
 * By rollout: how much better it was than its group, in units of the group's spread. A rollout counts once, however many samples it was cut into; what is not usable or has no reward counts
 * nowhere. Groups that are all equal give 0.
 */
export function advantagesOf({ samples }: Pick<DeliveredGroup, "samples">): ReadonlyMap<string, number> {
  const rewards = new Map<string, number>();
  for (const { facts } of samples) if (facts.usable && facts.reward !== null) rewards.set(facts.rollout_id, facts.reward);
  const values = [...rewards.values()];
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const spread = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
  return new Map([...rewards].map(([rollout, reward]) => [rollout, spread < SPREAD_EPSILON ? 0 : (reward - mean) / (spread + SPREAD_EPSILON)]));
}

function temperatureOf({ facts }: DeliveredSample): number {
  const { temperature, top_p: topP } = facts;
  if (temperature === 0 || (topP !== null && topP !== 1)) {
    throw new MwError("invalid_input", `sample ${facts.sample_id} was sampled at temperature ${String(temperature)} with top-p ${String(topP)}: the trainer corrects for temperatures above 0 only`, { fix: "sample with top-p 1 and a temperature above 0" });
  }
  return temperature ?? 1;
}

function checked(id: number | undefined, size: number, from: number): number {
  if (id === undefined || id < from || id >= from + size) throw new MwError("invalid_input", `token ${String(id)} is not of this policy's vocabulary`, { fix: "these samples are of another policy: train that one" });
  return id - from;
}

import { describe, expect, it } from "vitest";
import { decodedDistributions, groupOf, sampleOf, TINY, tinyParameters } from "../../../test/support/trainer.ts";
import type { DeliveredGroup } from "../../delivery/delivery.ts";
import type { Parameters } from "../model/shape.ts";
import { adamUpdate, initialAdam } from "./adam.ts";
import { advantagesOf, batchOf, type Batch } from "./batch.ts";
import { loadJax } from "./jax.ts";
import { Learner, type LearningRules } from "./learner.ts";

const RULES: LearningRules = { clipLow: 0.2, clipHigh: 0.3, kl: 0.5, entropy: 0.1, entropySteps: 10, learningRate: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, gradientNorm: 1, epochs: 2, correctionCap: 1.5 };
const jax = await loadJax();

const SAMPLES = [
  { rollout: "a", prompt: [0, 5, 1], answer: [4, 6, 9], reward: 1, logprobs: [-1.6, -2.4, -1.1] },
  { rollout: "b", prompt: [0, 5, 1, 2], answer: [7, 4], reward: 0, logprobs: [-1.2, -3], temperature: 0.7 },
  { rollout: "c", prompt: [3], answer: [8, 8, 5, 4], reward: 0.5, weight: 0.5 },
] as const;
const GROUPS: readonly DeliveredGroup[] = [groupOf("g", SAMPLES.map(sampleOf))];

function batch(groups = GROUPS): Batch {
  const made = batchOf(TINY, groups);
  if (made === null) throw new Error("nothing to train");
  return made;
}

function learner(parameters = tinyParameters(), rules = RULES, reference = tinyParameters("reference")): Learner {
  return new Learner(jax, TINY, rules, { parameters, adam: initialAdam(parameters) }, reference);
}

/** The rows of the batch that hold samples, and the cells that are trained. */
function trainedCells({ shares, length }: Batch): { readonly row: number; readonly cell: number }[] {
  return [...shares.entries()].flatMap(([cell, share]) => (share === 0 ? [] : [{ row: Math.floor(cell / length), cell }]));
}

describe("the two forward passes", () => {
  it("give the same log-probabilities, at every temperature and length", async () => {
    const logprobs = await learner().logprobs(batch());
    const expected = SAMPLES.flatMap((sample) =>
      decodedDistributions(TINY, tinyParameters(), sample.prompt, sample.answer, "temperature" in sample ? sample.temperature : 1).map((all, at) => all[(sample.answer[at] ?? 0) - TINY.spokenFrom]),
    );
    const cells = trainedCells(batch());
    expect(cells.length).toBe(9);
    for (const [at, { cell }] of cells.entries()) expect(logprobs[cell]).toBeCloseTo(expected[at] ?? Number.NaN, 4);
  });
});

/** The objective in 64 bits and in other words, over the other forward pass; entropy and all. */
function lossOf(parameters: Parameters<Float64Array>, { old, reference, corrections }: Readonly<Record<"old" | "reference" | "corrections", Float32Array>>, of: Batch): number {
  const advantages = advantagesOf(GROUPS[0] as DeliveredGroup);
  const cells = trainedCells(of);
  let loss = 0;
  let next = 0;
  for (const sample of SAMPLES) {
    const advantage = advantages.get(sample.rollout) ?? 0;
    const positions = decodedDistributions(TINY, parameters, sample.prompt, sample.answer, "temperature" in sample ? sample.temperature : 1);
    for (const [at, all] of positions.entries()) {
      const { cell } = cells[next++] ?? { cell: -1 };
      const logprob = all[(sample.answer[at] ?? 0) - TINY.spokenFrom] ?? Number.NaN;
      const ratio = Math.exp(logprob - (old[cell] ?? 0));
      const clipped = Math.min(Math.max(ratio, 1 - RULES.clipLow), 1 + RULES.clipHigh);
      const behind = (reference[cell] ?? 0) - logprob;
      const entropy = -all.reduce((sum, value) => sum + Math.exp(value) * value, 0);
      const term = -Math.min(ratio * advantage, clipped * advantage) * (corrections[cell] ?? 0) + RULES.kl * (Math.exp(behind) - behind - 1) - RULES.entropy * entropy;
      loss += term * (of.shares[cell] ?? 0);
    }
  }
  return loss;
}

describe("the objective", () => {
  const of = batch();
  const wiggle = (from: Float32Array, by: number): Float32Array => from.map((value, at) => value + by * Math.sin(at));

  it("is that of an independent computation, and its gradients are its finite differences", async () => {
    const one = learner();
    const now = await one.logprobs(of);
    // Ratios on both sides of the clip.
    const given = { old: wiggle(now, 0.4), reference: wiggle(now, 0.7), corrections: wiggle(new Float32Array(now.length).fill(1), 0.3) };
    const { loss, gradients } = await one.gradient(of, given, RULES.entropy);
    const exact = new Map([...tinyParameters()].map(([name, values]) => [name, Float64Array.from(values)]));
    expect(loss).toBeCloseTo(lossOf(exact, given, of), 4);
    const step = 1e-5;
    let compared = 0;
    for (const [name, values] of exact) {
      // Some of each; those of tokens and places that are not there are 0.
      for (let at = 0; at < values.length; at += Math.max(1, Math.floor(values.length / 7))) {
        const before = values[at] ?? 0;
        values[at] = before + step;
        const above = lossOf(exact, given, of);
        values[at] = before - step;
        const below = lossOf(exact, given, of);
        values[at] = before;
        const slope = (above - below) / (2 * step);
        expect(Math.abs((gradients.get(name)?.[at] ?? Number.NaN) - slope), `${name}[${at}]`).toBeLessThan(2e-4 + 2e-3 * Math.abs(slope));
        if (Math.abs(slope) > 1e-3) compared++;
      }
    }
    expect(compared).toBeGreaterThan(40);
  });

  it("makes the better answer likelier and the worse one less likely", async () => {
    const one = learner(tinyParameters(), { ...RULES, kl: 0, entropy: 0 });
    const mean = async (row: number): Promise<number> => {
      const logprobs = await one.logprobs(of);
      return trainedCells(of).reduce((sum, { row: at, cell }) => sum + (at === row ? (logprobs[cell] ?? 0) : 0), 0);
    };
    const before = [await mean(0), await mean(1)] as const;
    for (let step = 0; step < 5; step++) await one.step(of, 0);
    expect(await mean(0)).toBeGreaterThan(before[0]);
    expect(await mean(1)).toBeLessThan(before[1]);
  });

  it("cuts importance weights, and says how many and how far the policy had moved on", async () => {
    const facts = await learner().step(of, 0);
    expect(facts.truncated).toBeGreaterThan(0);
    expect(facts.truncated).toBeLessThan(1);
    expect(facts.drift).not.toBe(0);
    expect(facts.gradientNorm).toBeGreaterThan(0);
  });

  it("computes the same bits from the same state and batches, also when it is taken up in between", async () => {
    const whole = learner();
    for (let step = 0; step < 4; step++) await whole.step(of, 0);
    const begun = learner();
    for (let step = 0; step < 2; step++) await begun.step(of, 0);
    const { parameters, adam } = begun.state;
    const goesOn = new Learner(jax, TINY, RULES, { parameters, adam }, tinyParameters("reference"));
    for (let step = 0; step < 2; step++) await goesOn.step(of, 0);
    expect(goesOn.state).toEqual(whole.state);
    expect(goesOn.state.parameters).not.toEqual(tinyParameters());
  });
});

describe("batches", () => {
  it("normalise rewards within their group, by rollout, however many samples it has", () => {
    const group = groupOf("g", [sampleOf({ ...SAMPLES[0], rollout: "x" }), sampleOf({ ...SAMPLES[0], rollout: "x" }), sampleOf({ ...SAMPLES[1], rollout: "y" })]);
    const advantages = advantagesOf(group);
    expect(advantages.get("x")).toBeCloseTo(1, 3);
    expect(advantages.get("y")).toBeCloseTo(-1, 3);
    expect([...advantagesOf(groupOf("g", [sampleOf({ ...SAMPLES[0], rollout: "x" }), sampleOf({ ...SAMPLES[0], rollout: "y" })])).values()]).toEqual([0, 0]);
    expect(advantagesOf(groupOf("g", [])).size).toBe(0);
  });

  it("weigh every trained token by its sample, and nothing else", () => {
    const of = batch();
    expect(of.shares.reduce((sum, share) => sum + share, 0)).toBeCloseTo(1, 6);
    expect(of.tokens).toBe(9);
    expect(of.rows).toBe(16);
    expect(of.length).toBe(8);
    const weights = [...new Set(trainedCells(of).map(({ cell }) => of.shares[cell]))].toSorted((a = 0, b = 0) => a - b) as [number, number];
    expect(weights[1] / weights[0]).toBeCloseTo(2, 5);
  });

  it("leave out what has no reward, and are none without anything to train", () => {
    expect(batchOf(TINY, [groupOf("g", [sampleOf({ ...SAMPLES[0], reward: null })])])).toBeNull();
    expect(batchOf(TINY, [])).toBeNull();
  });

  it("refuse samples of another policy", () => {
    const refused = (sample: SampleParts): string => {
      try {
        batch([groupOf("g", [sampleOf(sample)])]);
        return "";
      } catch (error) {
        return String(error);
      }
    };
    expect(refused({ ...SAMPLES[0], answer: [3] })).toContain("token 3");
    expect(refused({ ...SAMPLES[0], prompt: [99] })).toContain("token 99");
    expect(refused({ ...SAMPLES[0], prompt: Array.from({ length: 40 }, () => 0) })).toContain("context of 16");
    expect(refused({ ...SAMPLES[0], temperature: 0 })).toContain("temperature 0");
  });
});

type SampleParts = globalThis.Parameters<typeof sampleOf>[0];

describe("Adam", () => {
  const values = (...numbers: number[]): Parameters => new Map([["w", Float32Array.from(numbers)]]);

  it("takes steps of the learning rate against the gradient, whatever its size", () => {
    const start = values(1, -1, 3);
    const { parameters, state } = adamUpdate(start, values(1e-3, -1e-3, 0), initialAdam(start), RULES);
    expect([...(parameters.get("w") ?? [])].map((value) => Math.round(value * 1e4) / 1e4)).toEqual([0.99, -0.99, 3]);
    expect(state.count).toBe(1);
    expect([...(start.get("w") ?? [])]).toEqual([1, -1, 3]);
  });

  it("bounds the gradient's norm, and changes nothing by one that is not finite", () => {
    const start = values(0, 0);
    const bounded = adamUpdate(start, values(30, 40), initialAdam(start), RULES);
    expect(bounded.norm).toBeCloseTo(50);
    expect(bounded.state.first.get("w")?.[1]).toBeCloseTo(0.1 * 0.8, 6);
    expect(adamUpdate(start, values(Number.NaN, 1), initialAdam(start), RULES)).toMatchObject({ parameters: start, state: { count: 0 } });
  });
});

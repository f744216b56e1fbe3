import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { seededRandom } from "../core/runtime.ts";
import { bootstrapMean, meanOf, passAtK, summarise, wilson, type Sample } from "./statistics.ts";

/** n attempts of which c pass, and k of them. */
const attempts = fc.integer({ min: 1, max: 9 }).chain((n) => fc.tuple(fc.constant(n), fc.integer({ min: 0, max: n }), fc.integer({ min: 1, max: n })));

describe("pass@k", () => {
  it("is the share of all choices of k attempts with at least one that passes", () => {
    fc.assert(
      fc.property(attempts, ([n, c, k]) => {
        let choices = 0;
        let passing = 0;
        for (let set = 0; set < 2 ** n; set++) {
          const chosen = Array.from({ length: n }, (_, i) => i).filter((i) => (set >> i) & 1);
          if (chosen.length !== k) continue;
          choices++;
          if (chosen.some((i) => i < c)) passing++;
        }
        expect(passAtK(n, c, k)).toBeCloseTo(passing / choices, 12);
      }),
    );
  });

  it("grows with k and with c", () => {
    fc.assert(
      fc.property(attempts, ([n, c, k]) => {
        expect(passAtK(n, c, Math.min(n, k + 1))).toBeGreaterThanOrEqual(passAtK(n, c, k) - 1e-12);
        expect(passAtK(n, Math.min(n, c + 1), k)).toBeGreaterThanOrEqual(passAtK(n, c, k) - 1e-12);
        expect(passAtK(n, c, 1)).toBeCloseTo(c / n, 12);
        expect(passAtK(n, c, n)).toBe(c > 0 ? 1 : 0);
      }),
    );
  });

  it("holds for thousands of attempts, and exists only for k up to n", () => {
    expect(passAtK(4096, 1, 1)).toBeCloseTo(1 / 4096, 12);
    expect(passAtK(4096, 40, 100)).toBeCloseTo(1 - (1 - 40 / 4096) ** 100, 2);
    for (const [n, c, k] of [
      [3, 1, 4],
      [3, 4, 1],
      [3, -1, 1],
      [3, 1, 0],
      [3, 1, 1.5],
      [0, 0, 1],
    ] as const) expect(() => passAtK(n, c, k)).toThrow(RangeError);
  });
});

describe("Wilson's interval", () => {
  it("has the values of the textbook", () => {
    // 15 of 50: 19.1 % to 43.8 %.
    expect(wilson(15, 50)).toMatchObject({ estimate: 0.3, low: expect.closeTo(0.191, 3) as unknown, high: expect.closeTo(0.438, 3) as unknown });
    expect(wilson(0, 10)).toMatchObject({ low: 0, high: expect.closeTo(0.2775, 4) as unknown });
    expect(wilson(10, 10)).toMatchObject({ low: expect.closeTo(0.7225, 4) as unknown, high: 1 });
  });

  it("holds its estimate, lies in [0, 1], mirrors, and narrows with more trials", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 500 }), fc.double({ min: 0, max: 1, noNaN: true }), (trials, share) => {
        const successes = Math.round(share * trials);
        const { estimate, low, high } = wilson(successes, trials);
        expect(low).toBeGreaterThanOrEqual(0);
        expect(low).toBeLessThanOrEqual(estimate);
        expect(high).toBeGreaterThanOrEqual(estimate);
        expect(high).toBeLessThanOrEqual(1);
        expect(wilson(trials - successes, trials).low).toBeCloseTo(1 - high, 10);
        const more = wilson(successes * 4, trials * 4);
        expect(more.high - more.low).toBeLessThan(high - low);
      }),
    );
  });
});

describe("the bootstrap", () => {
  it("holds the mean, stays within the values, and depends on nothing but values and seed", () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1, maxLength: 30 }), fc.string(), (values, seed) => {
        const interval = bootstrapMean(values, seed, 100);
        expect(bootstrapMean(values.toReversed(), seed, 100)).toEqual(interval);
        expect(interval.low).toBeLessThanOrEqual(interval.estimate);
        expect(interval.high).toBeGreaterThanOrEqual(interval.estimate);
        expect(interval.low).toBeGreaterThanOrEqual(Math.min(...values) - 1e-12);
        expect(interval.high).toBeLessThanOrEqual(Math.max(...values) + 1e-12);
      }),
    );
  });

  it("covers the true mean about as often as it says", () => {
    const random = seededRandom("coverage");
    let covered = 0;
    for (let trial = 0; trial < 400; trial++) {
      const values = Array.from({ length: 40 }, () => (random() < 0.3 ? 1 : random() / 2));
      const { low, high } = bootstrapMean(values, `${trial}`, 400);
      // 0.3 * 1 + 0.7 * 0.25
      if (low <= 0.475 && 0.475 <= high) covered++;
    }
    expect(covered / 400).toBeGreaterThan(0.89);
    expect(covered / 400).toBeLessThan(0.985);
  });
});

describe("the mean", () => {
  it("has the textbook's standard error", () => {
    expect(meanOf([2, 4, 4, 4, 5, 5, 7, 9])).toEqual({ mean: 5, standardError: expect.closeTo(Math.sqrt(32 / 7 / 8), 12) as unknown, count: 8 });
    expect(meanOf([3])).toEqual({ mean: 3, standardError: null, count: 1 });
    expect(meanOf([])).toEqual({ mean: null, standardError: null, count: 0 });
  });
});

const scored = (task: string, family: string, ...rewards: readonly number[]): Sample[] => rewards.map((reward) => ({ task, family, outcome: "scored", reward }));

describe("a summary", () => {
  it("weighs tasks equally and leaves out what was not scored", () => {
    const samples: Sample[] = [
      ...scored("a", "x", 1, 0, 0, 1),
      ...scored("b", "x", 1),
      { task: "b", family: "x", outcome: "sandbox_error", reward: null },
      { task: "c", family: "y", outcome: "model_error", reward: null },
      { task: "c", family: "y", outcome: null, reward: null },
    ];
    const { overall, families, tasks } = summarise(samples, { seed: "1" });
    expect(overall).toMatchObject({ rollouts: 8, scored: 5, reward: { mean: 0.75, standardError: 0.25, count: 2 } });
    expect(overall.passAtK.map(({ k, estimate, tasks: used, method }) => [k, estimate, used, method])).toEqual([
      [1, 0.75, 2, "bootstrap"],
      [2, expect.closeTo(5 / 6, 12), 1, "wilson"],
      [4, 1, 1, "wilson"],
    ]);
    expect(overall.outcomes.map(({ outcome, count }) => [outcome, count])).toEqual([
      ["scored", 5],
      ["(not done)", 1],
      ["model_error", 1],
      ["sandbox_error", 1],
    ]);
    expect(families.map(({ name, reward }) => [name, reward.mean])).toEqual([
      ["x", 0.75],
      ["y", null],
    ]);
    expect(tasks.map(({ name, family, reward, scored: count }) => [name, family, reward.mean, count])).toEqual([
      ["a", "x", 0.5, 4],
      ["b", "x", 1, 1],
      ["c", "y", null, 0],
    ]);
    expect(tasks[0]?.reward.standardError).toBeCloseTo(Math.sqrt(1 / 3 / 4), 12);
    expect(tasks[2]?.passAtK).toEqual([]);
  });

  it("is not certain because all tasks agree", () => {
    const all = summarise(["a", "b", "c", "d"].flatMap((task) => scored(task, "x", 1, 1))).overall.passAtK;
    expect(all.map(({ k, estimate, high, method }) => [k, estimate, high, method])).toEqual([
      [1, 1, 1, "wilson"],
      [2, 1, 1, "wilson"],
    ]);
    for (const { low } of all) expect(low).toBeCloseTo(wilson(4, 4).low, 12);
  });

  it("counts partial rewards as passes from the given reward on", () => {
    const samples = scored("a", "x", 0.5, 0.9, 1, 1.5);
    expect(summarise(samples, { ks: [1] }).overall.passAtK[0]?.estimate).toBe(0.5);
    expect(summarise(samples, { ks: [1], passReward: 0.9 }).overall.passAtK[0]?.estimate).toBe(0.75);
  });

  it("does not depend on the order of the rollouts", () => {
    const sample = fc.record({ task: fc.constantFrom("a", "b", "c"), family: fc.constant("f"), outcome: fc.constantFrom("scored", "sandbox_error", null), reward: fc.option(fc.double({ min: 0, max: 1, noNaN: true })) });
    fc.assert(
      fc.property(fc.array(sample, { maxLength: 20 }), fc.nat(), (samples, shift) => {
        const at = samples.length === 0 ? 0 : shift % samples.length;
        const turned = [...samples.slice(at), ...samples.slice(0, at)].toReversed();
        expect(summarise(turned, { seed: "s", resamples: 50 })).toEqual(summarise(samples, { seed: "s", resamples: 50 }));
      }),
    );
  });

  it("is quick for many tasks", () => {
    const samples = Array.from({ length: 40_000 }, (_, i): Sample => ({ task: `t${i % 20_000}`, family: "f", outcome: "scored", reward: i % 3 === 0 ? 1 : 0 }));
    const startedAt = performance.now();
    const [first] = summarise(samples).overall.passAtK;
    expect(first).toMatchObject({ method: "normal", tasks: 20_000, estimate: expect.closeTo(1 / 3, 4) as unknown });
    expect(performance.now() - startedAt).toBeLessThan(30_000);
  });

  it("of nothing is empty", () => {
    expect(summarise([])).toEqual({ overall: { rollouts: 0, scored: 0, reward: { mean: null, standardError: null, count: 0 }, passAtK: [], outcomes: [], dollars: null }, families: [], tasks: [] });
  });
});

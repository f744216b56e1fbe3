import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { costOf, costOfPhase, totalCost, type Prices } from "./cost.ts";
import { PHASES } from "./rollout-state.ts";

const PRICES: Prices = { input: 2, cached: 0.5, output: 8, machine: 0.36 };

describe("the cost of a rollout", () => {
  it("is that of its tokens, cached ones at their own price, and of the time of its machine", () => {
    const rollout = { promptTokens: 1_000_000, cachedTokens: 400_000, completionTokens: 50_000, stopReason: "finished" as const, phaseMs: { admitted: 3_600_000, leased: 10_000, running: 80_000, collected: 10_000 } };
    expect(costOf(rollout, PRICES)).toEqual({ total: 1.2 + 0.2 + 0.4 + 0.01, input: 1.2, cached: 0.2, output: 0.4, machine: 0.01 });
  });

  it("is not known of an agent that came to no end", () => {
    const nothing = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 };
    const dead = { ...nothing, stopReason: null, phaseMs: { leased: 1, running: 3_600_000 } };
    const neverBegun = { ...nothing, stopReason: null, phaseMs: { admitted: 5 } };
    expect(totalCost([dead, neverBegun], { ...PRICES, machine: 1 })).toMatchObject({ unknown: 1, input: 0, output: 0, machine: expect.closeTo(1) as number });
  });

  it("is what its phases cost together, and a run's is what its rollouts' parts do", () => {
    const used = fc.record({ promptTokens: fc.nat({ max: 1e6 }), completionTokens: fc.nat({ max: 1e6 }), running: fc.nat({ max: 1e7 }), admitted: fc.nat({ max: 1e7 }), collected: fc.nat({ max: 1e7 }), share: fc.double({ min: 0, max: 1, noNaN: true }) }).map(({ promptTokens, completionTokens, share, ...phaseMs }) => ({ promptTokens, cachedTokens: Math.floor(share * promptTokens), completionTokens, stopReason: "finished" as const, phaseMs }));
    fc.assert(
      fc.property(fc.array(used, { minLength: 1, maxLength: 8 }), (rollouts) => {
        const { total, unknown, ...parts } = totalCost(rollouts, PRICES);
        expect(unknown).toBe(0);
        const phases = rollouts.flatMap((rollout) => PHASES.map((phase) => costOfPhase(phase, rollout, PRICES)));
        for (const sum of [Object.values(parts), phases, rollouts.map((rollout) => costOf(rollout, PRICES).total)]) expect(sum.reduce((a, b) => a + b, 0)).toBeCloseTo(total, 9);
      }),
    );
  });
});

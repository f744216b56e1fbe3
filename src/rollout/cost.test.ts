import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { costOf, costOfPhase, tokensUsed, totalCost, type Prices } from "./cost.ts";
import { PHASES } from "./rollout-state.ts";

const PRICES: Prices = { input: 2, cached: 0.5, output: 8, machine: 0.36 };

const UNUSED = { promptTokens: 0, cachedTokens: 0, completionTokens: 0, uncounted: false, phaseMs: {}, thrownAway: { tries: 0, promptTokens: 0, cachedTokens: 0, completionTokens: 0, machineMs: 0, uncounted: 0 } };

describe("the cost of a rollout", () => {
  it("is that of its tokens, cached ones at their own price, and of the time of its machine", () => {
    const rollout = { ...UNUSED, promptTokens: 1_000_000, cachedTokens: 400_000, completionTokens: 50_000, phaseMs: { admitted: 3_600_000, leased: 10_000, running: 80_000, collected: 10_000 } };
    expect(costOf(rollout, PRICES)).toEqual({ total: 1.2 + 0.2 + 0.4 + 0.01, thrownAway: 0, input: 1.2, cached: 0.2, output: 0.4, machine: 0.01 });
  });

  it("has in it what tries took that do not stand, and says how much that is", () => {
    const thrownAway = { tries: 2, promptTokens: 1_000_000, cachedTokens: 500_000, completionTokens: 0, machineMs: 100_000, uncounted: 0 };
    const rollout = { ...UNUSED, completionTokens: 50_000, thrownAway };
    expect(costOf(rollout, PRICES)).toEqual({ total: expect.closeTo(1.66) as number, thrownAway: expect.closeTo(1.26) as number, input: 1, cached: 0.25, output: 0.4, machine: 0.01 });
    expect(tokensUsed([rollout, UNUSED, rollout])).toEqual({ promptTokens: 2_000_000, cachedTokens: 1_000_000, completionTokens: 100_000, thrownAway: { tries: 4, promptTokens: 2_000_000, cachedTokens: 1_000_000, completionTokens: 0, machineMs: 200_000, uncounted: 0 } });
  });

  it("is not known of an agent of which nobody knows what it asked for", () => {
    const dead = { ...UNUSED, uncounted: true, phaseMs: { leased: 1, running: 3_600_000 } };
    const deadBefore = { ...UNUSED, thrownAway: { ...UNUSED.thrownAway, tries: 1, uncounted: 1 } };
    expect(totalCost([dead, deadBefore, UNUSED], { ...PRICES, machine: 1 })).toMatchObject({ unknown: 2, input: 0, output: 0, machine: expect.closeTo(1) as number });
  });

  it("is what its phases and the tries before cost together, and a run's is what its rollouts' parts do", () => {
    const tokens = { promptTokens: fc.nat({ max: 1e6 }), completionTokens: fc.nat({ max: 1e6 }) };
    const before = fc.record({ ...tokens, machineMs: fc.nat({ max: 1e7 }) }).map((some) => Object.assign({ tries: 1, cachedTokens: 0, uncounted: 0 }, some));
    const used = fc.record({ ...tokens, thrownAway: before, running: fc.nat({ max: 1e7 }), admitted: fc.nat({ max: 1e7 }), collected: fc.nat({ max: 1e7 }), share: fc.double({ min: 0, max: 1, noNaN: true }) }).map(({ promptTokens, completionTokens, thrownAway, share, ...phaseMs }) => ({ promptTokens, cachedTokens: Math.floor(share * promptTokens), completionTokens, uncounted: false, thrownAway, phaseMs }));
    fc.assert(
      fc.property(fc.array(used, { minLength: 1, maxLength: 8 }), (rollouts) => {
        const { total, thrownAway, unknown, ...parts } = totalCost(rollouts, PRICES);
        expect(unknown).toBe(0);
        const phases = rollouts.flatMap((rollout) => PHASES.map((phase) => costOfPhase(phase, rollout, PRICES)));
        for (const sum of [Object.values(parts), [...phases, thrownAway], rollouts.map((rollout) => costOf(rollout, PRICES).total)]) expect(sum.reduce((a, b) => a + b, 0)).toBeCloseTo(total, 9);
      }),
    );
  });
});

/** What becomes of a group: every mix of ends under every rule. */
import * as fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { failedEnd, scoredEnd } from "../../test/support/delivery/simulated-worker.ts";
import { SimulatedRun, type SimulatedRunOptions } from "../../test/support/delivery/simulated-run.ts";
import { leaseRequestSchema, type LeaseRequest, type PolicyUpdate } from "./contract.ts";
import type { DeliveredGroup } from "./delivery.ts";
import { minUsable } from "./group-run.ts";
import type { MemberEnd, MemberJob } from "./worker.ts";

const POLICY: PolicyUpdate = { version: 0, state: "live", model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] };
const never = new AbortController().signal;
const now: LeaseRequest = leaseRequestSchema.parse({ max_groups: 4096 });

/** Ways for a rollout to end, of which only the first is of any use. */
const KINDS = ["good", "nan_reward", "nan_logprob", "no_samples", "uneven", "untrained", "verifier_error", "sandbox_error", "permanent", "throws", "hangs"] as const;
type Kind = (typeof KINDS)[number];

function endOf(kind: Kind, job: MemberJob, startedAt: number, endedAt: number, version: number): MemberEnd {
  const good = scoredEnd(job, { startedAt, endedAt, reward: job.member, prompt: 4, sampled: 6, versionMin: version, versionMax: version, segments: 2 });
  const [first, second] = good.samples;
  if (first === undefined || second === undefined) throw new Error("two segments");
  const withArrays = (arrays: Partial<(typeof first)["arrays"]>): MemberEnd => ({ ...good, samples: [first, { ...second, arrays: { ...second.arrays, ...arrays } }] });
  switch (kind) {
    case "good":
      return good;
    case "nan_reward":
      return { ...good, reward: Number.NaN };
    case "nan_logprob":
      return withArrays({ logprobs: new Float32Array(10).fill(Number.NaN) });
    case "no_samples":
      return { ...good, samples: [] };
    case "uneven":
      return withArrays({ versions: new Int32Array(3) });
    case "untrained":
      return withArrays({ lossMask: new Uint8Array(10) });
    case "verifier_error":
      return failedEnd(job, "verifier_error", "no_reward", startedAt, endedAt);
    case "sandbox_error":
      return failedEnd(job, "sandbox_error", "sandbox_gone", startedAt, endedAt);
    case "permanent":
      return failedEnd(job, "task_error", "image_failed", startedAt, endedAt, true);
    case "throws":
      throw new Error("a bug of the worker");
    case "hangs":
      return good;
  }
}

/** `kinds[member][attempt]`; the last holds for all further attempts. */
function draws(kinds: readonly (readonly Kind[])[], durations: readonly number[]): SimulatedRunOptions["draw"] {
  return (job) => {
    const ofMember = kinds[job.member % kinds.length] ?? ["good"];
    const kind = ofMember[Math.min(job.attempt, ofMember.length - 1)] ?? "good";
    return {
      durationMs: kind === "hangs" ? 10_000_000 : (durations[(job.member * 7 + job.attempt * 3) % durations.length] ?? 1),
      end: ({ startedAt, endedAt, version }) => endOf(kind, job, startedAt, endedAt, version),
    };
  };
}

let run: SimulatedRun | null = null;
afterEach(async () => {
  await run?.close();
  run = null;
});

/** The one end of a group that was submitted: delivered, or a line of the terminal log. */
async function endOfGroup(options: SimulatedRunOptions, size: number): Promise<{ readonly delivered: DeliveredGroup | null; readonly failed: boolean }> {
  run = await SimulatedRun.open(options);
  try {
    const { service } = run;
    await service.setPolicy(POLICY);
    await service.submit([{ group_id: "g", task: "/t", size, deadline_s: 1000 }]);
    await run.advance(1_000_001);
    const { groups } = await service.lease(now, never);
    const log = await service.terminal(0, 10);
    expect(groups.length + log.length).toBe(1);
    expect(run.worker.running).toBe(0);
    return { delivered: groups[0] ?? null, failed: log[0]?.outcome === "failed" };
  } finally {
    await run.close();
    run = null;
  }
}

const kind = fc.oneof({ weight: 3, arbitrary: fc.constant<Kind>("good") }, fc.constantFrom(...KINDS));
const rule = fc.oneof(
  fc.constant({ rule: "require_all" as const }),
  fc.record({ rule: fc.constant("min_usable" as const), min: fc.option(fc.integer({ min: 1, max: 6 }), { nil: null }) }),
  fc.record({ rule: fc.constant("replace_then_min_usable" as const), replacements: fc.integer({ min: 1, max: 3 }), min: fc.option(fc.integer({ min: 1, max: 6 }), { nil: null }) }),
);

describe("a group", () => {
  it("ends as its rule says, whatever becomes of its members, and holds nothing but usable samples", async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 6 }), rule, fc.array(fc.array(kind, { minLength: 1, maxLength: 4 }), { minLength: 6, maxLength: 6 }), fc.array(fc.integer({ min: 0, max: 400 }), { minLength: 1, maxLength: 9 }), async (size, partial, kinds, durations) => {
        const { delivered, failed } = await endOfGroup({ request: { partial, quarantine_after: null, credits: { groups: 10 } }, draw: draws(kinds, durations) }, size);
        const replacements = partial.rule === "replace_then_min_usable" ? partial.replacements : 0;
        const usable = kinds.slice(0, size).filter((ofMember) => {
          for (let attempt = 0; attempt <= replacements; attempt++) {
            const each = ofMember[Math.min(attempt, ofMember.length - 1)];
            if (each === "good") return true;
            // What hangs is never found to have failed, and what cannot work is not tried again.
            if (each === "hangs" || each === "permanent") return false;
          }
          return false;
        }).length;
        const min = minUsable({ partial: "min" in partial ? partial : { rule: "require_all" } } as never, size);
        expect(failed).toBe(usable < min);
        if (delivered === null) return;
        expect(delivered.facts).toMatchObject({ outcome: usable === size ? "complete" : "partial", expected: size, usable });
        expect(new Set(delivered.samples.map(({ facts }) => facts.member)).size).toBe(usable);
        checkSamples(delivered);
      }),
      { numRuns: 120 },
    );
  });

  it("with redundancy has its size of usable members at most, and what still ran is counted", async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 4 }), rule, fc.array(fc.array(kind, { minLength: 1, maxLength: 3 }), { minLength: 8, maxLength: 8 }), async (size, redundancy, partial, kinds) => {
        const { delivered, failed } = await endOfGroup({ request: { partial, redundancy, quarantine_after: null }, draw: draws(kinds, [5, 50, 500, 20]) }, size);
        const min = minUsable({ partial: "min" in partial ? partial : { rule: "require_all" } } as never, size);
        const surelyGood = kinds.slice(0, size + redundancy).filter(([first]) => first === "good").length;
        if (surelyGood >= size) expect(delivered?.facts.outcome).toBe("complete");
        if (surelyGood >= min) expect(failed).toBe(false);
        if (delivered === null) return;
        expect(delivered.facts.usable).toBeLessThanOrEqual(size);
        expect(delivered.facts.usable).toBeGreaterThanOrEqual(min);
        expect(delivered.facts.outcome).toBe(delivered.facts.usable === size ? "complete" : "partial");
        checkSamples(delivered);
      }),
      { numRuns: 100 },
    );
  });

  it("of [1, NaN, verifier error, 0] is delivered with its two rewards, and one of errors alone is not", async () => {
    const mixed: Kind[][] = [["good"], ["nan_reward"], ["verifier_error"], ["good"]];
    const { delivered } = await endOfGroup({ request: { partial: { rule: "min_usable" } }, draw: draws(mixed, [1]) }, 4);
    expect(delivered?.facts).toMatchObject({
      outcome: "partial",
      usable: 2,
      failures: expect.arrayContaining([
        { class: "env", code: "reward_not_finite", permanent: false, count: 1 },
        { class: "env", code: "no_reward", permanent: false, count: 1 },
      ]),
    });
    expect((await endOfGroup({ draw: draws([["verifier_error"]], [1]) }, 4)).failed).toBe(true);
  });

  it("with a member that hangs ends at its deadline without it", async () => {
    const { delivered } = await endOfGroup({ request: { partial: { rule: "min_usable" } }, draw: draws([["good"], ["good"], ["hangs"], ["good"]], [1]) }, 4);
    expect(delivered?.facts).toMatchObject({ outcome: "partial", usable: 3, failures: [{ class: "timeout", code: "group_deadline", count: 1 }] });
  });

  it("whose samples are too many for memory waits for its last member in files", async () => {
    const { delivered } = await endOfGroup({ keptBytes: 100, draw: draws([["good"]], [1, 100, 900]) }, 4);
    expect(delivered?.facts).toMatchObject({ outcome: "complete", usable: 4, samples: 8, tokens: 80 });
    if (delivered !== null) checkSamples(delivered);
  });
});

function checkSamples({ facts, samples, flat }: DeliveredGroup): void {
  expect(samples.length).toBe(facts.samples);
  expect(flat.tokenIds.length).toBe(facts.tokens);
  for (const { facts: of, arrays } of samples) {
    expect(of.usable && of.reward !== null && Number.isFinite(of.reward)).toBe(true);
    expect(of.weight).toBe(1 / of.num_segments);
    const lengths = new Set([arrays.tokenIds.length, arrays.lossMask.length, arrays.logprobs.length, arrays.versions.length]);
    expect(lengths.size).toBe(1);
    expect(arrays.lossMask.includes(1)).toBe(true);
    for (let at = 0; at < arrays.tokenIds.length; at++) {
      expect(Number.isFinite(arrays.logprobs[at])).toBe(true);
      if (arrays.lossMask[at] === 1) expect(arrays.versions[at]).toBeGreaterThanOrEqual(0);
      else expect([arrays.logprobs[at], arrays.versions[at]]).toEqual([0, -1]);
    }
  }
}

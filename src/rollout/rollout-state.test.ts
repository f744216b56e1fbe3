import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { messageOf } from "../core/errors.ts";
import type { GroupId, RolloutId, RunId, SandboxId, SnapshotId } from "../core/ids.ts";
import type { Checkpoint } from "./checkpoint/record.ts";
import type { RunEvent } from "./events.ts";
import { PHASES, TRANSITIONS, type RolloutEventType } from "./rollout-state.ts";
import { RunState } from "./run-state.ts";

const rollout = "ro1" as RolloutId;
const base = { rollout, try: 1 } as const;
const CHECKPOINT: Checkpoint = { turn: 1, snapshot: "snap1" as SnapshotId, memory: false, image: "host:1", files: {}, commands: 1, calls: 1, policyVersion: null, state: { turns: 1, promptTokens: 1, completionTokens: 1, modelMs: 1, toolMs: 1 }, agentMs: 10 };
const EVENTS: Readonly<Record<RolloutEventType, Extract<RunEvent, { rollout: RolloutId }>>> = {
  rollout_admitted: { type: "rollout_admitted", ...base },
  rollout_leased: {
    type: "rollout_leased",
    ...base,
    sandbox: "sbx1" as SandboxId,
    image: "host:1",
    network: "none",
    isolation: { backend: "x", profile: "userns", privileged: true, enforced: { cpu: true, memory: true, pids: true, disk: true } },
  },
  rollout_restored: { type: "rollout_restored", turn: 1, parent: null, calls: 1, answered: false, ...base },
  rollout_prepared: { type: "rollout_prepared", ...base },
  rollout_running: { type: "rollout_running", step: null, ...base },
  rollout_taken_over: { type: "rollout_taken_over", sandbox: "sbx1" as SandboxId, ...base },
  rollout_checkpointed: { type: "rollout_checkpointed", checkpoint: CHECKPOINT, kept: false, ms: 5, stoppedMs: 2, bytes: 100, ...base },
  rollout_ended: { type: "rollout_ended", step: null, stopReason: "finished", detail: "", turns: 1, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0, ...base },
  rollout_collected: { type: "rollout_collected", step: null, artifacts: 0, artifactBytes: 0, refused: 0, ...base },
  rollout_verified: { type: "rollout_verified", step: null, status: "scored", reward: 1, verifierDigest: null, ...base },
  rollout_try_failed: { type: "rollout_try_failed", outcome: "sandbox_error", error: { code: "sandbox_failed", message: "x", fix: null }, cause: "failure", ...base },
  rollout_recorded: { type: "rollout_recorded", outcome: "scored", reward: 1, rewards: { reward: 1 }, stopReason: "finished", error: null, ...base },
};

function planned(): RunState {
  const state = new RunState();
  state.apply({ type: "run_created", run: "run1" as RunId }, 0);
  state.apply(
    {
      type: "group_planned",
      group: "grp1" as GroupId,
      index: 0,
      source: "/t",
      task: { name: "t", family: "f", digest: null, directory: "/t" },
      error: null,
      rollouts: [{ rollout, attempt: 1, seed: "s", harness: "nop" }],
    },
    0,
  );
  return state;
}

describe("the fold of a rollout", () => {
  it("follows the table whatever the order of events, and changes nothing when it refuses", () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...(Object.keys(EVENTS) as RolloutEventType[])), { maxLength: 30 }), (types) => {
        const state = planned();
        const one = state.rollouts.get(rollout);
        if (one === undefined) throw new Error("not planned");
        let records = 0;
        types.forEach((type, index) => {
          const legal = TRANSITIONS[type].from.includes(one.phase);
          const event = { ...EVENTS[type], try: type === "rollout_admitted" ? one.try + 1 : one.try };
          const { phase } = one;
          const before = JSON.stringify(one);
          let refused = "";
          try {
            state.apply(event, index);
            if (type === "rollout_recorded") records++;
          } catch (error) {
            refused = messageOf(error);
          }
          const changed = JSON.stringify(one) !== before;
          expect({ changed, refused: refused.includes("may not happen") }).toEqual({ changed: legal, refused: !legal });
          expect(one.phase).toBe(legal ? (TRANSITIONS[type].to ?? phase) : phase);
        });
        expect(records).toBeLessThanOrEqual(1);
        expect(state.recorded).toBe(records);
      }),
    );
  });

  it("reaches every phase, and nothing leads out of the last", () => {
    const reached = new Set<string>(["planned", ...Object.values(TRANSITIONS).flatMap((row) => row.to ?? [])]);
    expect([...reached].sort()).toEqual([...PHASES].sort());
    expect(Object.values(TRANSITIONS).some((row) => row.from.includes("recorded"))).toBe(false);
  });

  it("refuses events of another try, rewards without a score and scores without a reward", () => {
    const state = planned();
    expect(() => state.apply({ ...EVENTS.rollout_admitted, try: 2 }, 1)).toThrow(/try 1 was expected/);
    state.apply(EVENTS.rollout_admitted, 1);
    expect(() => state.apply({ ...EVENTS.rollout_leased, try: 2 }, 1)).toThrow(/try 1 was expected/);
    const recorded = { type: "rollout_recorded", ...base, rewards: {}, stopReason: null, error: null } as const;
    expect(() => state.apply({ ...recorded, outcome: "sandbox_error", reward: 0 }, 2)).toThrow(/only a scored/);
    expect(() => state.apply({ ...recorded, outcome: "scored", reward: null }, 2)).toThrow(/only a scored/);
  });

  it("measures the phases of the last try", () => {
    const state = planned();
    const order: RolloutEventType[] = ["rollout_admitted", "rollout_leased", "rollout_try_failed"];
    order.forEach((type, index) => state.apply(EVENTS[type], index * 1000));
    const again = ["rollout_admitted", "rollout_leased", "rollout_prepared", "rollout_running", "rollout_ended", "rollout_collected", "rollout_verified", "rollout_recorded"] as const;
    again.forEach((type, index) => state.apply({ ...EVENTS[type], try: 2 }, 10_000 + index * 100));
    expect(state.rollouts.get(rollout)).toMatchObject({
      try: 2,
      phase: "recorded",
      phaseMs: { admitted: 100, leased: 100, prepared: 100, running: 100, ended: 100, collected: 100, verified: 100 },
      reward: 1,
    });
  });

  it("adds up what tries took that do not stand, without what the next one went on with", () => {
    const state = planned();
    const one = state.rollouts.get(rollout);
    let at = 0;
    const event = (type: RolloutEventType, more: object = {}): RunEvent => ({ ...EVENTS[type], ...more }) as RunEvent;
    const play = (number: number, ...events: readonly RunEvent[]): void => events.forEach((one) => state.apply({ ...one, try: number } as RunEvent, (at += 10)));
    const toLease = [event("rollout_admitted"), event("rollout_leased")];
    const toWork = [event("rollout_prepared"), event("rollout_running")];
    const asked = { promptTokens: 100, cachedTokens: 40, completionTokens: 10 };
    play(1, ...toLease, ...toWork, event("rollout_try_failed", asked));
    // Until it is tried again it is the last try.
    expect(one).toMatchObject({ ...asked, uncounted: false, thrownAway: { tries: 0 } });
    play(2, ...toLease, event("rollout_restored", { promptTokens: 60, cachedTokens: 40, completionTokens: 6 }), ...toWork, event("rollout_try_failed", { cause: "controller_lost" }));
    // Of the second nobody knows, and its machine was gone at some time before anybody said so.
    expect(one).toMatchObject({ promptTokens: 0, uncounted: true, thrownAway: { tries: 1, promptTokens: 40, cachedTokens: 0, completionTokens: 4, machineMs: 30, uncounted: 0 } });
    play(3, ...toLease, ...toWork, event("rollout_ended", { promptTokens: 7 }), event("rollout_collected"), event("rollout_try_failed", { promptTokens: 1_000 }));
    play(4, ...toLease, ...toWork, event("rollout_recorded", { outcome: "model_error", reward: null, ...asked }));
    // What a try used was told when its agent ended.
    expect(one).toMatchObject({ ...asked, uncounted: false, thrownAway: { tries: 3, promptTokens: 47, machineMs: 30 + 30 + 50, uncounted: 1 } });
  });
});

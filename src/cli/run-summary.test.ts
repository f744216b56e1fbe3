import { spawnSync } from "node:child_process";
import { describe, expect, it } from "vitest";
import { systemRuntime } from "../core/runtime.ts";
import type { GroupId, RolloutId, RunId } from "../core/ids.ts";
import { RunState } from "../rollout/run-state.ts";
import type { AppContext } from "./context.ts";
import { controllerLives } from "../rollout/run-statistics.ts";
import { statusText, summaryText } from "./run-summary.ts";

function state(controllerPid: number | null): RunState {
  const run = new RunState();
  run.apply({ type: "run_created", run: "run1" as RunId }, 0);
  run.controllerPid = controllerPid;
  return run;
}

/** `counts[i]` scored attempts at task i. */
function scored(counts: readonly number[]): RunState {
  const run = state(null);
  for (const [index, count] of counts.entries()) {
    const ids = Array.from({ length: count }, (_, attempt) => `ro${index}x${attempt}` as RolloutId);
    run.apply({ type: "group_planned", group: `grp${index}` as GroupId, index, source: "t", task: { name: `t${index}`, family: "f", digest: null, directory: `/t${index}` }, error: null, rollouts: ids.map((rollout, attempt) => ({ rollout, attempt: attempt + 1, seed: "s", harness: "nop" })) }, 0);
    for (const rollout of ids) {
      run.apply({ type: "rollout_admitted", rollout, try: 1 }, 0);
      run.apply({ type: "rollout_recorded", rollout, try: 1, outcome: "scored", reward: 1, rewards: {}, stopReason: "finished", error: null }, 0);
    }
  }
  return run;
}

const context = { process: { stdout: { write: () => undefined } }, env: {}, cwd: "/", runtime: systemRuntime } as unknown as AppContext;

describe("status of a run whose log does not end", () => {
  it("is running while its controller lives, and killed after", () => {
    expect(statusText(state(process.pid))).toMatch(/^running, /);
    const { pid } = spawnSync("true");
    expect(controllerLives(state(pid))).toBe(false);
    expect(statusText(state(pid))).toMatch(/^killed, /);
    expect(statusText(state(null))).toMatch(/^killed, /);
  });
});

describe("the table of a run", () => {
  it("names k once, or in each cell where tasks differ in it", () => {
    expect(summaryText(context, scored([2, 2]), undefined)).toMatch(/pass@2\n/);
    expect(summaryText(context, scored([2, 2]), undefined)).not.toContain("(k=");
    expect(summaryText(context, scored([2, 2]), undefined)).not.toContain("$");
    expect(summaryText(context, scored([2, 3]), undefined)).toMatch(/1\.000 \(k=3\)/);
  });
});

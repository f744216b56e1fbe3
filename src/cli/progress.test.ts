import { describe, expect, it } from "vitest";
import type { GroupId, RolloutId, RunId } from "../core/ids.ts";
import { systemRuntime } from "../core/runtime.ts";
import type { RunEvent } from "../rollout/events.ts";
import { RunState } from "../rollout/run-state.ts";
import type { AppContext } from "./context.ts";
import { startProgress, type Progress } from "./progress.ts";

function context(isTTY: boolean): { readonly context: AppContext; readonly text: () => string } {
  let text = "";
  const stderr = { write: (part: string) => void (text += part), isTTY, columns: 60 };
  return { context: { process: { stdout: stderr, stderr }, env: { TERM: "xterm" }, cwd: "/", runtime: { ...systemRuntime, monotonic: () => 0 } } as unknown as AppContext, text: () => text };
}

/** Two attempts at a task with a hostile name; one scores, one cannot. */
function play(progress: Progress): void {
  const state = new RunState();
  const emit = (event: RunEvent): void => {
    state.apply(event, 0);
    progress.changed(state, event);
  };
  const [one, two] = ["ro1" as RolloutId, "ro2" as RolloutId];
  emit({ type: "run_created", run: "run1" as RunId });
  emit({
    type: "group_planned",
    group: "grp1" as GroupId,
    index: 0,
    source: "t",
    task: { name: "evil\u001b[2Jname", family: "f", digest: null, directory: "/t" },
    error: null,
    rollouts: [one, two].map((rollout, index) => ({ rollout, attempt: index + 1, seed: "s", harness: "nop" })),
  });
  emit({ type: "plan_completed", groups: 1 });
  emit({ type: "rollout_admitted", rollout: one, try: 1 });
  emit({ type: "rollout_recorded", rollout: one, try: 1, outcome: "scored", reward: 0.5, rewards: {}, stopReason: "finished", error: null });
  emit({ type: "rollout_admitted", rollout: two, try: 1 });
  emit({ type: "rollout_recorded", rollout: two, try: 1, outcome: "sandbox_error", reward: null, rewards: {}, stopReason: null, error: { code: "sandbox_failed", message: "gone\u001b[31m", fix: null } });
}

describe("progress", () => {
  it("is lines in a pipe, without a single control character", () => {
    const { context: pipe, text } = context(false);
    const progress = startProgress(pipe, false);
    play(progress);
    progress.finish();
    expect(text()).toContain("2/2 done");
    expect(text()).toContain("scored 1, sandbox_error 1, mean 0.500");
    expect(text()).toContain("sandbox_error: gone\\x1b[31m");
    expect(text()).not.toContain("\u001b");
  });

  it("is a table on a terminal that draws over itself, and obeys nothing that a task says", () => {
    const { context: terminal, text } = context(true);
    const progress = startProgress(terminal, false);
    play(progress);
    progress.note("pulling");
    progress.finish();
    expect(text()).toContain("A\u001b[J");
    expect(text()).toContain("2/2");
    expect(text()).toContain("0.500");
    expect(text()).not.toContain("\u001b[2J");
    for (const line of text().split("\n")) expect(line.length).toBeLessThan(80);
  });

  it("says only what went wrong when it is to be quiet", () => {
    const { context: terminal, text } = context(true);
    const progress = startProgress(terminal, true);
    play(progress);
    progress.finish();
    expect(text().trim().split("\n").length).toBe(1);
    expect(text()).toContain("sandbox_error");
  });

  it("tells in a pipe now and then what is under way, and says no time left when nothing is", () => {
    const { context: pipe, text } = context(false);
    const progress = startProgress(pipe, false);
    for (let step = 1; step <= 100; step++) progress.activity(`step ${step}`);
    play(progress);
    progress.finish();
    expect(text()).toContain("step 1\n");
    expect(text()).not.toContain("step 2\n");
    expect(text()).not.toContain("left");
  });

  it("shows on a terminal what is under way in one line that goes away", () => {
    const { context: terminal, text } = context(true);
    const progress = startProgress(terminal, false);
    progress.activity("making an image");
    play(progress);
    progress.activity(`a step \u001b[2J ${"long ".repeat(30)}\nof several lines`);
    progress.finish();
    expect(text()).toContain("making an image");
    expect(text()).not.toContain("\u001b[2J");
    expect(text()).not.toContain("several lines");
    for (const line of text().split("\n")) expect(line.length).toBeLessThan(80);
    // The last picture stands alone.
    expect(text().slice(text().lastIndexOf("\u001b[J"))).not.toContain("step");
  });
});

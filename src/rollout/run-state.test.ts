import { expect, it } from "vitest";
import { systemRuntime } from "../core/runtime.ts";
import { newId } from "../core/ids.ts";
import { RunState } from "./run-state.ts";

it("lets go of a trainer's groups that are over, and goes on as if they were there", () => {
  const state = new RunState();
  let at = 0;
  const apply = (event: Parameters<RunState["apply"]>[0]): void => state.apply(event, ++at);
  const task = { name: "t", family: "f", digest: null, directory: "/t" };
  apply({ type: "run_created", run: newId("run", systemRuntime) });
  const begun = (name: string): { readonly group: ReturnType<typeof newId<"grp">>; readonly rollout: ReturnType<typeof newId<"ro">> } => {
    const ids = { group: newId("grp", systemRuntime), rollout: newId("ro", systemRuntime) };
    apply({ type: "group_planned", group: ids.group, index: state.planned, source: "/t", task, error: null, rollouts: [], name });
    apply({ type: "rollouts_planned", group: ids.group, rollouts: [{ rollout: ids.rollout, attempt: 1, seed: "s", harness: "bash" }] });
    return ids;
  };
  const recorded = (rollout: ReturnType<typeof newId<"ro">>): void => apply({ type: "rollout_recorded", rollout, try: 0, outcome: "cancelled", reward: null, rewards: {}, stopReason: null, error: null });
  const first = begun("a");
  const second = begun("b");
  // One that is under way stays, and what is none is nothing.
  expect(state.forget("a")).toBe(false);
  expect(state.forget("c")).toBe(false);
  recorded(first.rollout);
  expect(state.forget("a")).toBe(true);
  expect(state.forget("a")).toBe(false);
  expect([state.groups.map(({ name }) => name), [...state.rollouts.keys()], state.sources, state.groupNamed("a")]).toEqual([["b"], [second.rollout], [], null]);
  // Whatever comes now is counted on.
  const third = begun("d");
  recorded(second.rollout);
  recorded(third.rollout);
  expect([state.planned, state.recorded, state.outcomes.get("cancelled")]).toEqual([3, 3, 3]);
  for (const name of ["b", "d"]) state.forget(name);
  expect([state.groups.length, state.rollouts.size]).toEqual([0, 0]);
});

it("expects as many rollouts as its inputs will have, once their number is known", () => {
  const state = new RunState();
  const apply = (event: Parameters<RunState["apply"]>[0]): void => state.apply(event, 1);
  const plan = (inputs?: number): void => {
    const rollouts = [1, 2].map((attempt) => ({ rollout: newId("ro", systemRuntime), attempt, seed: "s", harness: "bash" }));
    apply({ type: "group_planned", group: newId("grp", systemRuntime), index: state.planned, source: "/t", task: { name: "t", family: "f", digest: null, directory: "/t" }, error: null, rollouts, ...(inputs === undefined ? {} : { inputs }) });
  };
  apply({ type: "run_created", run: newId("run", systemRuntime) });
  expect(state.expected).toBeNull();
  plan();
  expect(state.expected).toBeNull();
  plan(5);
  expect(state.expected).toBe(10);
  // What is no task has no rollouts.
  apply({ type: "input_refused", source: "/x", error: { code: "not_found", message: "", fix: null } });
  expect(state.expected).toBe(8);
  plan();
  plan();
  apply({ type: "plan_completed", groups: 4 });
  expect([state.expected, state.rollouts.size]).toEqual([8, 8]);
});

/** Which rollouts a list shows, and in what order. */
import type { Prices } from "../../rollout/cost.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";
import { secondsOf } from "../../rollout/rollout-state.ts";
import { PASS_REWARD } from "../../rollout/statistics.ts";
import type { RolloutFilter } from "./contract/lists.ts";
import { knownCost, type Marks } from "./run-rows.ts";

/** Rollouts come in the order of the plan; sorting is stable, so equals stay in it. */
export function selectRollouts(rollouts: readonly RolloutState[], filter: RolloutFilter, marks: Marks, prices: Prices | undefined): readonly RolloutState[] {
  const tests = testsOf(filter, marks);
  const kept = tests.length === 0 ? [...rollouts] : rollouts.filter((rollout) => tests.every((test) => test(rollout)));
  const key = KEYS[filter.sort];
  if (key === undefined) return filter.order === "desc" ? kept.toReversed() : kept;
  const sign = filter.order === "desc" ? -1 : 1;
  // What has no value stands last whichever way is asked for.
  return kept.map((rollout) => ({ rollout, value: key(rollout, prices) })).sort((a, b) => (a.value === null || b.value === null ? Number(a.value === null) - Number(b.value === null) : sign * compare(a.value, b.value))).map(({ rollout }) => rollout);
}

type Value = string | number | null;

const KEYS: Readonly<Record<RolloutFilter["sort"], ((rollout: RolloutState, prices: Prices | undefined) => Value) | undefined>> = {
  plan: undefined,
  task: ({ task }) => task.name,
  family: ({ task }) => task.family,
  harness: ({ harness }) => harness,
  attempt: ({ attempt }) => attempt,
  outcome: ({ outcome, phase }) => outcome ?? `~${phase}`,
  reward: ({ reward }) => reward,
  seconds: (rollout) => (rollout.phase === "recorded" ? secondsOf(rollout) : null),
  turns: ({ turns, phase }) => (phase === "recorded" ? turns : null),
  tokens: ({ completionTokens, phase }) => (phase === "recorded" ? completionTokens : null),
  cost: (rollout, prices) => knownCost(rollout, prices)?.total ?? null,
  at: ({ at, phase }) => (phase === "planned" ? null : at),
  tries: (rollout) => rollout.try,
};

function compare(a: string | number, b: string | number): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function testsOf(filter: RolloutFilter, marks: Marks): readonly ((rollout: RolloutState) => boolean)[] {
  const { task, family, harness, group, outcome, code, stop, marked } = filter;
  const words = filter.q.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return [
    ...words.map((word) => (rollout: RolloutState) => textOf(rollout).includes(word)),
    ...(task === undefined ? [] : [(rollout: RolloutState) => rollout.task.name === task]),
    ...(family === undefined ? [] : [(rollout: RolloutState) => rollout.task.family === family]),
    ...(harness === undefined ? [] : [(rollout: RolloutState) => rollout.harness === harness]),
    ...(group === undefined ? [] : [(rollout: RolloutState) => rollout.group === group]),
    ...(outcome === undefined ? [] : [outcomeTest(outcome)]),
    ...(code === undefined ? [] : [(rollout: RolloutState) => rollout.error?.code === code]),
    ...(stop === undefined ? [] : [(rollout: RolloutState) => rollout.stopReason === stop]),
    ...(marked === undefined ? [] : [(rollout: RolloutState) => isMarked(rollout, marked, marks)]),
  ];
}

function outcomeTest(outcome: string): (rollout: RolloutState) => boolean {
  switch (outcome) {
    case "failed":
      return (rollout) => rollout.outcome !== null && rollout.outcome !== "scored";
    case "passed":
      return ({ reward }) => reward !== null && reward >= PASS_REWARD;
    case "unsolved":
      return ({ reward }) => reward !== null && reward < PASS_REWARD;
    case "running":
      return ({ phase }) => phase !== "planned" && phase !== "recorded";
    case "waiting":
      return ({ phase }) => phase === "planned";
    default:
      return (rollout) => rollout.outcome === outcome;
  }
}

function isMarked({ rollout }: RolloutState, wanted: string, marks: Marks): boolean {
  const mark = marks.get(rollout);
  if (mark === undefined) return false;
  return wanted === "any" ? mark.mark !== null || mark.note !== "" : mark.mark === wanted;
}

function textOf({ rollout, task, harness, outcome, phase, stopReason, error }: RolloutState): string {
  return `${rollout} ${task.name} ${task.family} ${harness} ${outcome ?? phase} ${stopReason ?? ""} ${error?.code ?? ""} ${error?.message ?? ""}`.toLowerCase();
}

/** Runs, groups and rollouts as rows of lists: folded states in, documents out. */
import { costOf, totalCost, type Cost, type Prices } from "../../rollout/cost.ts";
import { PASS_REWARD, wilson } from "../../rollout/statistics.ts";
import type { GroupState } from "../../rollout/run-state.ts";
import { secondsOf, type RolloutState } from "../../rollout/rollout-state.ts";
import type { GroupRow, RolloutRow } from "./contract/lists.ts";
import type { IntervalView } from "./contract/common.ts";
import type { MarkView } from "./contract/marks.ts";
import type { RunRow } from "./contract/run.ts";
import type { LiveRun } from "./live-run.ts";

/** Marks by what they stand on. */
export type Marks = ReadonlyMap<string, MarkView>;

export function runRow(run: LiveRun): RunRow {
  const { state, config } = run;
  const tally = rewardTally(state.rollouts.values());
  return {
    run: run.run,
    status: run.status,
    createdAt: isoOf(state.createdAt) ?? config?.createdAt ?? null,
    lastAt: isoOf(state.lastAt),
    tasks: state.groups.length,
    rollouts: state.rollouts.size,
    recorded: state.recorded,
    running: tally.running,
    scored: tally.scored,
    mean: tally.mean,
    passed: tally.pass,
    outcomes: Object.fromEntries(state.outcomes),
    dollars: config?.prices === undefined ? null : totalCost(run.order.filter(({ phase }) => phase === "recorded"), config.prices).total,
    harnesses: config?.harnesses.map(({ name }) => name) ?? [],
    model: config?.upstream?.model ?? null,
    inputs: [...(config?.inputs ?? [])].slice(0, 8),
    error: run.damage,
  };
}

/** A run that has not been read yet. */
export function unreadRow(run: string, error: string | null): RunRow {
  return { run, status: error === null ? "reading" : "damaged", createdAt: null, lastAt: null, tasks: 0, rollouts: 0, recorded: 0, running: 0, scored: 0, mean: null, passed: null, outcomes: {}, dollars: null, harnesses: [], model: null, inputs: [], error };
}

export interface RewardTally {
  readonly scored: number;
  readonly passed: number;
  readonly running: number;
  readonly mean: number | null;
  readonly pass: IntervalView | null;
}

export function rewardTally(rollouts: Iterable<RolloutState>): RewardTally {
  let scored = 0;
  let passed = 0;
  let running = 0;
  let sum = 0;
  for (const { reward, phase } of rollouts) {
    if (phase !== "planned" && phase !== "recorded") running++;
    if (reward === null) continue;
    scored++;
    sum += reward;
    if (reward >= PASS_REWARD) passed++;
  }
  return { scored, passed, running, mean: scored === 0 ? null : sum / scored, pass: scored === 0 ? null : wilson(passed, scored) };
}

export function rolloutRow(state: RolloutState, marks: Marks, prices: Prices | undefined): RolloutRow {
  const mark = marks.get(state.rollout);
  const cost = knownCost(state, prices);
  return {
    rollout: state.rollout,
    group: state.group,
    task: state.task.name,
    family: state.task.family,
    attempt: state.attempt,
    harness: state.harness,
    phase: state.phase,
    outcome: state.outcome,
    reward: state.reward,
    stopReason: state.stopReason,
    seconds: state.phase === "recorded" ? secondsOf(state) : 0,
    tries: state.try,
    turns: state.turns,
    promptTokens: state.promptTokens,
    cachedTokens: state.cachedTokens,
    completionTokens: state.completionTokens,
    dollars: cost?.total ?? null,
    thrownAway: { ...state.thrownAway, dollars: cost?.thrownAway ?? null },
    admittedAt: state.admittedAt,
    at: state.at,
    error: state.error,
    mark: mark?.mark ?? null,
    noted: mark !== undefined && mark.note !== "",
  };
}

/** Null where the run was given no prices, it has not ended, or nobody knows what its agent asked for. */
export function knownCost(state: RolloutState, prices: Prices | undefined): Cost | null {
  return prices === undefined || state.phase !== "recorded" || state.uncounted ? null : costOf(state, prices);
}

export function groupRow(group: GroupState, prices: Prices | undefined): GroupRow {
  const rewards = group.rollouts.map(({ reward }) => reward);
  const { mean, deviation, scored } = spread(rewards);
  return {
    group: group.group,
    index: group.index,
    task: group.task.name,
    family: group.task.family,
    directory: group.task.directory,
    digest: group.task.digest,
    error: group.error,
    rollouts: group.rollouts.length,
    recorded: group.rollouts.filter(({ phase }) => phase === "recorded").length,
    scored,
    mean,
    deviation,
    passed: rewards.filter((reward) => reward !== null && reward >= PASS_REWARD).length,
    dollars: prices === undefined ? null : totalCost(group.rollouts, prices).total,
    rewards,
    outcomes: group.rollouts.map(({ outcome, phase }) => outcome ?? phase),
    members: group.rollouts.map(({ rollout }) => rollout),
  };
}

/** Mean and (population) standard deviation of what is scored, as group-relative advantages use them. */
export function spread(rewards: readonly (number | null)[]): { readonly mean: number | null; readonly deviation: number | null; readonly scored: number } {
  const values = rewards.filter((reward) => reward !== null);
  const scored = values.length;
  if (scored === 0) return { mean: null, deviation: null, scored };
  const mean = values.reduce((sum, value) => sum + value, 0) / scored;
  return { mean, deviation: scored < 2 ? null : Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / scored), scored };
}

export function isoOf(at: number): string | null {
  return at > 0 ? new Date(at).toISOString() : null;
}

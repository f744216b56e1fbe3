/** One run on one page: what it came to so far, what it costs, what is under way and what went wrong. */
import { OUTCOMES, type Outcome } from "../../core/outcome.ts";
import { tokensUsed, totalCost, type Prices } from "../../rollout/cost.ts";
import { phaseTimes, PHASE_LABELS } from "../../rollout/run-statistics.ts";
import type { GroupState } from "../../rollout/run-state.ts";
import { secondsOf, type RolloutState } from "../../rollout/rollout-state.ts";
import { PASS_REWARD } from "../../rollout/statistics.ts";
import { runDirectory } from "../../store/run-directory.ts";
import type { ActiveRollout, FailureGroup, RunReport } from "./contract/run.ts";
import type { LiveRun } from "./live-run.ts";
import { isoOf, rewardTally, spread } from "./run-rows.ts";
import { seriesOf } from "./run-series.ts";

const ACTIVE_SHOWN = 200;
const REFUSED_SHOWN = 50;
/** A rollout that takes so many times as long as half of the others is a straggler. */
const STRAGGLER_FACTOR = 3;

export function runReport(run: LiveRun, now: number): RunReport {
  const { state, config } = run;
  const recorded = run.order.filter(({ phase }) => phase === "recorded");
  const active = run.order.filter(({ phase }) => phase !== "recorded" && phase !== "planned");
  const tally = rewardTally(run.order);
  const medianMs = medianOf(recorded.filter(({ admittedAt }) => admittedAt !== null).map((rollout) => secondsOf(rollout) * 1000));
  const live = run.status === "running";
  return {
    run: run.run,
    directory: runDirectory(run.home, run.run),
    seq: run.seq,
    status: run.status,
    interruption: state.interruption,
    error: run.damage,
    createdAt: isoOf(state.createdAt) ?? config?.createdAt ?? null,
    lastAt: isoOf(state.lastAt),
    planCompleted: state.planCompleted,
    expected: state.expected,
    counts: { rollouts: state.rollouts.size, planned: run.order.length - recorded.length - active.length, running: active.length, recorded: recorded.length, scored: tally.scored, groups: state.groups.length, refused: state.refused.length },
    mean: tally.mean,
    passed: tally.pass,
    outcomes: Object.fromEntries(state.outcomes),
    boundaries: countBy(recorded, ({ outcome }) => (outcome === null ? null : OUTCOMES[outcome].boundary)),
    gradient: gradientOf(state.groups),
    stops: countBy(recorded, ({ stopReason }) => stopReason),
    cost: usageOf(recorded, config?.prices),
    phases: phaseTimes(run.order, config?.prices).map((time) => Object.assign({ label: PHASE_LABELS[time.phase] }, time)),
    series: seriesOf(run.order, state.createdAt, live ? now : state.lastAt),
    active: activeOf(active, medianMs, now),
    activeTotal: active.length,
    medianMs,
    failures: failuresOf(recorded, run),
    refused: state.refused.slice(0, REFUSED_SHOWN),
    estimatedEndAt: live ? estimateEnd(recorded, state.expected, now) : null,
    config:
      config === null
        ? null
        : {
            version: config.version,
            seed: config.seed,
            attempts: config.attempts,
            concurrency: config.concurrency,
            harnesses: config.harnesses.map(({ name }) => name),
            model: config.upstream?.model ?? null,
            upstream: config.upstream?.url ?? null,
            inputs: [...config.inputs],
            network: config.network,
            tokenizer: config.upstream?.tokenizer != null,
            prices: config.prices ?? null,
          },
  };
}

function gradientOf(groups: readonly GroupState[]): RunReport["gradient"] {
  const counts = { useful: 0, all_passed: 0, none_passed: 0, alike: 0, too_few: 0 };
  for (const { rollouts } of groups) {
    if (rollouts.length === 0 || rollouts.some(({ phase }) => phase !== "recorded")) continue;
    const { mean, deviation } = spread(rollouts.map(({ reward }) => reward));
    if (mean === null || deviation === null) counts.too_few++;
    else if (deviation > 0) counts.useful++;
    else if (mean >= PASS_REWARD) counts.all_passed++;
    else if (mean <= 0) counts.none_passed++;
    else counts.alike++;
  }
  return counts;
}

function usageOf(recorded: readonly RolloutState[], prices: Prices | undefined): RunReport["cost"] {
  const used = tokensUsed(recorded);
  const cost = { ...used, turns: 0, machineMs: used.thrownAway.machineMs, cpuMs: null as number | null, modelMs: 0, toolMs: 0, waitMs: 0, frozenMs: 0 };
  for (const rollout of recorded) {
    cost.turns += rollout.turns;
    cost.machineMs += Math.max(0, secondsOf(rollout) * 1000 - (rollout.phaseMs.admitted ?? 0));
    if (rollout.cpuMs !== null) cost.cpuMs = (cost.cpuMs ?? 0) + rollout.cpuMs;
    cost.modelMs += rollout.modelMs;
    cost.toolMs += rollout.toolMs;
    cost.waitMs += Math.max(0, (rollout.phaseMs.running ?? 0) - rollout.modelMs - rollout.toolMs);
    cost.frozenMs += rollout.frozenMs;
  }
  return { ...cost, dollars: prices === undefined ? null : totalCost(recorded, prices) };
}

/** Longest under way first. */
function activeOf(active: readonly RolloutState[], medianMs: number | null, now: number): ActiveRollout[] {
  return active
    .toSorted((a, b) => (a.admittedAt ?? 0) - (b.admittedAt ?? 0))
    .slice(0, ACTIVE_SHOWN)
    .map((rollout) => ({
      rollout: rollout.rollout,
      task: rollout.task.name,
      harness: rollout.harness,
      attempt: rollout.attempt,
      try: rollout.try,
      phase: rollout.phase,
      admittedAt: rollout.admittedAt,
      phaseAt: rollout.at,
      straggler: medianMs !== null && rollout.admittedAt !== null && now - rollout.admittedAt > STRAGGLER_FACTOR * medianMs,
    }));
}

/** By boundary, outcome and code; the latest of each is the example. */
function failuresOf(recorded: readonly RolloutState[], { failedTries }: LiveRun): FailureGroup[] {
  const groups = new Map<string, FailureGroup>();
  for (const { outcome, code, count, example } of failedTries.values()) {
    const { rollout, error } = example;
    groups.set(`${outcome} ${code}`, { boundary: boundaryOf(outcome), outcome, code, count, final: 0, example: { rollout, message: error.message, fix: error.fix } });
  }
  for (const { outcome, error, rollout, stopReason } of recorded) {
    if (outcome === null || outcome === "scored") continue;
    const code = error?.code ?? stopReason ?? "";
    const key = `${outcome} ${code}`;
    const group = groups.get(key);
    groups.set(key, {
      boundary: boundaryOf(outcome),
      outcome,
      code,
      count: (group?.count ?? 0) + 1,
      final: (group?.final ?? 0) + 1,
      example: { rollout, message: error?.message ?? "", fix: error?.fix ?? null },
    });
  }
  return [...groups.values()].sort((a, b) => b.final - a.final || b.count - a.count);
}

function boundaryOf(outcome: string): string {
  return outcome in OUTCOMES ? OUTCOMES[outcome as Outcome].boundary : "unknown";
}

/** From the pace of the latest quarter, at least eight; a plan of which nobody knows how long it is has no end. */
function estimateEnd(recorded: readonly RolloutState[], expected: number | null, now: number): number | null {
  if (expected === null || recorded.length < 2) return null;
  const ends = recorded.map(({ at }) => at).sort((a, b) => a - b);
  const window = ends.slice(-Math.max(8, Math.ceil(ends.length / 4)));
  const took = now - (window[0] ?? now);
  if (took <= 0 || window.length < 2) return null;
  return Math.round(now + ((expected - recorded.length) * took) / (window.length - 1));
}

function medianOf(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? null;
}

function countBy(rollouts: readonly RolloutState[], key: (rollout: RolloutState) => string | null): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const rollout of rollouts) {
    const name = key(rollout);
    if (name !== null) counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}

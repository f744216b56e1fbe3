/** What the rollouts of a run come to, as the command line and the dashboard say it. */
import { costOf, costOfPhase, type Prices } from "./cost.ts";
import type { TaskReference } from "./events.ts";
import { PHASES, type Phase, type RolloutState } from "./rollout-state.ts";
import type { RunState } from "./run-state.ts";
import { summarise, type GroupStatistics, type Sample, type Summary } from "./statistics.ts";

/** `prices`: of the run, where it has some. */
export function statisticsOf(state: RunState, prices: Prices | undefined): Summary {
  const directories = new Map<string, Set<string>>();
  for (const { task } of state.groups) directories.set(task.name, (directories.get(task.name) ?? new Set()).add(task.directory));
  // Two tasks may share a name; the directory keeps them apart.
  const label = ({ name, directory }: TaskReference): string => ((directories.get(name)?.size ?? 0) > 1 ? `${name} (${directory})` : name);
  return summarise([...state.rollouts.values()].map((rollout) => sampleOf(rollout, label(rollout.task), rollout.task.family, prices)));
}

/** Where several harnesses were drawn from: what each came to. */
export function byHarness(state: RunState, prices: Prices | undefined): readonly GroupStatistics[] {
  return summarise([...state.rollouts.values()].map((rollout) => sampleOf(rollout, rollout.task.directory, rollout.harness, prices))).families;
}

function sampleOf(rollout: RolloutState, task: string, family: string, prices: Prices | undefined): Sample {
  const { outcome, reward } = rollout;
  return { task, family, outcome, reward, ...(prices === undefined ? {} : { dollars: costOf(rollout, prices).total }) };
}

/** What is done between a phase's event and the next one. */
export const PHASE_LABELS: Readonly<Record<Phase, string>> = {
  planned: "waiting",
  admitted: "image, machine",
  leased: "preparation",
  prepared: "agent's start",
  running: "agent",
  ended: "collection",
  collected: "verification",
  verified: "recording",
  recorded: "done",
};

export interface PhaseTime {
  readonly phase: Phase;
  readonly count: number;
  readonly totalMs: number;
  readonly medianMs: number;
  readonly maximumMs: number;
  /** Null without prices. */
  readonly dollars: number | null;
}

/** What each phase of the last tries took, and cost. */
export function phaseTimes(rollouts: Iterable<RolloutState>, prices: Prices | undefined): readonly PhaseTime[] {
  const byPhase = new Map<Phase, number[]>();
  const dollars = new Map<Phase, number>();
  for (const rollout of rollouts) {
    for (const phase of PHASES) {
      const ms = rollout.phaseMs[phase];
      if (ms === undefined) continue;
      if (prices !== undefined) dollars.set(phase, (dollars.get(phase) ?? 0) + costOfPhase(phase, rollout, prices));
      const values = byPhase.get(phase);
      if (values === undefined) byPhase.set(phase, [ms]);
      else values.push(ms);
    }
  }
  return [...byPhase].map(([phase, values]) => {
    values.sort((a, b) => a - b);
    return { phase, count: values.length, totalMs: values.reduce((sum, ms) => sum + ms, 0), medianMs: values[Math.floor(values.length / 2)] ?? 0, maximumMs: values.at(-1) ?? 0, dollars: dollars.get(phase) ?? null };
  });
}

/** Whether the process that wrote the log last is there; of one that was killed, the log does not know. */
export function controllerLives({ controllerPid }: RunState): boolean {
  if (controllerPid === null) return false;
  try {
    process.kill(controllerPid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

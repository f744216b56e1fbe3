/** What the rollouts of a run come to, as the command line and the dashboard say it. */
import type { TaskReference } from "./events.ts";
import { PHASES, type Phase, type RolloutState } from "./rollout-state.ts";
import type { RunState } from "./run-state.ts";
import { summarise, type GroupStatistics, type Sample, type Summary } from "./statistics.ts";

export function statisticsOf(state: RunState): Summary {
  const directories = new Map<string, Set<string>>();
  for (const { task } of state.groups) directories.set(task.name, (directories.get(task.name) ?? new Set()).add(task.directory));
  // Two tasks may share a name; the directory keeps them apart.
  const label = ({ name, directory }: TaskReference): string => ((directories.get(name)?.size ?? 0) > 1 ? `${name} (${directory})` : name);
  return summarise([...state.rollouts.values()].map(({ task, outcome, reward }): Sample => ({ task: label(task), family: task.family, outcome, reward })));
}

/** Where several harnesses were drawn from: what each came to. */
export function byHarness(state: RunState): readonly GroupStatistics[] {
  return summarise([...state.rollouts.values()].map(({ task, harness, outcome, reward }): Sample => ({ task: task.directory, family: harness, outcome, reward }))).families;
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
}

/** What each phase of the last tries took. */
export function phaseTimes(rollouts: Iterable<RolloutState>): readonly PhaseTime[] {
  const byPhase = new Map<Phase, number[]>();
  for (const { phaseMs } of rollouts) {
    for (const phase of PHASES) {
      const ms = phaseMs[phase];
      if (ms === undefined) continue;
      const values = byPhase.get(phase);
      if (values === undefined) byPhase.set(phase, [ms]);
      else values.push(ms);
    }
  }
  return [...byPhase].map(([phase, values]) => {
    values.sort((a, b) => a - b);
    return { phase, count: values.length, totalMs: values.reduce((sum, ms) => sum + ms, 0), medianMs: values[Math.floor(values.length / 2)] ?? 0, maximumMs: values.at(-1) ?? 0 };
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

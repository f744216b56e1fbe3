/** A run as people read it: rewards by family and task, pass@k, outcomes, time by phase. */
import type { Failure, TaskReference } from "../rollout/events.ts";
import { PHASES, type Phase, type RolloutState } from "../rollout/rollout-state.ts";
import type { RunState } from "../rollout/run-state.ts";
import { summarise, type GroupStatistics, type Sample, type Statistics, type Summary } from "../rollout/statistics.ts";
import type { AppContext } from "./context.ts";
import { formatDuration, formatTable, printable, styler } from "./output.ts";

export function statisticsOf(state: RunState): Summary {
  const directories = new Map<string, Set<string>>();
  for (const { task } of state.groups) directories.set(task.name, (directories.get(task.name) ?? new Set()).add(task.directory));
  // Two tasks may share a name; the directory keeps them apart.
  const label = ({ name, directory }: TaskReference): string => ((directories.get(name)?.size ?? 0) > 1 ? `${name} (${directory})` : name);
  return summarise([...state.rollouts.values()].map(({ task, outcome, reward }): Sample => ({ task: label(task), family: task.family, outcome, reward })));
}

/** Where several harnesses were drawn from: what each came to. */
function byHarness(state: RunState): readonly GroupStatistics[] {
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
      if (ms !== undefined) byPhase.set(phase, [...(byPhase.get(phase) ?? []), ms]);
    }
  }
  return [...byPhase].map(([phase, values]) => {
    values.sort((a, b) => a - b);
    return { phase, count: values.length, totalMs: values.reduce((sum, ms) => sum + ms, 0), medianMs: values[Math.floor(values.length / 2)] ?? 0, maximumMs: values.at(-1) ?? 0 };
  });
}

export function summaryText(context: AppContext, state: RunState): string {
  const paint = styler(context.process.stdout, context.env);
  const summary = statisticsOf(state);
  const parts = [`run ${state.run ?? ""} (${statusText(state)})`];
  if (state.rollouts.size > 0) {
    parts.push(groupTable("family", summary.families, paint));
    if (summary.tasks.length > 1) parts.push(groupTable("task", summary.tasks, paint));
    const harnesses = byHarness(state);
    if (harnesses.length > 1) parts.push(groupTable("harness", harnesses, paint));
    parts.push(passText(summary.overall), outcomeText(summary.overall));
  }
  for (const { source, error } of state.refused.slice(0, 20)) parts.push(`${paint("yellow", "no task:")} ${printable(source)}: ${failureText(error)}`);
  return parts.filter((part) => part !== "").join("\n\n");
}

export function statusText(state: RunState): string {
  const done = `${state.recorded}/${state.rollouts.size}${state.planCompleted ? "" : "+"} rollouts`;
  return state.status === "finished" ? `finished, ${done}` : state.status === "interrupted" ? `stopped: ${state.interruption ?? ""}, ${done}` : `${controllerLives(state) ? "running" : "killed"}, ${done}`;
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

export function failureText(error: Failure): string {
  return printable(`${error.message}${error.fix === null ? "" : ` (${error.fix})`}`);
}

function groupTable(title: string, groups: readonly GroupStatistics[], paint: ReturnType<typeof styler>): string {
  const ks = new Set(groups.flatMap(({ passAtK }) => (passAtK.length > 1 ? [passAtK.at(-1)?.k] : [])));
  const common = ks.size === 1 ? [...ks][0] : null;
  const rows = groups.map(({ name, rollouts, scored, reward, passAtK }) => [
    printable(name),
    String(rollouts),
    String(scored),
    reward.mean === null ? "-" : reward.mean.toFixed(3),
    reward.standardError === null ? "" : `± ${(1.96 * reward.standardError).toFixed(3)}`,
    passAtK[0] === undefined ? "-" : passAtK[0].estimate.toFixed(3),
    // One number of attempts is the rule; where tasks differ in it, the cell says its own.
    passAtK.length > 1 ? `${passAtK.at(-1)?.estimate.toFixed(3)}${common === null ? ` (k=${passAtK.at(-1)?.k})` : ""}` : "",
  ]);
  const right = "right" as const;
  return formatTable([{ title }, { title: "rollouts", align: right }, { title: "scored", align: right }, { title: "mean", align: right }, { title: "95 %" }, { title: "pass@1", align: right }, ...(ks.size === 0 ? [] : [{ title: `pass@${common ?? "k"}`, align: right }])], rows, paint);
}

function passText({ passAtK }: Statistics): string {
  return passAtK.map(({ k, estimate, low, high }) => `pass@${k} ${estimate.toFixed(3)} [${low.toFixed(3)}, ${high.toFixed(3)}]`).join("   ");
}

function outcomeText({ outcomes }: Statistics): string {
  return `outcomes: ${outcomes.map(({ outcome, count }) => `${outcome} ${count}`).join(", ")}`;
}

export function phaseTable(times: readonly PhaseTime[], paint: ReturnType<typeof styler>): string {
  const right = "right" as const;
  return formatTable(
    [{ title: "time for" }, { title: "rollouts", align: right }, { title: "median", align: right }, { title: "longest", align: right }, { title: "sum", align: right }],
    times.map(({ phase, count, medianMs, maximumMs, totalMs }) => [PHASE_LABELS[phase], String(count), formatDuration(medianMs), formatDuration(maximumMs), formatDuration(totalMs)]),
    paint,
  );
}

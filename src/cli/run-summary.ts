/** A run as people read it: rewards by family and task, pass@k, outcomes, time by phase. */
import type { Failure } from "../rollout/events.ts";
import { byHarness, controllerLives, PHASE_LABELS, statisticsOf, type PhaseTime } from "../rollout/run-statistics.ts";
import type { RunState } from "../rollout/run-state.ts";
import type { GroupStatistics, Statistics } from "../rollout/statistics.ts";
import type { AppContext } from "./context.ts";
import { formatBytes, formatDuration, formatTable, printable, styler } from "./output.ts";

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
  parts.push(checkpointText(state));
  for (const { source, error } of state.refused.slice(0, 20)) parts.push(`${paint("yellow", "no task:")} ${printable(source)}: ${failureText(error)}`);
  return parts.filter((part) => part !== "").join("\n\n");
}

export function statusText(state: RunState): string {
  const done = `${state.recorded}/${state.rollouts.size}${state.planCompleted ? "" : "+"} rollouts`;
  return state.status === "finished" ? `finished, ${done}` : state.status === "interrupted" ? `stopped: ${state.interruption ?? ""}, ${done}` : `${controllerLives(state) ? "running" : "killed"}, ${done}`;
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

function checkpointText(state: RunState): string {
  let [count, ms, stoppedMs, bytes] = [0, 0, 0, 0];
  for (const { checkpoints } of state.rollouts.values()) {
    count += checkpoints.count;
    ms += checkpoints.ms;
    stoppedMs += checkpoints.stoppedMs;
    bytes += checkpoints.bytes;
  }
  return count === 0 ? "" : `checkpoints: ${count} in ${formatDuration(ms)} of the rollouts' time (machines stood still for ${formatDuration(stoppedMs)}), ${formatBytes(bytes / count)} each`;
}

export function phaseTable(times: readonly PhaseTime[], paint: ReturnType<typeof styler>): string {
  const right = "right" as const;
  return formatTable(
    [{ title: "time for" }, { title: "rollouts", align: right }, { title: "median", align: right }, { title: "longest", align: right }, { title: "sum", align: right }],
    times.map(({ phase, count, medianMs, maximumMs, totalMs }) => [PHASE_LABELS[phase], String(count), formatDuration(medianMs), formatDuration(maximumMs), formatDuration(totalMs)]),
    paint,
  );
}

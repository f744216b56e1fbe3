/** A run as people read it: rewards by family and task, pass@k, outcomes, time by phase. */
import type { Failure } from "../rollout/events.ts";
import { tokensUsed, totalCost, type Prices } from "../rollout/cost.ts";
import { byHarness, controllerLives, PHASE_LABELS, statisticsOf, type PhaseTime } from "../rollout/run-statistics.ts";
import type { RolloutState } from "../rollout/rollout-state.ts";
import type { RunState } from "../rollout/run-state.ts";
import { PASS_REWARD, type GroupStatistics, type Statistics } from "../rollout/statistics.ts";
import type { AppContext } from "./context.ts";
import { formatBytes, formatDollars, formatDuration, formatTable, printable, styler } from "./output.ts";

/** `prices`: of the run, where it has some. */
export function summaryText(context: AppContext, state: RunState, prices: Prices | undefined): string {
  const paint = styler(context.process.stdout, context.env);
  const summary = statisticsOf(state, prices);
  const parts = [`run ${state.run ?? ""} (${statusText(state)})`];
  if (state.rollouts.size > 0) {
    parts.push(groupTable("family", summary.families, paint));
    if (summary.tasks.length > 1) parts.push(groupTable("task", summary.tasks, paint));
    const harnesses = byHarness(state, prices);
    if (harnesses.length > 1) parts.push(groupTable("harness", harnesses, paint));
    parts.push(passText(summary.overall), outcomeText(summary.overall));
  }
  parts.push(tokenText([...state.rollouts.values()]), prices === undefined ? "" : costText(state, prices), checkpointText(state));
  for (const { source, error } of state.refused.slice(0, 20)) parts.push(`${paint("yellow", "no task:")} ${printable(source)}: ${failureText(error)}`);
  return parts.filter((part) => part !== "").join("\n\n");
}

export function statusText(state: RunState): string {
  const done = `${state.recorded}/${state.expected ?? `${state.rollouts.size}+`} rollouts`;
  return state.status === "finished" ? `finished, ${done}` : state.status === "interrupted" ? `stopped: ${state.interruption ?? ""}, ${done}` : `${controllerLives(state) ? "running" : "killed"}, ${done}`;
}

export function failureText(error: Failure): string {
  return printable(`${error.message}${error.fix === null ? "" : ` (${error.fix})`}`);
}

function groupTable(title: string, groups: readonly GroupStatistics[], paint: ReturnType<typeof styler>): string {
  const ks = new Set(groups.flatMap(({ passAtK }) => (passAtK.length > 1 ? [passAtK.at(-1)?.k] : [])));
  const common = ks.size === 1 ? [...ks][0] : null;
  const priced = groups.some(({ dollars }) => dollars !== null);
  const rows = groups.map(({ name, rollouts, scored, reward, passAtK, dollars }) => [
    printable(name),
    String(rollouts),
    String(scored),
    reward.mean === null ? "-" : reward.mean.toFixed(3),
    reward.standardError === null ? "" : `± ${(1.96 * reward.standardError).toFixed(3)}`,
    passAtK[0] === undefined ? "-" : passAtK[0].estimate.toFixed(3),
    // One number of attempts is the rule; where tasks differ in it, the cell says its own.
    ...(ks.size === 0 ? [] : [passAtK.length > 1 ? `${passAtK.at(-1)?.estimate.toFixed(3)}${common === null ? ` (k=${passAtK.at(-1)?.k})` : ""}` : ""]),
    ...(priced ? [formatDollars(dollars ?? 0)] : []),
  ]);
  const right = "right" as const;
  return formatTable([{ title }, { title: "rollouts", align: right }, { title: "scored", align: right }, { title: "mean", align: right }, { title: "95 %" }, { title: "pass@1", align: right }, ...(ks.size === 0 ? [] : [{ title: `pass@${common ?? "k"}`, align: right }]), ...(priced ? [{ title: "cost", align: right }] : [])], rows, paint);
}

function passText({ passAtK }: Statistics): string {
  return passAtK.map(({ k, estimate, low, high }) => `pass@${k} ${estimate.toFixed(3)} [${low.toFixed(3)}, ${high.toFixed(3)}]`).join("   ");
}

function outcomeText({ outcomes }: Statistics): string {
  return `outcomes: ${outcomes.map(({ outcome, count }) => `${outcome} ${count}`).join(", ")}`;
}

/** Of all tries; empty where no model was asked. */
export function tokenText(rollouts: readonly RolloutState[]): string {
  const { promptTokens: prompts, cachedTokens: cached, completionTokens: sampled, thrownAway } = tokensUsed(rollouts);
  const number = (tokens: number): string => tokens.toLocaleString("en");
  const lost = thrownAway.promptTokens + thrownAway.completionTokens === 0 ? "" : `; of which ${number(thrownAway.promptTokens)} and ${number(thrownAway.completionTokens)} in ${triesText(thrownAway.tries)}`;
  return prompts + sampled === 0 ? "" : `tokens: ${number(prompts)} in prompts${cached === 0 ? "" : ` (${number(cached)} of them cached)`}, ${number(sampled)} sampled${lost}`;
}

function triesText(tries: number): string {
  return tries === 1 ? "1 try that was thrown away" : `${tries.toLocaleString("en")} tries that were thrown away`;
}

/** In all, a rollout, and for each that passed. */
export function costText(state: RunState, prices: Prices): string {
  const rollouts = [...state.rollouts.values()];
  const { total, unknown } = totalCost(rollouts, prices);
  const passed = rollouts.filter(({ reward }) => reward !== null && reward >= PASS_REWARD).length;
  return `${spentText(rollouts, prices)}, ${formatDollars(total / Math.max(1, state.recorded))} a rollout${passed === 0 ? "" : `, ${formatDollars(total / passed)} for each that passed`}${unknown === 0 ? "" : `; without the tokens of ${unknown} rollouts whose agents came to no end`}`;
}

/** In all, and for what. */
export function spentText(rollouts: readonly RolloutState[], prices: Prices): string {
  const { total, thrownAway, unknown: _unknown, ...parts } = totalCost(rollouts, prices);
  const spent = Object.entries(parts).flatMap(([part, dollars]) => (dollars === 0 ? [] : [`${PARTS[part as keyof typeof parts]} ${formatDollars(dollars)}`]));
  const lost = thrownAway === 0 ? "" : `; of which ${formatDollars(thrownAway)} in ${triesText(tokensUsed(rollouts).thrownAway.tries)}`;
  return `cost: ${formatDollars(total)}${spent.length === 0 ? "" : ` (${spent.join(", ")}${lost})`}`;
}

const PARTS = { input: "prompts", cached: "cached prompts", output: "sampled", machine: "machines" } as const;

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
  const priced = times.some(({ dollars }) => dollars !== null);
  return formatTable(
    [{ title: "time for" }, { title: "rollouts", align: right }, { title: "median", align: right }, { title: "longest", align: right }, { title: "sum", align: right }, ...(priced ? [{ title: "cost", align: right }] : [])],
    times.map(({ phase, count, medianMs, maximumMs, totalMs, dollars }) => [PHASE_LABELS[phase], String(count), formatDuration(medianMs), formatDuration(maximumMs), formatDuration(totalMs), ...(priced ? [formatDollars(dollars ?? 0)] : [])]),
    paint,
  );
}

/**
 * Why a CLI ended. Exit codes of agent CLIs mean little: 0 follows a denied permission as well as a finished task, 1 a context overflow after which the work was done
 * all the same. What the gateway saw comes first, then the descriptor's rules, then the code. Nothing of this decides the reward.
 *
 * What a CLI prints may be the policy's own words, and so may its exit code: the agent's commands run as the same user, and can write to its output, break its files, or make it
 * end as they like. So a text counts only with the exit codes of its rule (all but 0, as a rule); a failure of the model server is believed only where the gateway, if there is
 * one, saw one after which nothing was answered; and once the model has answered, nothing is the CLI's own failure any more.
 */
import { MwError } from "../../core/errors.ts";
import type { SessionTotals } from "../../gateway/session.ts";
import type { ExecExit } from "../../sandbox/sandbox.ts";
import { stopOfExit, type Stop } from "../stop.ts";
import type { CliDescriptor, EndingRule } from "./descriptor.ts";

const BUDGET_STOPS = { calls: "turns", tokens: "tokens", timeMs: "agent_time" } as const;
const BUDGET_DETAILS = { calls: "The budget of model calls was used up.", tokens: "The token budget was used up.", timeMs: "The time of the model session was used up." } as const;
/** Of the output's end: an error is the last thing that a program says. */
const TAIL_CHARACTERS = 8192;

export interface CliOutput {
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
}

/** Throws `upstream_failed` for a failure of the model server, `environment` for one of the CLI itself. */
export function endOfCli(descriptor: CliDescriptor, exit: ExecExit, output: CliOutput, totals: SessionTotals | null): Stop {
  const plain = stopOfExit(exit, descriptor.title);
  if (plain.stopReason !== "finished" && plain.stopReason !== "crashed") return plain;
  const exhausted = totals?.exhausted ?? null;
  if (exhausted !== null) return { stopReason: BUDGET_STOPS[exhausted], detail: BUDGET_DETAILS[exhausted] };
  const tail = tailOf(output);
  const rule = descriptor.endings.find((candidate) => fits(candidate, exit.code, tail));
  if (rule !== undefined && rule.means !== "model_error" && rule.means !== "harness_error") return { stopReason: rule.means, detail: rule.detail };
  const broke = plain.stopReason === "crashed" || rule !== undefined;
  const answered = totals === null || totals.complete > 0;
  const failure = totals?.lastFailure ?? null;
  if (failure !== null && broke) throw modelError(descriptor, failure.message);
  if (totals === null && rule?.means === "model_error") throw modelError(descriptor, rule.detail);
  if (rule?.means === "harness_error" && (totals === null || !answered)) throw harnessError(descriptor, rule.detail);
  if (broke && !answered) throw harnessError(descriptor, `${plain.detail} It got no answer of the model: ${lastLine(tail)}`);
  return rule === undefined ? plain : { stopReason: "crashed", detail: rule.detail };
}

function fits(rule: EndingRule, code: number, tail: string): boolean {
  if (rule.codes === undefined ? code === 0 : !rule.codes.includes(code)) return false;
  return rule.text === undefined || new RegExp(rule.text, "im").test(tail);
}

function tailOf({ stdout, stderr }: CliOutput): string {
  const end = (bytes: Uint8Array): string => Buffer.from(bytes.subarray(-TAIL_CHARACTERS)).toString("utf8");
  // Errors come last, wherever a CLI writes them.
  return `${end(stdout)}\n${end(stderr)}`.trimEnd();
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1)?.slice(0, 500) ?? "";
}

function modelError({ title }: CliDescriptor, why: string): MwError {
  return new MwError("upstream_failed", `${title} gave up on the model server: ${why}`, { fix: "see the calls of the rollout (calls.jsonl) and the server's own log" });
}

function harnessError({ title, name }: CliDescriptor, why: string): MwError {
  return new MwError("environment", `${title} could not work: ${why}`, { fix: `see the rollout's commands/0001-stderr; mw harness test ${name} tries it alone` });
}

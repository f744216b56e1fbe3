/** What a model is told about a command that ran. */
import type { CommandResult } from "../command.ts";

/**
 * The status comes first, in a line that no output can stand before, then the output as text with U+FFFD for bytes that are no UTF-8. `timeoutMs`: what the command was
 * allowed.
 */
export function describeResult(result: CommandResult, timeoutMs: number): string {
  const output = new TextDecoder("utf-8", { ignoreBOM: true }).decode(result.stdout) + new TextDecoder("utf-8", { ignoreBOM: true }).decode(result.stderr);
  return `${statusOf(result, timeoutMs)}\n${output === "" ? "(no output)" : output}`;
}

function statusOf({ exit }: CommandResult, timeoutMs: number): string {
  const notes: string[] = [];
  if (exit.cause === "oom_killed") notes.push("a process was killed because the machine's memory limit was reached");
  if (exit.cause === "pids") notes.push("the machine's limit of processes was reached");
  if (exit.cause === "disk_full") notes.push("the machine's disk is full");
  const because = notes.length === 0 ? "" : ` (${notes.join("; ")})`;
  if (exit.ended === "timed_out") return `Killed: the command took longer than ${Math.round(timeoutMs / 1000)} seconds. Its output until then follows.${because}`;
  return `Exit code: ${exit.code}${because}`;
}

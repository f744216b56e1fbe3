/**
 * The scripted agent: plays the lines of a file as shell commands, one exec a line. A test double for tasks, verifiers and attackers.
 *
 * - Empty lines and lines whose first visible character is `#` are skipped. There is no continuation: a trailing backslash belongs to its line.
 * - Each line is `/bin/sh -c -- LINE` of its own in the task's working directory: a `cd`, a variable or a background job's number does not reach the next line
 *   (files and background processes do).
 * - Exit codes are recorded and change nothing. A line that passes the time of one command is killed, and the next one runs.
 */
import { readFileSync } from "node:fs";
import { MwError, messageOf } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Harness, HarnessContext, HarnessEnd } from "./harness.ts";
import { runCommand } from "./command.ts";
import { refuseLost, stopOfSignal, type Stop } from "./stop.ts";

/** For the help text of `--script`. */
export const SCRIPT_HELP =
  "Plays FILE's lines as shell commands, one exec a line (empty lines and # comments skipped, no continuation). Each line is a shell of its own: `cd` and variables do not persist; exit codes do not matter.";

export function script(path: string): Harness {
  const lines = readLines(path);
  return {
    name: "script",
    version: "1",
    needsModel: false,
    settings: { lines },
    run: (context) => play(context, lines),
  };
}

async function play(context: HarnessContext, lines: readonly string[]): Promise<HarnessEnd> {
  const startedAt = context.runtime.monotonic();
  let turns = 0;
  let toolMs = 0;
  const end = (stop: Stop): HarnessEnd => ({ ...stop, turns, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs });
  for (const line of lines) {
    const { timeMs, commandMs } = context.budgets;
    const leftMs = timeMs === null ? Infinity : timeMs - (context.runtime.monotonic() - startedAt);
    if (context.signal.aborted) return end(stopOfSignal(context.signal));
    if (leftMs <= 0) return end({ stopReason: "agent_time", detail: `The agent's time was used up after ${turns} of ${lines.length} lines.` });
    if (turns >= context.budgets.turns) return end({ stopReason: "turns", detail: `The turn budget ended the script after ${turns} of ${lines.length} lines.` });
    try {
      const { exit } = await runCommand(context, { command: ["/bin/sh", "-c", "--", line], shown: line, agentWasHere: turns > 0, timeoutMs: Math.ceil(Math.min(commandMs, leftMs)) });
      toolMs += exit.durationMs;
      turns++;
      if (!context.signal.aborted) refuseLost(exit, "a line of the script");
    } catch (error) {
      if (context.signal.aborted) break;
      throw error;
    }
  }
  if (context.signal.aborted) return end(stopOfSignal(context.signal));
  return end({ stopReason: "finished", detail: `The script ended after ${turns} lines.` });
}

function readLines(path: string): readonly string[] {
  const fix = "Give --script a readable text file of shell commands, one a line.";
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (error) {
    throw new MwError("invalid_input", `The script ${path} cannot be read: ${messageOf(error)}.`, { fix, cause: error });
  }
  if (bytes.length > LIMITS.solutionScriptBytes) {
    throw new MwError("invalid_input", `The script ${path} has ${bytes.length} bytes; at most ${LIMITS.solutionScriptBytes} are read.`, { fix });
  }
  if (bytes.includes(0)) throw new MwError("invalid_input", `The script ${path} contains a NUL byte, which no command can.`, { fix });
  const lines = bytes.toString("utf8").replace(/^\ufeff/, "").split(/\r?\n/);
  return lines.filter((line) => line.trim() !== "" && !line.trimStart().startsWith("#"));
}

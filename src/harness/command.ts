/** Runs one command of an agent, keeps a bounded view of its output, and has it recorded before the caller acts on it. */
import { LIMITS } from "../core/limits.ts";
import type { ExecExit, ExecOptions } from "../sandbox/sandbox.ts";
import type { CommandRecord, HarnessContext } from "./harness.ts";
import { ClippedOutput } from "./output.ts";

export interface CommandResult {
  readonly exit: ExecExit;
  /** What the agent sees: raw bytes, clipped to the budget with a line that says so. */
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
}

export interface CommandOptions extends Omit<ExecOptions, "signal" | "maxOutputBytes" | "openStdin"> {
  /** What the record calls the command, where the argv is only its wrapping. */
  readonly shown?: CommandRecord["command"];
}

/** Aborting the rollout kills the command; the record is written all the same. */
export async function runCommand(context: HarnessContext, options: CommandOptions): Promise<CommandResult> {
  const { shown, ...execOptions } = options;
  const { user, workdir, budgets, runtime, sandbox } = context;
  const at = new Date(runtime.now()).toISOString();
  const stdout = new ClippedOutput(budgets.outputBytes);
  const stderr = new ClippedOutput(budgets.outputBytes);
  const exec = await sandbox.exec({
    ...(user === null ? {} : { user }),
    ...(workdir === null ? {} : { cwd: workdir }),
    ...execOptions,
    signal: context.signal,
    maxOutputBytes: LIMITS.execOutputBytes,
  });
  for await (const chunk of exec.output) (chunk.stream === "stdout" ? stdout : stderr).push(chunk.data);
  const exit = await exec.exit;
  // A sandbox that died has nothing left to forget.
  if (exit.ended !== "lost") await exec.acknowledge().catch(() => undefined);
  const result: CommandResult = { exit, stdout: stdout.render(exit.stdoutBytes), stderr: stderr.render(exit.stderrBytes) };
  await context.recorder.command({
    at,
    command: shown ?? options.command,
    code: exit.code,
    ended: exit.ended,
    cause: exit.cause,
    durationMs: exit.durationMs,
    stdout: result.stdout,
    stderr: result.stderr,
    stdoutBytes: exit.stdoutBytes,
    stderrBytes: exit.stderrBytes,
  });
  return result;
}

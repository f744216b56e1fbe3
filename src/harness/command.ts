/** Runs one command of an agent, keeps a bounded view of its output, and has it recorded before the caller acts on it. */
import { MwError, type ErrorCode } from "../core/errors.ts";
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
  /**
   * Commands of the agent ran in this machine before: what keeps this one from starting (its directory or user is gone, the machine is full of processes) may be
   * the agent's doing, and is then a command that failed with 126, not a failure of the machinery.
   */
  readonly agentWasHere: boolean;
}

/** Aborting the rollout kills the command; the record is written all the same. */
export async function runCommand(context: HarnessContext, options: CommandOptions): Promise<CommandResult> {
  const at = new Date(context.runtime.now()).toISOString();
  const result = await execute(context, options).catch((error: unknown) => {
    if (options.agentWasHere && error instanceof MwError && AGENT_CAN_CAUSE.has(error.code)) return notStarted(error);
    throw error;
  });
  const { exit } = result;
  await context.recorder.command({
    at,
    command: options.shown ?? options.command,
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

/** Codes of a command that could not be started, which what ran before it in the machine can bring about. */
export const AGENT_CAN_CAUSE: ReadonlySet<ErrorCode> = new Set<ErrorCode>(["invalid_input", "not_found", "busy", "limit_exceeded", "timeout"]);

async function execute(context: HarnessContext, options: CommandOptions): Promise<CommandResult> {
  const { shown: _shown, agentWasHere: _agentWasHere, ...execOptions } = options;
  const { user, workdir, budgets, sandbox } = context;
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
  return { exit, stdout: stdout.render(exit.stdoutBytes), stderr: stderr.render(exit.stderrBytes) };
}

function notStarted(error: MwError): CommandResult {
  const stdout = new TextEncoder().encode(`The command could not be started: ${error.message}\n`);
  return {
    exit: { code: 126, signal: null, ended: "exited", cause: null, durationMs: 0, stdoutBytes: stdout.length, stderrBytes: 0, truncated: false },
    stdout,
    stderr: new Uint8Array(),
  };
}

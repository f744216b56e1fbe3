/** Runs one command of an agent, keeps a bounded view of its output, and has it recorded before the caller acts on it. */
import { messageOf, MwError, type ErrorCode } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Exec, ExecChunk, ExecExit, ExecOptions, Sandbox } from "../sandbox/sandbox.ts";
import { HandoverLost, type BegunProcess, type Handover } from "./handover.ts";
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
  /** Another controller may go on with it. */
  readonly handover?: Handover | undefined;
  /** For that one, see `Handover.beginning`. */
  readonly plan?: unknown;
}

/** Aborting the rollout kills the command; the record is written all the same. */
export async function runCommand(context: HarnessContext, options: CommandOptions): Promise<CommandResult> {
  const at = new Date(options.handover?.begun?.at ?? context.runtime.now()).toISOString();
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
  const { shown: _shown, agentWasHere: _agentWasHere, handover, plan, ...execOptions } = options;
  const { user, workdir, budgets, sandbox } = context;
  const stdout = new ClippedOutput(budgets.outputBytes);
  const stderr = new ClippedOutput(budgets.outputBytes);
  const keep = ({ stream, data }: ExecChunk): void => (stream === "stdout" ? stdout : stderr).push(data);
  const complete = {
    ...(user === null ? {} : { user }),
    ...(workdir === null ? {} : { cwd: workdir }),
    ...execOptions,
    signal: context.signal,
    maxOutputBytes: LIMITS.execOutputBytes,
  };
  const { begun = null } = handover ?? {};
  if (begun !== null) for await (const chunk of begun.earlier()) keep(chunk);
  else await handover?.beginning(plan);
  const exec = handover === undefined ? await sandbox.exec(complete) : begun === null ? await sandbox.exec({ ...complete, id: handover.exec }) : await attach(sandbox, handover, begun, complete);
  for await (const chunk of exec.output) {
    // Once it is asked for more, the machine forgets it.
    await handover?.said(chunk);
    keep(chunk);
  }
  const exit = await exec.exit;
  // A sandbox that died has nothing left to forget; another controller may still ask how the process ended.
  if (exit.ended !== "lost" && handover === undefined) await exec.acknowledge().catch(() => undefined);
  return { exit, stdout: stdout.render(exit.stdoutBytes), stderr: stderr.render(exit.stderrBytes) };
}

/** To a command that an earlier controller began, of whose input it may not have sent all. */
async function attach(sandbox: Sandbox, { exec: id, orBegins }: Handover, { offsets }: BegunProcess, options: ExecOptions & { readonly signal: AbortSignal }): Promise<Exec> {
  const { stdin = "", signal } = options;
  const exec = await sandbox.attach(id, offsets).catch((error: unknown) => {
    const isThere = !(error instanceof MwError) || error.code !== "not_found";
    if (orBegins !== true) throw isThere ? error : new HandoverLost("its agent had not begun yet", error);
    // Nobody may say that it could not begin.
    if (isThere) throw new HandoverLost(`the command that runs in its machine cannot be attached to: ${messageOf(error)}`, error);
    return null;
  });
  if (exec === null) return await sandbox.exec({ ...options, id });
  const rest = Buffer.from(stdin).subarray(exec.inputBytes ?? 0);
  // As where it is begun: it may end, or close its input, before it has read everything.
  void (rest.length === 0 ? Promise.resolve() : exec.writeStdin(rest)).then(() => exec.closeStdin()).catch(() => undefined);
  const onAbort = (): void => void exec.kill().catch(() => undefined);
  signal.addEventListener("abort", onAbort, { once: true });
  exec.exit.finally(() => signal.removeEventListener("abort", onAbort)).catch(() => undefined);
  if (signal.aborted) onAbort();
  return exec;
}

function notStarted(error: MwError): CommandResult {
  const stdout = new TextEncoder().encode(`The command could not be started: ${error.message}\n`);
  return {
    exit: { code: 126, signal: null, ended: "exited", cause: null, durationMs: 0, stdoutBytes: stdout.length, stderrBytes: 0, truncated: false },
    stdout,
    stderr: new Uint8Array(),
  };
}

/** Runs one command in a machine for somebody at a terminal or in a pipe: streams bytes both ways, and gives its exit code. */
import type { Exec, ExecOptions, ExecResult } from "../sandbox/sandbox.ts";
import type { AppContext } from "./context.ts";
import { note, printJson } from "./output.ts";

/** The part of a sandbox that runs commands. */
export interface Executor {
  run(options: ExecOptions): Promise<ExecResult>;
  exec(options: ExecOptions): Promise<Exec>;
}

export interface ExecFlags {
  readonly timeout?: number;
  readonly interactive: boolean;
  readonly tty: boolean;
  readonly json: boolean;
  readonly env?: readonly string[];
  readonly user?: string;
  readonly workdir?: string;
}

export async function driveExec(context: AppContext, executor: Executor, command: readonly string[], flags: ExecFlags): Promise<number> {
  const options = optionsOf(command, flags);
  if (flags.json) return printResult(context, await executor.run(flags.interactive ? { ...options, stdin: await readAll() } : options));
  const exec = await executor.exec({ ...options, openStdin: flags.interactive, maxOutputBytes: Number.MAX_SAFE_INTEGER });
  const stop = context.onInterrupt((signal) => void exec.kill(signal).catch(() => undefined));
  const leave = flags.interactive ? feedStdin(exec, flags.tty) : () => undefined;
  try {
    for await (const { stream, data } of exec.output) await write(stream === "stdout" ? process.stdout : process.stderr, data);
    const exit = await exec.exit;
    if (exit.ended === "timed_out") note(context, `mw: the command was killed after ${(flags.timeout ?? 0) / 1000} s`);
    if (exit.cause !== null) note(context, `mw: the command met a limit: ${exit.cause}`);
    return exit.ended === "timed_out" ? 124 : exit.code;
  } finally {
    leave();
    stop();
    await exec.acknowledge().catch(() => undefined);
  }
}

function optionsOf(command: readonly string[], flags: ExecFlags): ExecOptions {
  const pairs = (flags.env ?? []).map((pair): [string, string] => [pair.split("=", 1)[0] ?? "", pair.slice(pair.indexOf("=") + 1)]);
  return {
    command,
    env: { ...(flags.tty ? { TERM: process.env["TERM"] ?? "xterm" } : {}), ...Object.fromEntries(pairs) },
    ...(flags.user === undefined ? {} : { user: flags.user }),
    ...(flags.workdir === undefined ? {} : { cwd: flags.workdir }),
    ...(flags.timeout === undefined ? {} : { timeoutMs: flags.timeout }),
    ...(flags.tty ? { pty: { columns: process.stdout.columns ?? 80, rows: process.stdout.rows ?? 24 } } : {}),
  };
}

function printResult(context: AppContext, result: ExecResult): number {
  const { stdout, stderr, ...exit } = result;
  printJson(context, { ...exit, stdout: Buffer.from(stdout).toString("utf8"), stderr: Buffer.from(stderr).toString("utf8") });
  return result.ended === "timed_out" ? 124 : result.code;
}

/** Passes standard input on until the returned function is called; a terminal is raw meanwhile. */
function feedStdin(exec: Exec, tty: boolean): () => void {
  const { stdin, stdout } = process;
  const raw = tty &&  stdin.isTTY;
  if (raw) stdin.setRawMode(true);
  const onData = (data: Buffer): void => {
    stdin.pause();
    exec.writeStdin(data).then(() => stdin.resume(), () => undefined);
  };
  const onEnd = (): void => void exec.closeStdin().catch(() => undefined);
  const onResize = (): void => void exec.resize(stdout.columns, stdout.rows).catch(() => undefined);
  stdin.on("data", onData).on("end", onEnd);
  if (tty) stdout.on("resize", onResize);
  return () => {
    stdin.off("data", onData).off("end", onEnd);
    stdout.off("resize", onResize);
    if (raw) stdin.setRawMode(false);
    stdin.pause();
    stdin.unref();
  };
}

async function readAll(): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of process.stdin) parts.push(part as Buffer);
  return Buffer.concat(parts);
}

/** Waits for the reader: a slow terminal slows the command, not our memory. */
function write(stream: NodeJS.WriteStream, data: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => stream.write(data, (error) => (error == null ? resolve() : reject(error))));
}

/** Wires a process to the command tree and turns every ending into an exit code. */
import { ExitCode, run } from "@stricli/core";
import { systemRuntime } from "../core/runtime.ts";
import { buildApp } from "./app.ts";
import { asksForHelp, helpStream } from "./help-text.ts";
import type { AppContext, OutputStream } from "./context.ts";

export interface ProcessLike {
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  readonly env: AppContext["env"];
  readonly cwd: string;
  readonly onInterrupt: AppContext["onInterrupt"];
}

/** Runs one command line. Resolves to its exit code: 0 done, 1 ran but did not hold, 2 bad usage or input, 3 the environment lacks something, 130 interrupted. */
export async function runCli(inputs: readonly string[], host: ProcessLike): Promise<number> {
  const io: { exitCode?: number | string | null; readonly stdout: OutputStream; readonly stderr: OutputStream; readonly env: AppContext["env"] } = {
    stdout: asksForHelp(inputs) ? helpStream(host.stdout) : host.stdout,
    stderr: host.stderr,
    env: host.env,
  };
  const context: AppContext & { readonly process: typeof io } = {
    process: io,
    env: host.env,
    cwd: host.cwd,
    runtime: systemRuntime,
    setExitCode: (code) => {
      io.exitCode = code;
    },
    onInterrupt: host.onInterrupt,
  };
  await run(buildApp(), inputs.length === 0 ? ["--help"] : inputs, context);
  const code = Number(io.exitCode ?? 0);
  if (code === ExitCode.UnknownCommand || code === ExitCode.InvalidArgument) return 2;
  return code < 0 ? 1 : code;
}

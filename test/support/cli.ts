/** Runs command lines in this process, as `mw` would, and keeps what they print. */
import { runCli } from "../../src/cli/run-cli.ts";

export interface CliResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface CliOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Called with a function that sends an interrupt. */
  readonly interrupt?: (send: () => void) => void;
}

export async function mw(inputs: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  let stdout = "";
  let stderr = "";
  const listeners = new Set<(signal: "SIGINT" | "SIGTERM") => void>();
  options.interrupt?.(() => listeners.forEach((listener) => listener("SIGINT")));
  const code = await runCli(inputs, {
    stdout: { write: (text) => void (stdout += text) },
    stderr: { write: (text) => void (stderr += text) },
    env: { PATH: process.env["PATH"], HOME: "/nonexistent", MW_HOME: process.env["MW_HOME"], ...options.env },
    cwd: options.cwd ?? process.cwd(),
    onInterrupt: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  });
  return { code, stdout, stderr };
}

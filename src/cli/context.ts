/** What every command gets instead of globals: streams, environment, clock. A command is `async function (this: AppContext, flags, ...args)`. */
import type { CommandContext } from "@stricli/core";
import type { Runtime } from "../core/runtime.ts";

export interface OutputStream {
  write(text: string): void;
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
}

export interface AppContext extends CommandContext {
  readonly process: {
    /** Data. */
    readonly stdout: OutputStream;
    /** Progress, logs and errors. */
    readonly stderr: OutputStream;
  };
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly runtime: Runtime;
  /** The command ran to its end, but this is its exit code. Failures are thrown as `MwError` instead. */
  setExitCode(code: number): void;
  /** Calls `listener` on SIGINT and SIGTERM until the returned function is called. */
  onInterrupt(listener: (signal: "SIGINT" | "SIGTERM") => void): () => void;
}

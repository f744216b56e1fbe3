/** Runs a tool of the host to its end, for baking: its output is kept for the message when it fails, and it dies with the signal, or with this process. */
import { spawn } from "node:child_process";
import { MwError } from "../../core/errors.ts";

export interface ToolOptions {
  readonly cwd: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal;
  /** Completes "cannot ...". */
  readonly what: string;
  /** What to do when the tool is not there. */
  readonly install: string;
}

const TAIL_BYTES = 4000;

/**
 * The tool in a process group of its own, and beside it a watcher that kills the group when its input ends: that input is a pipe from this process, however it dies.
 * The group's leader ends with the tool's exit code.
 */
const GUARD = 'exec 3<&0; "$0" "$@" 3<&- </dev/null & tool=$!; (read -r end <&3; kill -9 -$$) >/dev/null 2>&1 & exec 3<&-; wait "$tool"';

/** Resolves to what the tool wrote to stdout (its last part, when it is much). Rejects `environment` where it is missing or fails. */
export async function runTool([program = "", ...args]: readonly string[], options: ToolOptions): Promise<string> {
  options.signal.throwIfAborted();
  const child = spawn("/bin/sh", ["-c", GUARD, program, ...args], { cwd: options.cwd, env: { ...options.env }, stdio: ["pipe", "pipe", "pipe"], detached: true });
  child.stdin.on("error", () => undefined);
  child.once("exit", () => child.stdin.end());
  // Its own group: what it started goes with it.
  const stop = (): void => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    } catch {
      // Gone meanwhile.
    }
  };
  options.signal.addEventListener("abort", stop, { once: true });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout = (stdout + text).slice(-1_000_000)));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr = (stderr + text).slice(-TAIL_BYTES)));
  try {
    const how = await new Promise<string>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code, signal) => resolve(signal ?? `exit code ${code}`));
    });
    options.signal.throwIfAborted();
    if (how === "exit code 0") return stdout;
    if (how === "exit code 127") throw new MwError("environment", `cannot ${options.what}: there is no program ${program}`, { fix: options.install });
    const tail = (stderr.trim() === "" ? stdout : stderr).trim().slice(-TAIL_BYTES);
    throw new MwError("environment", `cannot ${options.what}: ${program} ended with ${how}\n${tail}`, { fix: "check that the package registry can be reached and the version still exists" });
  } finally {
    options.signal.removeEventListener("abort", stop);
  }
}

/** An OCI runtime: runc, crun, or another program with runc's command line. Machines are what it runs; this is how it is found and asked. */
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { basename, isAbsolute } from "node:path";
import { promisify } from "node:util";
import { messageOf, MwError } from "../../../core/errors.ts";
import { findProgram, nativePrograms } from "../native/programs.ts";

/** Tried in this order where none is named. */
export const KNOWN_RUNTIMES = ["runc", "crun"] as const;

/** One that hangs is given up. */
const COMMAND_MS = 60_000;

const run = promisify(execFile);

export interface OciRuntime {
  /** Its file's name. */
  readonly name: string;
  readonly path: string;
  /** First line of what it says of itself. */
  readonly version: string;
}

/** Finds the runtime: a name on PATH, or an absolute path; null means the first known one that is there. Rejects `environment` when it is not there or does not start. */
export async function findRuntime(wanted: string | null): Promise<OciRuntime> {
  const path = wanted === null ? KNOWN_RUNTIMES.map(findProgram).find((found) => found !== null) : isAbsolute(wanted) ? (existsSync(wanted) ? wanted : null) : findProgram(wanted);
  if (path === undefined || path === null) {
    throw new MwError("environment", wanted === null ? `No OCI runtime is installed: ${KNOWN_RUNTIMES.join(" or ")}` : `The OCI runtime ${JSON.stringify(wanted)} is not there`, {
      fix: "install one (Debian: apt-get install runc), or name it: --backend oci:/path/to/runtime",
    });
  }
  try {
    const { stdout } = await run(path, ["--version"], { timeout: COMMAND_MS });
    return { name: basename(path), path, version: stdout.split("\n")[0]?.trim() ?? "" };
  } catch (error) {
    throw new MwError("environment", `The OCI runtime ${path} does not start: ${messageOf(error)}`, { cause: error });
  }
}

/** Beside control groups of version 1 some hosts mount version 2, without controllers; crun refuses such a mixture, so it is hidden from all. */
function unusedHierarchy(): readonly string[] {
  const line = readFileSync("/proc/self/mountinfo", "utf8").split("\n").find((text) => text.includes(" - cgroup2 "));
  const place = line?.split(" ")[4];
  return place === undefined || place === "/sys/fs/cgroup" ? [] : ["--hide", place];
}

/** A program and the arguments that start `runtime` with `command` after `setup`, as native/oci.c reads it. */
export function runtimeCommand(runtime: OciRuntime, state: string, setup: readonly string[], command: readonly string[]): readonly [string, readonly string[]] {
  return [nativePrograms().oci, [...unusedHierarchy(), ...setup, "--", runtime.path, "--root", state, ...command]];
}

/** Has the runtime do something with a machine. Rejects `sandbox_failed` with what it said. */
export async function askRuntime(runtime: OciRuntime, state: string, command: readonly string[]): Promise<void> {
  const [program, args] = runtimeCommand(runtime, state, [], command);
  try {
    await run(program, args, { timeout: COMMAND_MS });
  } catch (error) {
    const said = (error as { readonly stderr?: string }).stderr?.trim() ?? "";
    throw new MwError("sandbox_failed", `${runtime.name} ${command.join(" ")}: ${said === "" ? messageOf(error) : said}`, { cause: error });
  }
}

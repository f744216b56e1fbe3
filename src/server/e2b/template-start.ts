/**
 * The start command of a template, and the command that tells when it is ready. Once at the build: one that never gets ready is no template. The machine in which it is ready is kept with
 * its processes, and sandboxes go on from there; where that is not possible it runs in each sandbox when it is made, which is answered when it is ready.
 */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { ExecExit, Sandbox } from "../../sandbox/sandbox.ts";
import type { SandboxRequest } from "../sandboxes/sandbox-entry.ts";
import type { ProcessHub } from "./envd/process-hub.ts";
import { SHELL } from "./template-dockerfile.ts";

/** Lines for a shell; one of both is there. */
export interface TemplateCommands {
  readonly start: string | null;
  readonly ready: string | null;
}

export interface StartSurroundings {
  readonly hub: ProcessHub;
  readonly workdir: string;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
  readonly log: (line: string) => void;
}

const ASK_AGAIN_MS = 200;
/** Of a ready command that hangs. */
const ASK_MS = 30_000;
const TAIL_BYTES = 2_000;

/** Rejects `sandbox_failed` when the start command fails before it is ready, `timeout` when it never is, and with the signal's reason. */
export async function startIn(sandbox: Sandbox, { start, ready }: TemplateCommands, { hub, workdir, runtime, signal, log }: StartSurroundings): Promise<void> {
  let tail = "";
  let ended: ExecExit | null = null;
  const said = (): string => (tail.trim() === "" ? "" : `\n${tail.trim()}`);
  if (start !== null) {
    log(`start: ${start}`);
    const [cmd = "", ...args] = shell(start);
    const process = await hub.start({ command: [cmd, ...args], cwd: workdir }, { tag: "start_cmd", config: { cmd: "/bin/sh", args: ["-c", start], envs: {}, cwd: workdir } }, async (_stream, data) => {
      tail = (tail + Buffer.from(data).toString("utf8")).slice(-TAIL_BYTES);
      return true;
    });
    process.done.then((exit) => (ended = exit), () => undefined);
  }
  const deadline = runtime.monotonic() + LIMITS.templateReadyMs;
  // Without a ready command, ready is what has not failed by the time that one would be asked a second time.
  for (let asked = 0; ; asked++) {
    const exit = exitOf(ended);
    if (exit !== null && exit.code !== 0) throw new MwError("sandbox_failed", `the start command ended with ${exit.code}${said()}`);
    if (ready === null ? asked > 0 : (await sandbox.run({ command: shell(ready), cwd: workdir, timeoutMs: ASK_MS, signal })).code === 0) break;
    if (runtime.monotonic() > deadline) throw new MwError("timeout", `the ready command ${JSON.stringify(ready)} did not succeed within ${LIMITS.templateReadyMs / 1000} seconds${said()}`);
    await runtime.sleep(ASK_AGAIN_MS, signal);
  }
  log("ready");
}

/** As what a protocol keeps with its sandbox. */
export function keptCommands(commands: TemplateCommands | null): NonNullable<SandboxRequest["extra"]> {
  return { ...(commands === null || commands.start === null ? {} : { start: commands.start }), ...(commands === null || commands.ready === null ? {} : { ready: commands.ready }) };
}

export function commandsOf(extra: SandboxRequest["extra"]): TemplateCommands | null {
  const { start = null, ready = null } = extra ?? {};
  return start === null && ready === null ? null : { start, ready };
}

function shell(line: string): readonly string[] {
  return ["/bin/sh", "-c", SHELL, line];
}

/** It is set elsewhere, which the compiler does not see. */
function exitOf(ended: ExecExit | null): ExecExit | null {
  return ended;
}

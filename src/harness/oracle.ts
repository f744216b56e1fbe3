/**
 * The reference agent: puts the task's `solution/` into the machine as `/solution`, owned by root, runs `solve.sh` as the agent's user in the agent's working
 * directory, and takes `/solution` away again, whatever happened.
 *
 * The script is given to bash, or to sh where the image has no bash; its execute bit and shebang do not matter, and CRLF line ends in it are made LF, because
 * tasks in the wild have both. What it scores is the ceiling of a task.
 */
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Harness, HarnessContext, HarnessEnd } from "./harness.ts";
import { runCommand } from "./command.ts";
import { stopOfExit, stopOfSignal } from "./stop.ts";

const TARGET = "/solution";
const RUN = 'if command -v bash >/dev/null 2>&1; then exec bash "$0"; else exec sh "$0"; fi';

export const oracle: Harness = {
  name: "oracle",
  version: "1",
  needsModel: false,
  settings: {},
  usesSolution: true,
  check: (task) => void solutionScript(task.solution.directory),
  run,
};

async function run(context: HarnessContext): Promise<HarnessEnd> {
  const { directory, env } = context.solution;
  const script = solutionScript(directory);
  const none = { turns: 0, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0 };
  if (context.signal.aborted) return { ...stopOfSignal(context.signal), ...none };
  try {
    await upload(context, script);
    const { exit } = await runCommand(context, {
      command: ["/bin/sh", "-c", RUN, `${TARGET}/solve.sh`],
      agentWasHere: false,
      env: { DEBIAN_FRONTEND: "noninteractive", ...env },
      ...(context.budgets.timeMs === null ? {} : { timeoutMs: context.budgets.timeMs }),
    });
    const stop = context.signal.aborted ? stopOfSignal(context.signal) : stopOfExit(exit, "solve.sh");
    return { ...stop, ...none, turns: 1, toolMs: exit.durationMs };
  } catch (error) {
    // A cancelled transfer rejects; that is the caller's wish, not a failure of the machinery.
    if (context.signal.aborted) return { ...stopOfSignal(context.signal), ...none };
    throw error;
  } finally {
    // Fails only when the machine is gone, and the solution with it.
    await context.sandbox.files.remove(TARGET).catch(() => undefined);
  }
}

async function upload(context: HarnessContext, script: { readonly directory: string; readonly text: Buffer }): Promise<void> {
  const { files } = context.sandbox;
  // Whatever the image has there is not the solution.
  await files.remove(TARGET);
  const report = await files.upload(script.directory, TARGET, { owner: "0:0", signal: context.signal });
  for (const { path, reason } of report.refused) await context.recorder.note(`solution/${path} was not copied into the sandbox: ${reason}`);
  if (script.text.includes("\r\n")) {
    const text = Buffer.from(script.text.toString("latin1").replaceAll("\r\n", "\n"), "latin1");
    await files.write(`${TARGET}/solve.sh`, text, { mode: 0o755, owner: "0:0" });
    await context.recorder.note("solve.sh has CRLF line ends; it ran with LF.");
  }
  // Files of a checkout may be private to the host's user, and the agent's user is not root. An image without chmod has no second user either.
  await context.sandbox.run({ command: `chmod -R a+rX ${TARGET} || :`, user: "0:0", cwd: "/", timeoutMs: 60_000, signal: context.signal });
}

function solutionScript(directory: string | null): { readonly directory: string; readonly text: Buffer } {
  const fix = "Add solution/solve.sh to the task, or choose another harness with --harness.";
  if (directory === null) throw new MwError("invalid_task", "The oracle needs the task's reference solution, and the task has no solution/ directory.", { fix });
  const path = join(directory, "solve.sh");
  try {
    const info = statSync(path);
    if (!info.isFile()) throw new MwError("invalid_task", `The oracle runs solution/solve.sh, but ${path} is not a regular file.`, { fix });
    if (info.size > LIMITS.solutionScriptBytes) {
      throw new MwError("invalid_task", `The oracle reads at most ${LIMITS.solutionScriptBytes} bytes of solve.sh, but ${path} has ${info.size}.`, { fix });
    }
    return { directory, text: readFileSync(path) };
  } catch (error) {
    if (error instanceof MwError) throw error;
    throw new MwError("invalid_task", `The oracle needs ${path}, which cannot be read.`, { fix, cause: error });
  }
}

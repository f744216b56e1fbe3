/** What is taken from a machine once the agent is done. */
import { startDeadline, withDeadline } from "../../core/deadline.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { AGENT_CAN_CAUSE } from "../../harness/command.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { collectArtifacts } from "../artifacts.ts";
import type { StepWork } from "../steps.ts";
import type { TryRequest, TryServices } from "./request.ts";

/** What takes longer than all of them may is not collected: the agent can leave as much as it likes. Only work that does not end on its signal is a failure of ours. */
export async function collectInTime({ runtime }: TryServices, { signal }: TryRequest, sandbox: Sandbox, step: StepWork, workdir: string, directory: string): Promise<Awaited<ReturnType<typeof collectArtifacts>>> {
  return await withDeadline(runtime, LIMITS.collectTimeoutMs + LIMITS.harnessGraceMs, "collecting artifacts", signal, async (outer) => {
    const deadline = startDeadline(runtime, LIMITS.collectTimeoutMs, "collecting the artifacts", outer);
    try {
      return await collectArtifacts(sandbox, step.artifacts, workdir, directory, deadline.signal);
    } finally {
      deadline.clear();
    }
  });
}

/** Commands that write living state to files, before the processes end. Best effort: the verdict shows what is missing. */
export async function runHooks({ timeoutMultiplier }: TryServices, { recorder, signal }: TryRequest, sandbox: Sandbox, step: StepWork): Promise<void> {
  for (const { command, timeoutMs, user } of step.collect) {
    const options = { command, timeoutMs: timeoutMs * timeoutMultiplier, ...(user === null ? {} : { user }), maxOutputBytes: LIMITS.healthcheckOutputBytes, signal };
    const { code, ended } = await sandbox.run(options).catch((error: unknown) => {
      // The agent may have taken away its directory or its user, or all processes: then the command failed like any other.
      if (error instanceof MwError && AGENT_CAN_CAUSE.has(error.code)) return { code: 126, ended: "exited" } as const;
      throw error;
    });
    signal.throwIfAborted();
    if (ended !== "exited" || code !== 0) await recorder.note(`the collect command ${JSON.stringify(command)} ${ended === "exited" ? `exited with ${code}` : `was ${ended}`}`);
  }
}

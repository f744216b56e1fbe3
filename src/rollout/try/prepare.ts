/** What a machine gets before the agent: the task's files, those of a step, and the wait until it is healthy. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { withDeadline } from "../../core/deadline.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { RootFilesystem, Sandbox } from "../../sandbox/sandbox.ts";
import { waitHealthy } from "../health-check.ts";
import type { StepWork } from "../steps.ts";
import type { TryRequest, TryServices } from "./request.ts";

export async function prepareMachine({ runtime }: TryServices, { task, signal }: TryRequest, sandbox: Sandbox, root: RootFilesystem): Promise<void> {
  const { environment } = task;
  await withDeadline(runtime, LIMITS.prepareTimeoutMs, "preparing the machine", signal, async (inner) => {
    if (environment.dockerfile === null && (await hasFiles(environment.context))) {
      await upload(sandbox, environment.context, environment.workdir ?? root.workdir, "environment/", inner);
    }
    if (environment.healthcheck !== null) await waitHealthy(sandbox, environment.healthcheck, runtime, inner);
  });
}

export async function setUpStep({ runtime }: TryServices, { task, signal }: TryRequest, sandbox: Sandbox, step: StepWork): Promise<void> {
  await withDeadline(runtime, LIMITS.prepareTimeoutMs, `preparing the step ${step.name ?? ""}`, signal, async (inner) => {
    if (step.files !== null) {
      const workdir = task.environment.workdir ?? sandbox.spec.root.workdir;
      await upload(sandbox, step.files, workdir, `steps/${step.name}/workdir/`, inner);
      const setup = join("/", workdir, "setup.sh");
      if ((await sandbox.files.stat(setup)) !== null) {
        const { code, stderr } = await sandbox.run({ command: ["/bin/sh", setup], signal: inner });
        if (code !== 0) throw new MwError("invalid_task", `steps/${step.name}/workdir/setup.sh exited with ${code}: ${new TextDecoder().decode(stderr).slice(-500)}`);
      }
    }
    if (step.healthcheck !== null) await waitHealthy(sandbox, step.healthcheck, runtime, inner);
  });
}

async function upload(sandbox: Sandbox, from: string, to: string, what: string, signal: AbortSignal): Promise<void> {
  const report = await sandbox.files.upload(from, to, { signal });
  const [first] = report.refused;
  if (first !== undefined) throw new MwError("invalid_task", `${what} cannot be uploaded: ${first.path}: ${first.reason}`, { fix: "take it out of the task" });
}

async function hasFiles(directory: string): Promise<boolean> {
  const names = await readdir(directory).catch(() => []);
  return names.length > 0;
}

/** Waits until a machine is healthy, by Docker's rules: failures during the start period do not count, then so many in a row are the end. */
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { HealthCheck } from "../task/task.ts";

export async function waitHealthy(sandbox: Sandbox, check: HealthCheck, runtime: Runtime, signal: AbortSignal): Promise<void> {
  const startedAt = runtime.monotonic();
  for (let failures = 0; ; ) {
    const starting = runtime.monotonic() - startedAt < check.startPeriodMs;
    const result = await sandbox.run({ command: check.command, timeoutMs: check.timeoutMs, maxOutputBytes: LIMITS.healthcheckOutputBytes, signal });
    signal.throwIfAborted();
    if (result.ended === "exited" && result.code === 0) return;
    if (result.ended === "lost") throw new MwError("sandbox_failed", "the machine died during its health check");
    if (!starting) failures++;
    if (failures >= Math.max(1, check.retries)) {
      const how = result.ended === "timed_out" ? `took longer than ${check.timeoutMs / 1000} s` : `exited with ${result.code}`;
      const output = new TextDecoder().decode(result.stderr.length > 0 ? result.stderr : result.stdout).trim().slice(-500);
      throw new MwError("invalid_task", `the health check failed ${failures} times: ${JSON.stringify(check.command)} ${how}${output === "" ? "" : `: ${output}`}`, {
        fix: "correct [environment.healthcheck] in task.toml, or what it checks in the image",
      });
    }
    await runtime.sleep(starting ? check.startIntervalMs : check.intervalMs, signal);
  }
}

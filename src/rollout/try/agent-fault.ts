/** Which failures an agent brought about itself: they are no failures of ours, and its work is graded as it is. */
import { MwError, toMwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import { AGENT_CAN_CAUSE } from "../../harness/command.ts";
import type { HarnessEnd } from "../../harness/harness.ts";
import { diedOfMemory } from "../../sandbox/died.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";

/** Whether the agent brought the failure about itself, by using up what its machine had: then its work is graded as it is. */
export async function agentFault(sandbox: Sandbox, error: unknown, runtime: Runtime): Promise<Pick<HarnessEnd, "stopReason" | "detail"> | null> {
  const { code, message } = toMwError(error);
  if (code === "host_exhausted" || code === "upstream_failed" || code === "cancelled") return null;
  const metrics = await sandbox.metrics().catch(() => null);
  if (metrics === null) return (await diedOfMemory(sandbox, runtime)) ? { stopReason: "oom_killed", detail: `The machine died of the memory that was used up in it: ${message}` } : null;
  if (metrics.limits.oom_killed > 0) return { stopReason: "oom_killed", detail: `The machine's memory was used up: ${message}` };
  if (metrics.limits.disk_full > 0) return { stopReason: "crashed", detail: `The machine's disk was full: ${message}` };
  if (metrics.limits.pids > 0) return { stopReason: "crashed", detail: `The machine's processes were used up: ${message}` };
  return null;
}

/** What keeps a harness that has worked before in this rollout from starting again is what it did there, unless the task's new words are the matter. */
export function faultOfEarlierStep(error: unknown): Pick<HarnessEnd, "stopReason" | "detail"> | null {
  const { code, message } = toMwError(error);
  return code === "environment" || AGENT_CAN_CAUSE.has(code) ? { stopReason: "crashed", detail: `What an earlier step left keeps the agent from working: ${message}` } : null;
}

/** Whether the failure may be the end of the machine. */
export function isGone(error: unknown): boolean {
  return error instanceof MwError && (error.code === "sandbox_gone" || error.code === "sandbox_failed");
}

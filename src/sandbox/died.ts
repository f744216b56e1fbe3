/** Whether a machine that no longer answers died as a whole because its memory was used up: by what ran in it, then, and with its files kept. */
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Sandbox } from "./sandbox.ts";

/** Call only when it seems to be gone: its end is reported a moment after its connections broke, and that is waited for. */
export async function diedOfMemory(sandbox: Sandbox, runtime: Runtime): Promise<boolean> {
  const end = await Promise.race([sandbox.ended, runtime.sleep(LIMITS.endReportMs).then(() => null)]);
  return end?.kept === true;
}

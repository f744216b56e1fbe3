/** Limits that nobody asked for and that machines of a host have all the same, so that one of them cannot exhaust it. */
import { LIMITS } from "../core/limits.ts";
import type { Capabilities } from "./sandbox.ts";

/** None where the host is somebody else's, who limits for himself. */
export function defaultLimits({ isolation }: Capabilities): { readonly pids?: number } {
  return isolation.profile === "remote" ? {} : { pids: LIMITS.sandboxPids };
}

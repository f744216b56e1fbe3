/** Why a harness stopped, from the rollout's abort signal or from how a command ended. */
import type { StopReason } from "../core/outcome.ts";
import { MwError } from "../core/errors.ts";
import type { ExecExit } from "../sandbox/sandbox.ts";

export interface Stop {
  readonly stopReason: StopReason;
  readonly detail: string;
}

/** Call only when the signal is aborted: `agent_time` for a deadline, else `cancelled`. */
export function stopOfSignal(signal: AbortSignal): Stop {
  const reason: unknown = signal.reason;
  const timedOut = reason instanceof MwError ? reason.code === "timeout" : reason instanceof Error && reason.name === "TimeoutError";
  return timedOut ? { stopReason: "agent_time", detail: "The agent's time was used up." } : { stopReason: "cancelled", detail: "The rollout was cancelled." };
}

/** What the end of the one command that is the whole agent means. A machine that died under it is a failure of the machinery and throws. */
export function stopOfExit(exit: ExecExit, what: string): Stop {
  refuseLost(exit, what);
  if (exit.cause === "oom_killed") return { stopReason: "oom_killed", detail: `${what} was killed for memory.` };
  if (exit.ended === "timed_out") return { stopReason: "agent_time", detail: `${what} did not end within the agent's time.` };
  if (exit.ended === "killed") return { stopReason: "cancelled", detail: `${what} was stopped on request.` };
  if (exit.code === 0) return { stopReason: "finished", detail: `${what} ended with exit code 0.` };
  const how = exit.signal === null ? `exit code ${exit.code}` : `signal ${exit.signal}`;
  return { stopReason: "crashed", detail: `${what} ended with ${how}.` };
}

/** Throws `sandbox_failed` when the sandbox died under the command. */
export function refuseLost(exit: ExecExit, what: string): void {
  if (exit.ended !== "lost") return;
  throw new MwError("sandbox_failed", `The sandbox died while ${what} ran in it.`, { fix: "Run the rollout again; `mw doctor` says whether the host is short of memory or disk." });
}

/** Time limits as abort signals. Everything that waits has one. */
import { MwError } from "./errors.ts";
import type { Runtime } from "./runtime.ts";

export interface Deadline {
  /** Aborted with an `MwError` `timeout` when the time is over, or with the parent's reason when that is aborted first. */
  readonly signal: AbortSignal;
  /** Whether it was the time that ended it. */
  readonly passed: boolean;
  /** Stops the timer. */
  clear(): void;
}

/** `ms` null: no time of its own. `what` completes "... took longer than N s". */
export function startDeadline(runtime: Runtime, ms: number | null, what: string, parent?: AbortSignal): Deadline {
  const controller = new AbortController();
  const stop = new AbortController();
  let passed = false;
  const onParent = (): void => controller.abort(parent?.reason);
  if (parent?.aborted === true) onParent();
  else parent?.addEventListener("abort", onParent, { once: true });
  if (ms !== null) {
    runtime.sleep(ms, stop.signal).then(
      () => {
        passed = !controller.signal.aborted;
        controller.abort(new MwError("timeout", `${what} took longer than ${ms / 1000} s`));
      },
      () => undefined,
    );
  }
  return {
    signal: controller.signal,
    get passed() {
      return passed;
    },
    clear: () => {
      // A reason of our own costs no stack trace.
      stop.abort("cleared");
      parent?.removeEventListener("abort", onParent);
    },
  };
}

/** The work's result, or the signal's reason, whichever comes first. The work itself is expected to end on the same signal. */
export function orAbort<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

/** Runs work under a deadline: its signal is passed on, and what does not listen to it is left behind. */
export async function withDeadline<T>(runtime: Runtime, ms: number | null, what: string, parent: AbortSignal | undefined, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const deadline = startDeadline(runtime, ms, what, parent);
  try {
    return await orAbort(work(deadline.signal), deadline.signal);
  } finally {
    deadline.clear();
  }
}

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

/** How long to wait before looking again whether time that does not count has passed meanwhile. */
const AGAIN_MS = 250;

/** `ms` null: no time of its own. `what` completes "... took longer than N s". `notCountedMs`: a figure that grows while time passes that does not count. */
export function startDeadline(runtime: Runtime, ms: number | null, what: string, parent?: AbortSignal, notCountedMs: () => number = () => 0): Deadline {
  const controller = new AbortController();
  const stop = new AbortController();
  let passed = false;
  const onParent = (): void => controller.abort(parent?.reason);
  if (parent?.aborted === true) onParent();
  else parent?.addEventListener("abort", onParent, { once: true });
  if (ms !== null) {
    sleepCounted(runtime, ms, notCountedMs, stop.signal).then(
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

async function sleepCounted(runtime: Runtime, ms: number, notCountedMs: () => number, signal: AbortSignal): Promise<void> {
  const end = runtime.monotonic() + ms - notCountedMs();
  await runtime.sleep(ms, signal);
  for (let left = end + notCountedMs() - runtime.monotonic(); left > 0; left = end + notCountedMs() - runtime.monotonic()) await runtime.sleep(Math.max(left, AGAIN_MS), signal);
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
export async function withDeadline<T>(
  runtime: Runtime,
  ms: number | null,
  what: string,
  parent: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
  notCountedMs?: () => number,
): Promise<T> {
  const deadline = startDeadline(runtime, ms, what, parent, notCountedMs);
  try {
    return await orAbort(work(deadline.signal), deadline.signal);
  } finally {
    deadline.clear();
  }
}

/** Aborted with the reason of the first of `signals` that is. `release` lets go of them: those that live long would keep it for as long. */
export function firstOf(...signals: readonly AbortSignal[]): { readonly signal: AbortSignal; release(): void } {
  const controller = new AbortController();
  const listeners = signals.map((signal) => [signal, (): void => controller.abort(signal.reason)] as const);
  for (const [signal, onAbort] of listeners) {
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  }
  return {
    signal: controller.signal,
    release: () => {
      for (const [signal, onAbort] of listeners) signal.removeEventListener("abort", onAbort);
    },
  };
}

/**
 * Which policy samples now: its version, its model's name, and the endpoints that serve it.
 *
 * While the policy is `updating`, whoever asks for it waits; what was begun under an earlier version is told of the change and may go on or stop.
 */
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";

export interface PolicyEndpoint {
  /** Base address, as `--upstream` takes it. */
  readonly url: string;
  readonly kind?: "vllm" | "sglang" | "openai";
}

/** The policy as it samples. */
export interface LivePolicy {
  readonly version: number;
  readonly model: string;
  /** At least one. */
  readonly endpoints: readonly PolicyEndpoint[];
}

export interface PolicyView {
  /** Null before the first change. */
  readonly version: number | null;
  readonly state: "none" | "live" | "updating";
  readonly model: string | null;
  readonly endpoints: readonly PolicyEndpoint[];
}

export class PolicyRegister {
  readonly #runtime: Runtime;
  #policy: LivePolicy | null = null;
  #updating = false;
  /** Ended ones; and when the one that is under way began. */
  #updatesMs = 0;
  #updateBeganAt = 0;
  readonly #listeners = new Set<(view: PolicyView) => void>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  get current(): PolicyView {
    if (this.#policy === null) return { version: null, state: "none", model: null, endpoints: [] };
    return { ...this.#policy, state: this.#updating ? "updating" : "live" };
  }

  /** That versions only grow is up to who sets it: a run that goes back to a checkpoint goes back to its policy. */
  set({ state, ...policy }: LivePolicy & { readonly state: "live" | "updating" }): void {
    if (policy.endpoints.length === 0) throw new MwError("usage", "a policy without endpoints cannot sample", { fix: "give at least one endpoint" });
    this.#policy = policy;
    this.#updatesMs = this.updatingMs;
    this.#updateBeganAt = this.#runtime.monotonic();
    this.#updating = state === "updating";
    const view = this.current;
    for (const listener of this.#listeners) listener(view);
  }

  /** How long the policy has been `updating` in all: nobody's time, while agents wait for it. */
  get updatingMs(): number {
    return this.#updatesMs + (this.#updating ? this.#runtime.monotonic() - this.#updateBeganAt : 0);
  }

  /** Told of every change, after it. Returns the unsubscriber. */
  onChange(listener: (view: PolicyView) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The policy, once it is live. Rejects `busy` after `holdMs`, and with the signal's reason when that fires. */
  async live(signal: AbortSignal, holdMs: number = LIMITS.policyHoldMs): Promise<LivePolicy> {
    signal.throwIfAborted();
    const now = this.#liveNow();
    if (now !== null) return now;
    return await new Promise((resolve, reject) => {
      const late = new AbortController();
      const settle = (act: () => void): void => {
        stopListening();
        signal.removeEventListener("abort", onAbort);
        late.abort("settled");
        act();
      };
      const onAbort = (): void => settle(() => reject(signal.reason));
      const stopListening = this.onChange(() => {
        const live = this.#liveNow();
        if (live !== null) settle(() => resolve(live));
      });
      signal.addEventListener("abort", onAbort, { once: true });
      this.#runtime.sleep(holdMs, late.signal).then(
        () => settle(() => reject(new MwError("busy", this.#policy === null ? "no policy has been named yet" : "the policy is being updated", { fix: "try again once it is live" }))),
        () => undefined,
      );
    });
  }

  /** Resolves at the next change, or after `ms`. */
  async changed(ms: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const onAbort = (): void => stop.abort("over");
    const stopListening = this.onChange(onAbort);
    signal.addEventListener("abort", onAbort, { once: true });
    try {
      if (!signal.aborted) await this.#runtime.sleep(ms, stop.signal).catch(() => undefined);
    } finally {
      stopListening();
      signal.removeEventListener("abort", onAbort);
    }
    signal.throwIfAborted();
  }

  #liveNow(): LivePolicy | null {
    return this.#updating ? null : this.#policy;
  }
}

/** As `--upstream` takes it. */
export function specOf({ kind, url }: PolicyEndpoint): string {
  return kind === undefined ? url : `${kind}=${url}`;
}

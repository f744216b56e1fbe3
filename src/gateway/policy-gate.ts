/**
 * Which policy samples now, and a halt for new calls while its weights are exchanged.
 *
 * Calls that are in flight when an update begins go on: engines change weights between tokens, or are drained by whoever updates them. Where the engine itself says which
 * version sampled a token, that holds; else a call counts as sampled by the version under which it began, the oldest that can have had a part in it.
 */
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { GatewayFailure } from "./failure.ts";
import type { CallTokens } from "./upstreams/upstream.ts";

/** A harness that was sent away comes back after this. */
const RETRY_AFTER_MS = 5_000;

export interface PolicyPass {
  /** Null where nobody named it. */
  readonly version: string | null;
  /** The tokens with their versions: the engine's where it gave them, else the pass's. */
  stamp(tokens: CallTokens): CallTokens;
}

export class PolicyGate {
  readonly #runtime: Runtime;
  readonly #holdMs: number;
  #version: string | null;
  #holds = 0;
  /** Resolves when the holds are lifted that are there now. */
  #live: Promise<void> = Promise.resolve();
  #open: () => void = () => undefined;

  /** `holdMs`: how long a call waits for an update before it is sent away. */
  constructor(runtime: Runtime, { version = null, holdMs = LIMITS.policyHoldMs }: { readonly version?: string | null; readonly holdMs?: number } = {}) {
    this.#runtime = runtime;
    this.#version = version;
    this.#holdMs = holdMs;
  }

  get state(): "live" | "updating" {
    return this.#holds === 0 ? "live" : "updating";
  }

  get version(): string | null {
    return this.#version;
  }

  /** New calls wait until the returned function is called, once, with the new version where there is one. Several holds at a time: all have to be lifted. */
  hold(): (version?: string) => void {
    if (this.#holds++ === 0) this.#live = new Promise((resolve) => (this.#open = resolve));
    let lifted = false;
    return (version) => {
      if (lifted) return;
      lifted = true;
      if (version !== undefined) this.#version = version;
      if (--this.#holds === 0) this.#open();
    };
  }

  /** Resolves at once while the policy is live. Rejects `overloaded` with a time to come back when the update takes too long, and with the signal's reason when it fires. */
  async enter(signal: AbortSignal): Promise<PolicyPass> {
    signal.throwIfAborted();
    if (this.#holds > 0) await this.#wait(signal);
    const version = this.#version;
    return { version, stamp: (tokens) => (version === null || tokens.versions.length > 0 || tokens.completionIds.length === 0 ? tokens : { ...tokens, versions: [[version, tokens.completionIds.length]] }) };
  }

  async #wait(signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const onAbort = (): void => stop.abort(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    const late = this.#runtime.sleep(this.#holdMs, stop.signal).then(() => {
      throw new GatewayFailure("overloaded", "The policy is being updated; try again.", { retryAfterMs: RETRY_AFTER_MS });
    });
    // Lost once the gate opens.
    late.catch(() => undefined);
    try {
      // A hold may follow on another before its waiters have run.
      while (this.#holds > 0) await Promise.race([this.#live, late]);
    } finally {
      signal.removeEventListener("abort", onAbort);
      stop.abort();
    }
  }
}

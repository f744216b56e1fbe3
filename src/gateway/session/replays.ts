/**
 * Which earlier call a request asks for again. A retry never samples a second time; a request that merely says the same does.
 *
 * A request is a retry of an equal earlier one when
 * - that one's answer was not delivered completely and nobody is waiting for it any more (hung up, or answered into a broken connection), or
 * - the client's SDK says so (`x-stainless-retry-count` above 0): whatever the earlier one's fate, as long as its answer is kept.
 * Beside an equal one whose client is still connected it is a second call of its own: agents sample in parallel. Since a client's new connection may overtake the end of
 * its old one, such a request first waits a moment for the other to hang up.
 */
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Call } from "../call.ts";
import { Exchange } from "./exchange.ts";
import { requestDigest, type RequestDigest } from "./request-digest.ts";

export class Replays {
  readonly #runtime: Runtime;
  /** Oldest first. Running ones, and complete ones while there is room. */
  readonly #kept = new Set<Exchange>();
  readonly #waiting = new Set<() => void>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  add(exchange: Exchange): void {
    this.#kept.add(exchange);
  }

  /**
   * Of the calls of a session that this one goes on with without its harness knowing, those whose answers may not have been delivered: the harness has asked nothing since they ended. If
   * one is asked for again, it was not.
   */
  goOn(calls: readonly Call[]): void {
    const lastAsked = Math.max(...calls.map(({ at }) => Date.parse(at)));
    for (const { id, number, at, durationMs, dialect, route, request, status, answer } of calls) {
      const createdAt = Date.parse(at);
      if (status !== "complete" || answer === null || dialect === "turn" || createdAt + durationMs < lastAsked) continue;
      const exchange = new Exchange({ id, number, createdAt, digest: requestDigest(dialect, route, request) }, () => this.changed());
      exchange.settle({ kind: "answer", answer });
      this.add(exchange);
    }
  }

  /** To be called whenever a call ended or lost its client. */
  changed(): void {
    for (const wake of this.#waiting) wake();
    for (const exchange of this.#kept) if (exchange.state === "over") this.#kept.delete(exchange);
    const complete = [...this.#kept].filter((exchange) => exchange.state === "complete" && !exchange.heard);
    // What was delivered goes first.
    complete.sort((a, b) => Number(b.delivered) - Number(a.delivered));
    let chars = complete.reduce((sum, exchange) => sum + exchange.chars, 0);
    for (let count = complete.length; count > 1 && (count > LIMITS.replaysKept || chars > LIMITS.replayChars); count--) {
      const dropped = complete.shift();
      if (dropped === undefined) break;
      chars -= dropped.chars;
      this.#kept.delete(dropped);
    }
  }

  /** The call to join or to answer from; null for a new one. */
  async find(digest: RequestDigest, saysRetry: boolean, signal: AbortSignal): Promise<Exchange | null> {
    const found = this.#find(digest, saysRetry);
    if (found !== null || !this.#equals(digest).some((exchange) => exchange.heard)) return found;
    const over = new AbortController();
    const timer = this.#runtime.sleep(LIMITS.retryDetectMs, AbortSignal.any([over.signal, signal])).then(
      () => true,
      () => true,
    );
    try {
      for (;;) {
        let wake = (): void => undefined;
        const changed = new Promise<false>((resolve) => (wake = () => resolve(false)));
        this.#waiting.add(wake);
        const late = await Promise.race([timer, changed]).finally(() => this.#waiting.delete(wake));
        const retried = this.#find(digest, saysRetry);
        if (retried !== null || late || !this.#equals(digest).some((exchange) => exchange.heard)) return retried;
      }
    } finally {
      over.abort("over");
    }
  }

  clear(): void {
    this.#kept.clear();
    for (const wake of this.#waiting) wake();
  }

  /** Latest first. */
  #equals(digest: RequestDigest): readonly Exchange[] {
    return [...this.#kept].filter((exchange) => exchange.facts.digest === digest && exchange.state !== "over").toReversed();
  }

  #find(digest: RequestDigest, saysRetry: boolean): Exchange | null {
    const equals = this.#equals(digest);
    return equals.find((exchange) => exchange.abandoned) ?? (saysRetry ? (equals[0] ?? null) : null);
  }
}

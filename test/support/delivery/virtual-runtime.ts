/** Time that stands still until it is moved: thousands of hours in seconds, and the same order of events every time. */
import { Heap } from "../../../src/core/heap.ts";
import { seededRandom, type Runtime } from "../../../src/core/runtime.ts";

interface Sleeper {
  readonly at: number;
  readonly order: number;
  readonly wake: () => void;
  done: boolean;
}

export class VirtualRuntime implements Runtime {
  #now: number;
  #count = 0;
  readonly #sleepers = new Heap<Sleeper>((a, b) => a.at < b.at || (a.at === b.at && a.order < b.order));
  readonly #random: () => number;

  constructor(seed = "virtual", startMs = 1_800_000_000_000) {
    this.#now = startMs;
    this.#random = seededRandom(seed);
  }

  now(): number {
    return this.#now;
  }

  monotonic(): number {
    return this.#now;
  }

  randomBytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => Math.floor(this.#random() * 256));
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) {
        reject(signal.reason);
        return;
      }
      const sleeper = this.at(this.#now + ms, () => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      });
      const onAbort = (): void => {
        sleeper.done = true;
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  /** Calls back at a moment; cheaper than a promise. */
  at(at: number, wake: () => void): Sleeper {
    const sleeper = { at, order: this.#count++, wake, done: false };
    this.#sleepers.push(sleeper);
    return sleeper;
  }

  /** When somebody is to be woken next; null: nobody sleeps. */
  get next(): number | null {
    for (let first = this.#sleepers.peek(); first !== undefined; first = this.#sleepers.peek()) {
      if (!first.done) return first.at;
      this.#sleepers.pop();
    }
    return null;
  }

  /** Moves to the next moment, at most `until`, and wakes everybody who sleeps till then. False: nobody sleeps till `until`, and it is `until` now. */
  step(until: number): boolean {
    const { next } = this;
    if (next === null || next > until) {
      this.#now = until;
      return false;
    }
    this.#now = Math.max(this.#now, next);
    for (let first = this.#sleepers.peek(); first !== undefined && first.at <= this.#now; first = this.#sleepers.peek()) {
      this.#sleepers.pop();
      if (!first.done) {
        first.done = true;
        first.wake();
      }
    }
    return true;
  }
}

/** Lets everything happen that happens without time passing. */
export async function settle(isIdle: () => boolean): Promise<void> {
  let calm = 0;
  while (calm < 3) {
    await new Promise((resolve) => setImmediate(resolve));
    calm = isIdle() ? calm + 1 : 0;
  }
}

/** Many moments to come back to with one timer: deadlines of groups and members, ends of leases. */
import { Heap } from "../core/heap.ts";
import type { Runtime } from "../core/runtime.ts";

/** The system's timers take no longer time than this; a moment further away is looked at in between. */
const LONGEST_SLEEP_MS = 3_600_000;

export interface Alarm {
  readonly at: number;
  /** Null once it was taken back. */
  ring: (() => void) | null;
}

export class Alarms {
  readonly #runtime: Runtime;
  #heap = new Heap<Alarm>(earlier);
  #takenBack = 0;
  #sleep: { readonly until: number; readonly stop: AbortController } | null = null;
  #closed = false;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** `at`: milliseconds since the epoch. */
  set(at: number, ring: () => void): Alarm {
    const alarm: Alarm = { at, ring };
    this.#heap.push(alarm);
    this.#arm();
    return alarm;
  }

  /** What it would have rung for is held no longer, and it itself not for long: most deadlines are set for days and never come. */
  takeBack(alarm: Alarm): void {
    if (alarm.ring === null) return;
    alarm.ring = null;
    if (++this.#takenBack < 1024 || this.#takenBack * 2 < this.#heap.size) return;
    const old = this.#heap;
    this.#heap = new Heap<Alarm>(earlier);
    this.#takenBack = 0;
    for (let next = old.pop(); next !== undefined; next = old.pop()) if (next.ring !== null) this.#heap.push(next);
  }

  /** How many are held. */
  get size(): number {
    return this.#heap.size;
  }

  close(): void {
    this.#closed = true;
    this.#sleep?.stop.abort("closed");
    this.#sleep = null;
  }

  #arm(): void {
    const next = this.#heap.peek();
    if (next === undefined || this.#closed) return;
    const now = this.#runtime.now();
    const until = Math.min(next.at, now + LONGEST_SLEEP_MS);
    if (this.#sleep !== null) {
      if (this.#sleep.until <= until) return;
      this.#sleep.stop.abort("earlier");
    }
    const stop = new AbortController();
    const sleep = { until, stop };
    this.#sleep = sleep;
    this.#runtime.sleep(Math.max(0, until - now), stop.signal).then(
      () => {
        if (this.#sleep !== sleep) return;
        this.#sleep = null;
        this.#ring();
      },
      () => undefined,
    );
  }

  #ring(): void {
    const now = this.#runtime.now();
    for (let next = this.#heap.peek(); next !== undefined && next.at <= now; next = this.#heap.peek()) {
      this.#heap.pop();
      const { ring } = next;
      next.ring = null;
      if (ring === null) this.#takenBack--;
      else ring();
    }
    this.#arm();
  }
}

function earlier(a: Alarm, b: Alarm): boolean {
  return a.at < b.at;
}

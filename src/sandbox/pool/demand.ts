/**
 * How many sandboxes of one kind are kept ahead of demand.
 *
 * By Little's law as many are being made, on average, as arrive in the time that one takes; what is ready has to cover those and their chance variation (two standard deviations of
 * a Poisson process). Demand that comes in bursts (a group's sixteen rollouts at once) has no such rate: the largest recent burst is covered as well.
 */

/** Over which the rate is an average. */
const RATE_MS = 10_000;
/** Arrivals in this time count as one burst. */
const BURST_MS = 250;
/** After which a burst counts half. */
const BURST_HALF_MS = 30_000;
/** Nothing is kept for what is not asked for in this time. */
export const IDLE_MS = 60_000;

export class Demand {
  #arrivals = 0;
  #at = 0;
  #last = Number.NEGATIVE_INFINITY;
  #burstStart = Number.NEGATIVE_INFINITY;
  #burst = 0;
  #largest = 0;
  #largestAt = 0;
  #seen = 0;

  /** One was asked for at `now`, milliseconds of a monotonic clock. */
  arrived(now: number): void {
    if (this.idle(now)) this.#seen = 0;
    this.#seen++;
    this.#arrivals = this.#decayed(now) + 1;
    this.#at = now;
    this.#last = now;
    if (now - this.#burstStart > BURST_MS) {
      this.#burstStart = now;
      this.#burst = 0;
    }
    this.#burst++;
    if (this.#burst < this.#largestNow(now)) return;
    this.#largest = this.#burst;
    this.#largestAt = now;
  }

  idle(now: number): boolean {
    return now - this.#last > IDLE_MS;
  }

  get last(): number {
    return this.#last;
  }

  /** How many to have ready, where making one takes `leadMs`. One request alone asks for none: it may have been the only one. */
  target(now: number, leadMs: number): number {
    if (this.idle(now) || this.#seen < 2) return 0;
    const duringLead = (this.#decayed(now) / RATE_MS) * leadMs;
    return Math.max(1, Math.ceil(duringLead + 2 * Math.sqrt(duringLead)), Math.round(this.#largestNow(now)));
  }

  #decayed(now: number): number {
    return this.#arrivals * Math.exp(-(now - this.#at) / RATE_MS);
  }

  #largestNow(now: number): number {
    return this.#largest * 0.5 ** ((now - this.#largestAt) / BURST_HALF_MS);
  }
}

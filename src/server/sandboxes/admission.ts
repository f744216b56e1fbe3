/**
 * Who may make a sandbox now, who waits, and who is refused. Two things are scarce: places (sandboxes that live at once) and creations under way at once.
 *
 * - Waiting owners take turns: next is whoever has the fewest creations under way, and, while places are short, whoever has the fewest sandboxes. What each of them has waiting does
 *   not count; the requests of one are met in their order.
 * - Where there are several owners, the last tenth of the places is for those who have less than an equal share: nobody who fills the host keeps another from starting.
 * - What waits is bounded in number and in time. Beyond that it is refused (`overloaded`), with the seconds after which to ask again.
 */
import { MwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import { ProblemError } from "../problem.ts";

export interface AdmissionLimits {
  /** Creations under way. */
  readonly atOnce: number;
  /** Sandboxes that live, being made included. */
  readonly places: number;
  readonly placesOfOwner: number;
  readonly waiting: number;
  readonly waitingOfOwner: number;
  /** The longest that anything waits. */
  readonly waitMs: number;
}

/** A sandbox's place. Given back once, when the sandbox no longer needs it. */
export interface Place {
  release(): void;
}

export type Refusal = "owner_places" | "owner_waiting" | "waiting" | "waited";

interface Waiter {
  readonly count: number;
  readonly grant: () => void;
  readonly refuse: (error: unknown) => void;
}

/** Of one owner, for as long as it has anything. */
interface Account {
  held: number;
  making: number;
  readonly waiters: Waiter[];
  waitingPlaces: number;
}

/** Of the places, where there are several owners. */
const RESERVED = 0.1;
/** Grants over which the pace is taken that `Retry-After` rests on. */
const PACE_GRANTS = 32;
const RETRY_MOST_S = 30;

export class Admission {
  readonly refused: Record<Refusal, number> = { owner_places: 0, owner_waiting: 0, waiting: 0, waited: 0 };
  readonly limits: AdmissionLimits;
  readonly #runtime: Pick<Runtime, "monotonic" | "sleep">;
  readonly #owners: () => number;
  readonly #accounts = new Map<string, Account>();
  /** Owners that wait, in the order of their turns. */
  readonly #turns = new Set<string>();
  #held = 0;
  #making = 0;
  #waiting = 0;
  #waitingPlaces = 0;
  #granted: number[] = [];
  #closed = false;

  /** `owners`: how many there are, whether they have anything or not. */
  constructor(limits: AdmissionLimits, runtime: Pick<Runtime, "monotonic" | "sleep">, owners: () => number) {
    this.limits = limits;
    this.#runtime = runtime;
    this.#owners = owners;
  }

  get waiting(): number {
    return this.#waiting;
  }

  get held(): number {
    return this.#held;
  }

  /**
   * Does `work` with `count` places, which are its to give back; when it rejects they are given back. Rejects `overloaded` when it cannot wait or has waited too long, with the
   * signal's reason when that is aborted first.
   */
  async run<T>(owner: string, signal: AbortSignal, count: number, work: (places: readonly Place[]) => Promise<T>): Promise<T> {
    const account = this.#accountOf(owner);
    const places = await this.#turn(owner, account, signal, count);
    try {
      return await work(places);
    } catch (error) {
      for (const place of places) place.release();
      throw error;
    } finally {
      account.making--;
      this.#making--;
      this.#settle(owner, account);
      this.#next();
    }
  }

  /** A place for one that lives already, whatever the limits are. */
  occupy(owner: string): Place {
    const account = this.#accountOf(owner);
    account.held++;
    this.#held++;
    return this.#place(owner, account);
  }

  /** Refuses what waits and what comes. */
  close(): void {
    this.#closed = true;
    for (const { waiters } of this.#accounts.values()) for (const { refuse } of waiters.splice(0)) refuse(ending());
    this.#turns.clear();
    this.#waiting = 0;
    this.#waitingPlaces = 0;
  }

  async #turn(owner: string, account: Account, signal: AbortSignal, count: number): Promise<readonly Place[]> {
    const refused = this.#refusal(account, signal, count);
    if (refused !== null) {
      this.#settle(owner, account);
      throw refused;
    }
    await this.#wait(owner, account, signal, count);
    return Array.from({ length: count }, () => this.#place(owner, account));
  }

  #refusal(account: Account, signal: AbortSignal, count: number): unknown {
    if (this.#closed) return ending();
    if (signal.aborted) return signal.reason;
    const { places, placesOfOwner, waiting, waitingOfOwner } = this.limits;
    if (count > placesOfOwner) return new MwError("limit_exceeded", `${count} sandboxes at once are more than the ${placesOfOwner} that one owner may have`);
    // Its own to change, so that waiting would not help others.
    if (placesOfOwner < places && account.held + account.waitingPlaces + count > placesOfOwner) return this.#full("owner_places", `this owner has ${account.held} sandboxes, ${placesOfOwner} are the most`, "end sandboxes, or ask again after Retry-After seconds");
    if (account.waiters.length >= waitingOfOwner) return this.#full("owner_waiting", `${account.waiters.length} creations of this owner wait already`);
    if (this.#waiting >= waiting) return this.#full("waiting", `${this.#waiting} creations wait already`);
    return null;
  }

  /** Until it is granted; at once where nothing stands in the way. */
  #wait(owner: string, account: Account, signal: AbortSignal, count: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const over = new AbortController();
      const waiter: Waiter = {
        count,
        grant: () => {
          over.abort("over");
          resolve();
        },
        refuse: (error) => {
          over.abort("over");
          reject(error);
        },
      };
      account.waiters.push(waiter);
      account.waitingPlaces += count;
      this.#waiting++;
      this.#waitingPlaces += count;
      this.#turns.add(owner);
      this.#next();
      if (over.signal.aborted) return;
      const leave = (error: () => unknown): void => {
        const at = account.waiters.indexOf(waiter);
        if (at < 0) return;
        this.#leaves(owner, account, at);
        waiter.refuse(error());
        this.#settle(owner, account);
        // What stood behind it may need less.
        this.#next();
      };
      signal.addEventListener("abort", () => leave(() => signal.reason), { once: true, signal: over.signal });
      const { waitMs } = this.limits;
      this.#runtime.sleep(waitMs, over.signal).then(() => leave(() => this.#full("waited", `no place for another sandbox came free in ${Math.round(waitMs / 1000)} seconds`)), () => undefined);
    });
  }

  #leaves(owner: string, account: Account, at: number): Waiter | undefined {
    const [waiter] = account.waiters.splice(at, 1);
    const count = waiter?.count ?? 0;
    account.waitingPlaces -= count;
    this.#waitingPlaces -= count;
    this.#waiting--;
    if (account.waiters.length === 0) this.#turns.delete(owner);
    return waiter;
  }

  #next(): void {
    while (!this.#closed && this.#making < this.limits.atOnce) {
      const owner = this.#choose();
      if (owner === null) return;
      const account = this.#accountOf(owner);
      const waiter = this.#leaves(owner, account, 0);
      // To the end of the order.
      if (this.#turns.delete(owner)) this.#turns.add(owner);
      if (waiter === undefined) continue;
      account.held += waiter.count;
      account.making++;
      this.#held += waiter.count;
      this.#making++;
      this.#granted.push(this.#runtime.monotonic());
      if (this.#granted.length > PACE_GRANTS) this.#granted.shift();
      waiter.grant();
    }
  }

  #choose(): string | null {
    const scarce = this.limits.places - this.#held < this.#waitingPlaces;
    let chosen: { readonly owner: string; readonly has: number } | null = null;
    for (const owner of this.#turns) {
      const account = this.#accountOf(owner);
      if (!this.#fits(account, account.waiters[0]?.count ?? 0)) continue;
      const has = scarce ? account.held : account.making;
      if (chosen === null || has < chosen.has) chosen = { owner, has };
    }
    return chosen?.owner ?? null;
  }

  #fits({ held }: Account, count: number): boolean {
    const { places, placesOfOwner } = this.limits;
    const left = places - this.#held - count;
    if (left < 0 || held + count > placesOfOwner) return false;
    const owners = this.#owners();
    return owners < 2 || left >= Math.ceil(places * RESERVED) || held + count <= Math.max(1, Math.floor(places / owners));
  }

  #place(owner: string, account: Account): Place {
    let released = false;
    return {
      release: () => {
        if (released) return;
        released = true;
        account.held--;
        this.#held--;
        this.#settle(owner, account);
        this.#next();
      },
    };
  }

  #accountOf(owner: string): Account {
    let account = this.#accounts.get(owner);
    if (account === undefined) {
      account = { held: 0, making: 0, waiters: [], waitingPlaces: 0 };
      this.#accounts.set(owner, account);
    }
    return account;
  }

  /** Nothing is kept of owners that have nothing. */
  #settle(owner: string, { held, making, waiters }: Account): void {
    if (held === 0 && making === 0 && waiters.length === 0) this.#accounts.delete(owner);
  }

  #full(refusal: Refusal, message: string, fix = "ask again after Retry-After seconds"): MwError {
    this.refused[refusal]++;
    return new ProblemError("overloaded", message, { fix, headers: { "retry-after": String(this.#retryAfter()) }, facts: { refusal } });
  }

  /** Seconds in which what waits now will have been met, at the pace of the last grants. */
  #retryAfter(): number {
    const [first] = this.#granted;
    const pace = first === undefined ? 0 : this.#granted.length / Math.max(1, this.#runtime.monotonic() - first);
    return pace === 0 ? 2 : Math.max(1, Math.min(RETRY_MOST_S, Math.ceil((this.#waiting + 1) / pace / 1000)));
  }
}

function ending(): MwError {
  return new MwError("cancelled", "the server ends");
}

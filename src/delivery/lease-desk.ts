/**
 * Trainers that ask for groups: served in the order in which they asked, as soon as there is what they asked for, and never later than they said.
 *
 * A run that can give nothing more says so at once, with what is left; nobody waits for a dead run.
 */
import { newLeaseId } from "./lease-id.ts";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { LeaseHead, LeaseRequest } from "./contract.ts";
import type { DeliveredGroup, Lease } from "./delivery.ts";
import type { Engine } from "./engine.ts";
import { readGroup } from "./group-file.ts";
import type { Journal } from "./journal.ts";
import type { Wanted } from "./ready-groups.ts";
import type { Group } from "./state.ts";

interface Waiter {
  readonly request: LeaseRequest;
  /** Null: with nothing. */
  readonly serve: (granted: Granted | null) => void;
}

type Ended = LeaseHead["ended"];

interface Granted {
  readonly id: string;
  readonly expiresAt: number;
  readonly groups: readonly Group[];
}

export class LeaseDesk {
  readonly #journal: Journal;
  readonly #engine: Engine;
  readonly #runtime: Runtime;
  readonly #name: string;
  /** Who takes any group, in the order in which they asked. */
  readonly #waiters = new Set<Waiter>();
  /** Who waits for groups by name. */
  readonly #waitersOf = new Map<string, Set<Waiter>>();
  /** Groups whose waiters are to be looked at. */
  readonly #touched = new Set<string>();
  #waiting = 0;
  #reading = 0;

  constructor(name: string, journal: Journal, engine: Engine, runtime: Runtime) {
    this.#name = name;
    this.#journal = journal;
    this.#engine = engine;
    this.#runtime = runtime;
  }

  /** Leases that an earlier process gave out end when they were to. */
  start(): void {
    for (const lease of this.#journal.state.leases.keys()) this.#watch(lease);
  }

  async lease(request: LeaseRequest, signal: AbortSignal): Promise<Lease> {
    signal.throwIfAborted();
    this.#checkNames(request);
    const groups = this.#take(request, request.wait_ms === 0);
    const granted = groups === null ? await this.#wait(request, signal) : this.#grant(request, groups);
    // It may be with them alone that a run is found to be through.
    this.#engine.pump();
    await this.#journal.settled();
    const ended = this.#endedOf(request);
    if (granted === null) return { head: this.#head(null, [], ended), groups: [] };
    this.#reading++;
    const read = await this.#read(granted).finally(() => this.#reading--);
    if (signal.aborted) {
      this.release(granted.id);
      signal.throwIfAborted();
    }
    return { head: this.#head(granted, read, ended), groups: read };
  }

  /** Gives back what is left of a lease before its time is over. */
  release(lease: string): void {
    const held = this.#journal.state.leases.get(lease);
    if (held === undefined) return;
    const groups = [...held.groups];
    void this.#journal.commit({ type: "lease_over", lease });
    for (const group of groups) this.#engine.ready.add(group);
    this.#engine.pump();
  }

  /** No lease is being read. */
  get idle(): boolean {
    return this.#reading === 0;
  }

  /** The group is ready, or over. */
  touched(id: string): void {
    if (this.#waitersOf.has(id)) this.#touched.add(id);
  }

  /** Serves whoever can be served now. */
  changed(): void {
    for (const id of this.#touched) for (const waiter of this.#waitersOf.get(id) ?? []) this.#tryServe(waiter);
    this.#touched.clear();
    if (this.#isHopeless) for (const waiters of this.#waitersOf.values()) for (const waiter of waiters) this.#tryServe(waiter);
    if (this.#waiters.size === 0 || (this.#engine.ready.isEmpty && !this.#isHopeless)) return;
    for (const waiter of this.#waiters) this.#tryServe(waiter);
  }

  /** Nothing will come any more: whoever waits is served with nothing. */
  close(): void {
    for (const waiter of this.#waiters) waiter.serve(null);
    for (const waiters of this.#waitersOf.values()) for (const waiter of waiters) waiter.serve(null);
  }

  #tryServe(waiter: Waiter): void {
    const groups = this.#take(waiter.request, false);
    if (groups !== null) waiter.serve(this.#grant(waiter.request, groups));
  }

  get #isHopeless(): boolean {
    const { runState, counts } = this.#journal.state;
    return runState === "failed" || runState === "finished" || runState === "closed" || (runState === "draining" && counts.running === 0);
  }

  /** Null: not enough yet, and more can come. */
  #take(request: LeaseRequest, final: boolean): readonly Group[] | null {
    const { ready } = this.#engine;
    const { groups, expired } = request.group_ids === undefined ? ready.select(this.#wanted(request)) : ready.selectOf(this.#openOf(request.group_ids), this.#wanted(request));
    for (const group of expired) {
      void this.#engine.terminal(group, "expired", { reason: `version ${group.facts?.version_min ?? "?"} is too old`, facts: { ...this.#factsOf(group), outcome: "expired" } });
    }
    if (expired.length > 0) this.#engine.pump();
    if (final || groups.length >= request.min_groups || this.#isHopeless || this.#endedOf(request).length > 0) return groups;
    for (const group of groups) ready.add(group);
    return null;
  }

  /** Rejects `not_found` for names of no group, and of groups that ended too long ago to know how. */
  #checkNames({ group_ids: ids = [] }: LeaseRequest): void {
    const { groups, endings, known } = this.#journal.state;
    for (const id of ids) {
      if (groups.has(id) || endings.has(id)) continue;
      throw new MwError("not_found", known.has(id) ? `group ${id} is over for long; the terminal log says how it ended` : `there is no group ${id} in run ${this.#name}`, { fix: "submit it first" });
    }
  }

  #openOf(ids: readonly string[]): readonly Group[] {
    return ids.flatMap((id) => this.#journal.state.groups.get(id) ?? []);
  }

  #endedOf({ group_ids: ids = [] }: LeaseRequest): Ended {
    return ids.flatMap((id) => {
      const ending = this.#journal.state.endings.get(id);
      return ending === undefined ? [] : [{ group_id: id, ...ending }];
    });
  }

  #wanted(request: LeaseRequest): Wanted {
    const { request: run, policy } = this.#journal.state;
    return {
      maxGroups: request.max_groups,
      maxBytes: request.max_bytes ?? LIMITS.leaseBytes,
      maxStaleness: Math.min(request.max_staleness ?? run.max_staleness, run.max_staleness),
      version: request.current_version ?? policy?.version ?? null,
    };
  }

  #factsOf(group: Group): NonNullable<Group["facts"]> {
    if (group.facts === null) throw new MwError("internal", `group ${group.id} is ready without facts`);
    return group.facts;
  }

  #wait(request: LeaseRequest, signal: AbortSignal): Promise<Granted | null> {
    if (this.#waiting >= LIMITS.leaseWaiters) {
      throw new MwError("overloaded", `${this.#waiting} lease requests wait already`, { fix: "lease from fewer places at once, or more groups at a time" });
    }
    return new Promise((resolve, reject) => {
      const stop = new AbortController();
      const leave = (): void => {
        this.#leave(waiter);
        stop.abort("served");
        signal.removeEventListener("abort", onAbort);
      };
      const onAbort = (): void => {
        leave();
        reject(signal.reason);
      };
      const waiter: Waiter = {
        request,
        serve: (granted) => {
          leave();
          resolve(granted);
        },
      };
      this.#enter(waiter);
      signal.addEventListener("abort", onAbort, { once: true });
      this.#runtime
        .sleep(request.wait_ms, stop.signal)
        .then(
          () => waiter.serve(this.#grant(request, this.#take(request, true) ?? [])),
          () => undefined,
        )
        .catch(reject);
    });
  }

  #enter(waiter: Waiter): void {
    this.#waiting++;
    const { group_ids: ids } = waiter.request;
    if (ids === undefined) this.#waiters.add(waiter);
    for (const id of ids ?? []) {
      const waiters = this.#waitersOf.get(id) ?? new Set();
      this.#waitersOf.set(id, waiters.add(waiter));
    }
  }

  #leave(waiter: Waiter): void {
    this.#waiting--;
    this.#waiters.delete(waiter);
    for (const id of waiter.request.group_ids ?? []) {
      const waiters = this.#waitersOf.get(id);
      waiters?.delete(waiter);
      if (waiters?.size === 0) this.#waitersOf.delete(id);
    }
  }

  /** In the same turn in which they were taken out: nothing else may happen to them in between. */
  #grant(request: LeaseRequest, groups: readonly Group[]): Granted | null {
    if (groups.length === 0) return null;
    const { state } = this.#journal;
    const id = newLeaseId(this.#name, state.epoch, state.leaseCount + 1);
    const expiresAt = Math.floor(this.#runtime.now()) + state.request.lease_s * 1000;
    void this.#journal.commit({ type: "leased", lease: id, consumer: request.consumer, ids: groups.map((group) => group.id), expiresAt });
    for (const group of groups) this.#engine.ready.out(group);
    this.#watch(id);
    return { id, expiresAt, groups };
  }

  #watch(lease: string): void {
    const held = this.#journal.state.leases.get(lease);
    if (held === undefined) return;
    this.#engine.alarms.set(held.expiresAt, () => {
      const now = this.#journal.state.leases.get(lease);
      if (now === undefined) return;
      // It was extended meanwhile.
      if (now.expiresAt > this.#runtime.now()) this.#watch(lease);
      else this.release(lease);
    });
  }

  /** A group whose file is damaged ends as failed: it cannot be delivered as it was, and is not made anew under its name. */
  async #read({ groups }: Granted): Promise<readonly DeliveredGroup[]> {
    const read: DeliveredGroup[] = [];
    for (const group of groups) {
      try {
        read.push(await readGroup(this.#engine.groupPath(group.seq), group.sum));
      } catch (error) {
        if (!(error instanceof MwError) || error.code !== "corrupt") throw error;
        await this.#engine.terminal(group, "failed", { reason: error.message, facts: { ...this.#factsOf(group), outcome: "failed", usable: 0, samples: 0 } });
      }
    }
    return read;
  }

  #head(granted: Granted | null, groups: readonly DeliveredGroup[], ended: Ended): LeaseHead {
    const { state } = this.#journal;
    const isEmpty = granted === null || groups.length === 0;
    return {
      lease_id: isEmpty ? null : granted.id,
      expires_at: isEmpty ? null : granted.expiresAt,
      run_state: state.runState,
      reason: state.reason,
      last_progress_at: state.lastProgressAt,
      policy_version: state.policy?.version ?? null,
      waiting_for: this.#engine.waitingFor,
      ended,
      groups: groups.map(({ facts, samples }) => ({ ...facts, sample_facts: samples.map((sample) => sample.facts) })),
    };
  }
}

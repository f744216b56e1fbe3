/**
 * Which ready groups go out next: the oldest start first.
 *
 * "First finished" would train on what is quick. So a group that still runs is overtaken by at most `window` groups that were begun after it (`fifo`: by none). And by admission
 * nothing goes out that would make a running group too late: one begun at version w has to be among the first (S + w + 1) * B that are consumed, so as many of those places are kept
 * free as groups run that were begun at w or before. A trainer that asks meanwhile waits for the straggler, not past it; the straggler's deadline ends that wait.
 */
import { Heap } from "../core/heap.ts";
import { slotsAt } from "./admission.ts";
import type { DeliveryState, Group } from "./state.ts";

export interface Wanted {
  readonly maxGroups: number;
  readonly maxBytes: number;
  readonly maxStaleness: number;
  /** Of the trainer; null: nothing is too old. */
  readonly version: number | null;
}

export interface Selection {
  readonly groups: readonly Group[];
  readonly expired: readonly Group[];
}

interface Entry {
  readonly group: Group;
}

export class ReadyGroups {
  readonly #state: DeliveryState;
  readonly #ready = new Heap<Entry>((a, b) => a.group.begun < b.group.begun);
  /** The entry of a group that counts: it may have been in the heap before, and gone out by its name. */
  readonly #entries = new Map<Group, Entry>();
  readonly #running = new Heap<Group>((a, b) => a.begun < b.begun);
  /** Running groups by the version at which they were begun. */
  readonly #runningAt = new Map<number, number>();
  /** Starts of the groups that went out before the oldest running one, though begun after it. */
  readonly #overtakers = new Heap<number>((a, b) => a < b);

  constructor(state: DeliveryState) {
    this.#state = state;
    for (const group of state.groups.values()) {
      if (group.phase === "running") this.begun(group);
      else if (group.phase === "ready") this.add(group);
      else if (group.phase === "leased") this.out(group);
    }
  }

  begun(group: Group): void {
    this.#running.push(group);
    this.#runningAt.set(group.version, (this.#runningAt.get(group.version) ?? 0) + 1);
  }

  /** It runs no longer, however it ended. */
  ended(group: Group): void {
    const left = (this.#runningAt.get(group.version) ?? 0) - 1;
    if (left > 0) this.#runningAt.set(group.version, left);
    else this.#runningAt.delete(group.version);
  }

  add(group: Group): void {
    const entry = { group };
    this.#entries.set(group, entry);
    this.#ready.push(entry);
  }

  /** It went out. */
  out(group: Group): void {
    const oldest = this.#oldestRunning();
    if (oldest !== null && group.begun > oldest.begun) this.#overtakers.push(group.begun);
  }

  get isEmpty(): boolean {
    return this.#next() === undefined;
  }

  /** What may go out now, and what is too old; takes both out. Groups that do not go out after all are given back by `add`. */
  select({ maxGroups, maxBytes, maxStaleness, version }: Wanted): Selection {
    const groups: Group[] = [];
    const expired: Group[] = [];
    const oldest = this.#oldestRunning();
    let bytes = 0;
    let overtaking = oldest === null ? 0 : this.#overtakers.size;
    for (let next = this.#next(); next !== undefined && groups.length < maxGroups; next = this.#next()) {
      if (version !== null && version - (next.facts?.version_min ?? version) > maxStaleness) {
        this.#takeOut(next);
        expired.push(next);
        continue;
      }
      const size = next.facts?.bytes ?? 0;
      if (groups.length > 0 && bytes + size > maxBytes) break;
      const overtakes = oldest !== null && next.begun > oldest.begun;
      if (overtakes && overtaking >= this.#window) break;
      if (!this.#leavesPlaces(groups.length)) break;
      this.#takeOut(next);
      groups.push(next);
      bytes += size;
      if (overtakes) overtaking++;
    }
    return { groups, expired };
  }

  /** The same of given groups, in their order; nobody else waits for those. */
  selectOf(candidates: readonly Group[], { maxGroups, maxBytes, maxStaleness, version }: Wanted): Selection {
    const groups: Group[] = [];
    const expired: Group[] = [];
    let bytes = 0;
    for (const group of candidates) {
      if (group.phase !== "ready" || !this.#entries.has(group) || groups.length === maxGroups) continue;
      const size = group.facts?.bytes ?? 0;
      if (version !== null && version - (group.facts?.version_min ?? version) > maxStaleness) expired.push(group);
      else if (groups.length === 0 || bytes + size <= maxBytes) {
        groups.push(group);
        bytes += size;
      } else continue;
      this.#entries.delete(group);
    }
    return { groups, expired };
  }

  get #window(): number {
    const { order, window } = this.#state.request;
    return order === "fifo" ? 0 : window;
  }

  /** Whether every running group still comes in time after one more has gone out. Those that cannot any more hold nobody up. */
  #leavesPlaces(selected: number): boolean {
    const state = this.#state;
    if (state.request.admission !== "by_admission") return true;
    const out = state.counts.consumed + state.counts.leased + selected;
    let before = 0;
    for (const version of [...this.#runningAt.keys()].sort((a, b) => a - b)) {
      before += this.#runningAt.get(version) ?? 0;
      if (out + before === slotsAt(state, version)) return false;
    }
    return true;
  }

  #next(): Group | undefined {
    for (let next = this.#ready.peek(); next !== undefined; next = this.#ready.peek()) {
      const { group } = next;
      const counts = this.#entries.get(group) === next;
      if (counts && group.phase === "ready") return group;
      if (counts) this.#entries.delete(group);
      this.#ready.pop();
    }
    return undefined;
  }

  #takeOut(group: Group): void {
    this.#ready.pop();
    this.#entries.delete(group);
  }

  #oldestRunning(): Group | null {
    for (let next = this.#running.peek(); next !== undefined; next = this.#running.peek()) {
      if (next.phase === "running") {
        for (let out = this.#overtakers.peek(); out !== undefined && out < next.begun; out = this.#overtakers.peek()) this.#overtakers.pop();
        return next;
      }
      this.#running.pop();
    }
    while (this.#overtakers.size > 0) this.#overtakers.pop();
    return null;
  }
}

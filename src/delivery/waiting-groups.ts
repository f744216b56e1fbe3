/** Groups that wait to be begun: higher priority first, then first come; those that ask for a version that is not there yet stand aside. */
import { Heap } from "../core/heap.ts";
import type { Group } from "./state.ts";

export class WaitingGroups {
  readonly #heap = new Heap<Group>((a, b) => priority(a) > priority(b) || (priority(a) === priority(b) && a.seq < b.seq));
  readonly #deferred = new Heap<Group>((a, b) => minVersion(a) < minVersion(b));

  /** `version`: that the policy has; -1 for none. */
  add(group: Group, version: number): void {
    if (minVersion(group) > version) this.#deferred.push(group);
    else this.#heap.push(group);
  }

  versionIs(version: number): void {
    for (let next = this.#deferred.peek(); next !== undefined && minVersion(next) <= version; next = this.#deferred.peek()) {
      this.#deferred.pop();
      if (next.phase === "waiting") this.#heap.push(next);
    }
  }

  /** The next to begin, without taking it. */
  peek(): Group | undefined {
    for (let next = this.#heap.peek(); next !== undefined; next = this.#heap.peek()) {
      if (next.phase === "waiting") return next;
      // It ended while it waited.
      this.#heap.pop();
    }
    return undefined;
  }

  take(): void {
    this.#heap.pop();
  }
}

const priority = (group: Group): number => group.spec.priority ?? 0;
const minVersion = (group: Group): number => group.spec.min_version ?? -1;

/** A group while its rollouts run: a slot for each member, and the rule that says when it is over. No clock, no worker: what to do is decided here, done in `engine.ts`. */
import { setMaxListeners } from "node:events";
import type { GroupOutcome, RunRequest } from "./contract.ts";
import type { MemberFailure } from "./events.ts";
import type { KeptMember } from "./kept-members.ts";
import type { Group } from "./state.ts";

export interface Slot {
  readonly run: GroupRun;
  readonly member: number;
  /** `queued` for a place among the running, `usable` with its samples kept, `out` without any. */
  phase: "queued" | "running" | "keeping" | "usable" | "out";
  attempt: number;
  startedAt: number;
  /** Counts it among the running until its worker has ended it, or was given up. */
  release: (() => void) | null;
  kept: KeptMember | null;
}

export class GroupRun {
  readonly group: Group;
  readonly slots: readonly Slot[];
  /** Members end together or by themselves: one signal for all of them costs less than one for each. */
  readonly stop = new AbortController();
  /** Members that the group is to have; more may run. */
  readonly size: number;
  readonly #min: number;
  readonly #replacements: number;
  usable = 0;
  /** Queued or running. */
  live: number;
  /** Begun by this process or known to have failed before. */
  attempts: number;
  /** As in the run's directory. */
  name: string | null = null;
  /** What further ends mean nothing for: it ends, or has ended. */
  over = false;

  constructor(group: Group, request: RunRequest) {
    this.group = group;
    // Every member listens.
    setMaxListeners(0, this.stop.signal);
    this.size = sizeOf(group, request);
    this.#min = minUsable(request, this.size);
    this.#replacements = request.partial.rule === "replace_then_min_usable" ? request.partial.replacements : 0;
    this.attempts = group.failed.length;
    const slots = Array.from({ length: this.size + request.redundancy }, (_, member): Slot => ({ run: this, member, phase: "queued", attempt: 0, startedAt: 0, release: null, kept: null }));
    // Where an earlier process had come to.
    for (const { member, attempt, replaced } of group.failed) {
      const slot = slots[member];
      if (slot === undefined) continue;
      slot.attempt = attempt + 1;
      if (!replaced) slot.phase = "out";
    }
    this.slots = slots;
    this.live = slots.filter(({ phase }) => phase === "queued").length;
  }

  /** Whether a failed member gets another try: not when the same would happen again, and not when enough others still run. */
  replaces(slot: Slot, failure: MemberFailure): boolean {
    // The failed one is still counted among the living.
    return !failure.permanent && slot.attempt < this.#replacements && this.usable + this.live - 1 < this.size;
  }

  /** Null while it can still become something else. */
  outcome(): Extract<GroupOutcome, "complete" | "partial" | "failed"> | null {
    if (this.usable >= this.size) return "complete";
    if (this.usable + this.live < this.#min) return "failed";
    if (this.live > 0) return null;
    return "partial";
  }

  /** As if nothing that still runs came to anything. */
  outcomeNow(): "complete" | "partial" | "failed" {
    if (this.usable >= this.size) return "complete";
    return this.usable >= this.#min ? "partial" : "failed";
  }
}

export function sizeOf(group: Pick<Group, "spec">, request: RunRequest): number {
  return group.spec.size ?? request.group_size;
}

/** Fewer members than this leave nothing to compare with. */
export function minUsable({ partial }: Pick<RunRequest, "partial">, size: number): number {
  if (partial.rule === "require_all") return size;
  return Math.min(size, partial.min ?? Math.max(2, Math.ceil(size / 2)));
}

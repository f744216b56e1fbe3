/** What the log of a run came to, as far as it was read, and where in the file each rollout's events stand, so that a rollout's history needs no search. */
import type { RolloutId } from "../../core/ids.ts";
import type { Failure, RunEvent } from "../../rollout/events.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";
import { RunState } from "../../rollout/run-state.ts";
import { startOfLog, type LogPosition } from "../../store/log-reader.ts";

/** What ended tries in one way, tried again or not. */
export interface FailureTally {
  readonly outcome: string;
  readonly code: string;
  count: number;
  example: { readonly rollout: RolloutId; readonly error: Failure };
}

export class RunFold {
  readonly state: RunState;
  /** How far the log was read. */
  readonly position: LogPosition;
  /** Tries that did not stand. */
  readonly failedTries = new Map<string, FailureTally>();
  /** Rollouts in the order of the plan. */
  readonly order: RolloutState[];
  readonly groupOf: Map<string, number>;
  /** Byte ranges of a rollout's events: start, end, start, end... */
  readonly places = new Map<RolloutId, number[]>();
  /** Number of the last event that changed a rollout. */
  readonly changed = new Map<RolloutId, number>();
  /** Rollouts by the order of their last change, oldest first, with entries that a later change made void. */
  #changes: { readonly seq: number; readonly rollout: RolloutId }[] = [];

  constructor(state = new RunState(), position = startOfLog()) {
    this.state = state;
    this.position = position;
    this.order = [...state.rollouts.values()];
    this.groupOf = new Map(state.groups.map(({ group, index }) => [group, index]));
  }

  /** Takes the event of the line that began at `start` and ends where the log was read to. Throws `corrupt` for one that may not happen now. */
  take(event: RunEvent, at: number, start: number): void {
    this.state.apply(event, at);
    const { lastSeq, offset } = this.position;
    if (event.type === "group_planned") this.groupOf.set(event.group, event.index);
    if (event.type === "group_planned" || event.type === "rollouts_planned") {
      for (const { rollout } of event.rollouts) {
        this.order.push(this.state.rollout(rollout));
        this.touch(rollout, lastSeq);
      }
      return;
    }
    if (!("rollout" in event)) return;
    const places = this.places.get(event.rollout);
    if (places === undefined) this.places.set(event.rollout, [start, offset]);
    else places.push(start, offset);
    this.touch(event.rollout, lastSeq);
    if (event.type === "rollout_try_failed" && event.cause === "failure") this.#tally(event.rollout, event.outcome, event.error);
  }

  /** Notes that a rollout was changed by the event of that number, which is the highest by now. */
  touch(rollout: RolloutId, seq: number): void {
    this.changed.set(rollout, seq);
    this.#changes.push({ seq, rollout });
    if (this.#changes.length > 2 * this.changed.size + 64) this.#changes = this.#changes.filter((change) => this.changed.get(change.rollout) === change.seq);
  }

  /** Rollouts that changed after `seq`, newest first, at most `limit`; `more`: there are others. */
  changedSince(seq: number, limit: number): { readonly rollouts: readonly RolloutState[]; readonly more: boolean } {
    const rollouts: RolloutState[] = [];
    for (let at = this.#changes.length - 1; at >= 0; at--) {
      const change = this.#changes[at];
      if (change === undefined || change.seq <= seq) break;
      if (this.changed.get(change.rollout) !== change.seq) continue;
      if (rollouts.length === limit) return { rollouts, more: true };
      rollouts.push(this.state.rollout(change.rollout));
    }
    return { rollouts, more: false };
  }

  #tally(rollout: RolloutId, outcome: string, error: Failure): void {
    const key = `${outcome} ${error.code}`;
    const tally = this.failedTries.get(key);
    if (tally === undefined) this.failedTries.set(key, { outcome, code: error.code, count: 1, example: { rollout, error } });
    else {
      tally.count++;
      tally.example = { rollout, error };
    }
  }
}

/** One run as it is now: its log folded as far as it has been written, by whatever process. Nothing is read twice, and of a large log what was read is kept beside it. */
import { open, stat } from "node:fs/promises";
import { setImmediate } from "node:timers/promises";
import { messageOf, MwError } from "../../core/errors.ts";
import type { RolloutId, RunId } from "../../core/ids.ts";
import { fromLogEvent } from "../../rollout/events.ts";
import { readRunConfig, type RunConfig } from "../../rollout/run-config.ts";
import { controllerLives } from "../../rollout/run-statistics.ts";
import type { RunState } from "../../rollout/run-state.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";
import type { StoredEvent } from "../../store/event-log.ts";
import { decodeLine } from "../../store/log-format.ts";
import { readLog } from "../../store/log-reader.ts";
import { eventsFile } from "../../store/run-directory.ts";
import type { RunStatus } from "./contract/common.ts";
import { keepFold, readKeptFold } from "./kept-fold.ts";
import { RunFold, type FailureTally } from "./run-fold.ts";

/** A log as large as this, of which that share is news, is worth a new fold beside it: to read a mebibyte takes as long as to draw a page. */
const KEEP_BYTES = 1 << 20;
const KEEP_SHARE = 0.25;

/** What stands between two lines is read with them where it is no more than this, as long as all of it is no more than that. */
const NEAR_BYTES = 16 * 1024;
const TOGETHER_BYTES = 1 << 20;

export class LiveRun {
  readonly home: string;
  readonly run: RunId;
  config: RunConfig | null = null;
  /** Why the log cannot be read further; null while it can. */
  damage: string | null = null;
  #fold = new RunFold();
  /** Bytes of the log that the kept fold stands for; null before it was looked for. */
  #kept: number | null = null;
  #keeping: Promise<void> | null = null;
  #refreshing: Promise<void> | null = null;

  constructor(home: string, run: RunId) {
    this.home = home;
    this.run = run;
  }

  get state(): RunState {
    return this.#fold.state;
  }

  /** Rollouts in the order of the plan. */
  get order(): readonly RolloutState[] {
    return this.#fold.order;
  }

  /** Indices of groups. */
  get groupOf(): ReadonlyMap<string, number> {
    return this.#fold.groupOf;
  }

  /** Tries that did not stand. */
  get failedTries(): ReadonlyMap<string, FailureTally> {
    return this.#fold.failedTries;
  }

  /** Sequence number of the last event that is in the state. */
  get seq(): number {
    return this.#fold.position.lastSeq;
  }

  get status(): RunStatus {
    if (this.damage !== null) return "damaged";
    return this.state.status === "running" && !controllerLives(this.state) ? "killed" : this.state.status;
  }

  /** Takes in what has been written since. One reader at a time; those who come meanwhile share it. Rejects `not_found` when the run is gone. */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#read().finally(() => (this.#refreshing = null));
    return this.#refreshing;
  }

  /** Reads what is written by now and keeps it beside the log, where it is large and the file system lets it. */
  async keep(): Promise<void> {
    await this.refresh().catch(() => undefined);
    await this.#keeping;
    const { offset } = this.#fold.position;
    if (this.damage === null && offset >= KEEP_BYTES && offset > (this.#kept ?? 0)) await this.#keep();
  }

  rollout(id: RolloutId): RolloutState {
    const rollout = this.state.rollouts.get(id);
    if (rollout === undefined) throw new MwError("not_found", `there is no rollout ${id} in run ${this.run}`, { fix: "look at the run's list of rollouts" });
    return rollout;
  }

  /** Rollouts that changed after `seq`, newest first, at most `limit`; `more`: there are others. */
  changedSince(seq: number, limit: number): ReturnType<RunFold["changedSince"]> {
    return this.#fold.changedSince(seq, limit);
  }

  /** The events of one rollout, as they were written. */
  async eventsOf(id: RolloutId): Promise<readonly StoredEvent[]> {
    const places = this.#fold.places.get(id) ?? [];
    const file = await open(eventsFile(this.home, this.run), "r");
    try {
      const events: StoredEvent[] = [];
      for (let at = 0; at + 1 < places.length; ) {
        const from = places[at] ?? 0;
        // Lines that stand near each other are read together: a rollout may have thousands.
        let last = at;
        while (last + 3 < places.length && (places[last + 2] ?? 0) - (places[last + 1] ?? 0) < NEAR_BYTES && (places[last + 3] ?? 0) - from < TOGETHER_BYTES) last += 2;
        const bytes = Buffer.alloc((places[last + 1] ?? 0) - from);
        await file.read(bytes, 0, bytes.length, from);
        for (; at <= last; at += 2) {
          const event = decodeLine(bytes.subarray((places[at] ?? 0) - from, (places[at + 1] ?? 0) - 1 - from));
          if (event !== null) events.push(event);
        }
      }
      return events;
    } finally {
      await file.close();
    }
  }

  async #read(): Promise<void> {
    this.config ??= await readRunConfig(this.home, this.run).catch((error: unknown) => {
      if (error instanceof MwError && error.code === "not_found") throw error;
      // What another version wrote is shown without its configuration.
      return null;
    });
    const path = eventsFile(this.home, this.run);
    const size = await stat(path).then(
      (found) => found.size,
      () => 0,
    );
    if (this.#kept === null) await this.#resume(size);
    // The writer cuts off what a failed write left, and never more than that.
    if (size < this.#fold.position.offset) {
      this.#fold = new RunFold();
      this.#kept = 0;
    }
    const { position } = this.#fold;
    if (size <= position.offset + position.tornBytes || this.damage !== null) return;
    try {
      let start = position.offset;
      for await (const stored of readLog(path, position)) {
        this.#fold.take(fromLogEvent(stored.event), Date.parse(stored.at), start);
        start = position.offset;
      }
    } catch (error) {
      this.damage = messageOf(error);
      return;
    }
    const news = position.offset - (this.#kept ?? 0);
    if (news >= KEEP_BYTES && news >= position.offset * KEEP_SHARE) this.#keeping ??= this.#keep().finally(() => (this.#keeping = null));
  }

  async #resume(size: number): Promise<void> {
    const fold = size < KEEP_BYTES ? null : await readKeptFold(this.home, this.run);
    if (fold !== null) this.#fold = fold;
    this.#kept = fold?.position.offset ?? 0;
  }

  async #keep(): Promise<void> {
    // Whoever waits for the run comes first.
    await setImmediate();
    const { offset } = this.#fold.position;
    try {
      await keepFold(this.home, this.run, this.#fold);
      this.#kept = offset;
    } catch {
      // A directory that cannot be written, or is gone: memory has it, and a later reader reads again.
      this.#kept = Infinity;
    }
  }
}

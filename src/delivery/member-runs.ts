/**
 * The members of groups as they run: each in its place, tried again where it failed and may be, kept once it is usable. What comes of a group is told to whoever decides on it.
 */
import { messageOf, MwError, toMwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Alarms } from "./alarms.ts";
import { Fifo } from "./fifo.ts";
import type { GroupRun, Slot } from "./group-run.ts";
import type { Journal } from "./journal.ts";
import { judge, type UnusableMember, type UsableMember } from "./judge.ts";
import type { KeptMembers } from "./kept-members.ts";
import type { DeliveryState } from "./state.ts";
import type { MemberEnd, MemberJob, RolloutWorker } from "./worker.ts";

export interface MemberRunsOptions {
  readonly journal: Journal;
  readonly worker: RolloutWorker;
  readonly kept: KeptMembers;
  readonly runtime: Runtime;
  readonly alarms: Alarms;
  /** Aborted when nothing is decided any more. */
  readonly closing: AbortSignal;
  /** Does a piece of work in which nothing should fail. */
  readonly guarded: (work: () => void) => void;
  /** Holds the end of the run until work on files is done. */
  readonly track: (work: Promise<void>) => void;
  /** Called when there is room, or something more to run. */
  readonly pump: () => void;
  /** Called when a member of a group is usable, or out. */
  readonly settle: (run: GroupRun) => void;
}

export class MemberRuns {
  readonly #options: MemberRunsOptions;
  readonly #state: DeliveryState;
  readonly #queue = new Fifo<Slot>();
  /** Members that are tried again: their group is older than any that is begun now. */
  readonly #again = new Fifo<Slot>();
  #running = 0;

  constructor(options: MemberRunsOptions) {
    this.#options = options;
    this.#state = options.journal.state;
  }

  /** Rollouts that run now. */
  get running(): number {
    return this.#running;
  }

  /** Takes up what of a group is to run. */
  add(run: GroupRun): void {
    for (const slot of run.slots) if (slot.phase === "queued") this.#queue.push(slot);
  }

  /** Starts members while `most` allows it. */
  fill(most: number): void {
    while (this.#running < most) {
      const slot = this.#again.shift() ?? this.#queue.shift();
      if (slot === undefined) return;
      if (!slot.run.over) this.#launch(slot);
    }
  }

  /** Tells everything that still runs to stop. Gives back what that is. */
  stop(run: GroupRun): readonly Slot[] {
    const live = run.slots.filter(({ phase }) => phase === "queued" || phase === "running");
    for (const slot of live) slot.phase = "out";
    const running = live.filter(({ release }) => release !== null);
    if (running.length === 0) return live;
    run.stop.abort(new MwError("cancelled", "the group has ended"));
    this.#options.alarms.set(this.#options.runtime.now() + LIMITS.rolloutAbandonMs, () => {
      for (const { release } of running) release?.();
    });
    return live;
  }

  /** Lets go of what was kept of members whose group is over. */
  drop(slots: readonly Slot[]): void {
    for (const slot of slots) {
      const { kept } = slot;
      if (kept === null) continue;
      slot.kept = null;
      this.#options.track(this.#options.kept.drop(kept));
    }
  }

  #launch(slot: Slot): void {
    const { run } = slot;
    slot.phase = "running";
    slot.startedAt = this.#options.runtime.now();
    run.attempts++;
    this.#running++;
    const { attempt } = slot;
    const job = this.#jobOf(slot);
    let counted = true;
    const release = (): void => {
      if (!counted) return;
      counted = false;
      this.#running--;
      this.#options.pump();
    };
    slot.release = release;
    this.#options.worker.run(job, run.stop.signal).then(
      (end) => {
        release();
        this.#options.guarded(() => this.#ended(slot, attempt, job, end));
      },
      (error: unknown) => {
        release();
        this.#options.guarded(() => this.#failedBug(slot, attempt, error));
      },
    );
  }

  #jobOf({ run, member, attempt }: Slot): MemberJob {
    const { request } = this.#state;
    const { spec, id, dataset } = run.group;
    const part = request.dataset?.find(({ name }) => name === dataset);
    return {
      groupId: id,
      task: spec.task,
      dataset,
      member,
      attempt,
      seed: `${spec.seed ?? `${request.seed}/${id}`}/${member}/${attempt}`,
      harness: spec.harness ?? part?.harness ?? request.harness,
      // Fields that are absent stay absent.
      sampling: { ...request.sampling, ...spec.sampling } as Record<string, number>,
      deadlineMs: request.deadlines.rollout_s === null ? null : request.deadlines.rollout_s * 1000,
    };
  }

  #ended(slot: Slot, attempt: number, job: MemberJob, end: MemberEnd): void {
    const { run } = slot;
    if (run.over || slot.phase !== "running" || slot.attempt !== attempt || this.#options.closing.aborted) return;
    slot.release = null;
    run.name = end.group;
    this.#state.lastProgressAt = this.#options.runtime.now();
    const judged = judge(job, end, this.#state.request, Math.max(0, run.group.spec.min_version ?? 0));
    if (judged.usable) this.#keep(slot, judged);
    else this.#memberFailed(slot, judged);
  }

  #failedBug(slot: Slot, attempt: number, error: unknown): void {
    if (slot.run.over || slot.phase !== "running" || slot.attempt !== attempt || this.#options.closing.aborted) return;
    slot.release = null;
    const { code, message } = toMwError(error);
    this.#memberFailed(slot, { usable: false, failure: { class: "infra", code, permanent: false }, message });
  }

  #keep(slot: Slot, member: UsableMember): void {
    const { run } = slot;
    slot.phase = "keeping";
    const work = this.#options.kept.keep(run.group.seq, slot.member, member).then(
      (kept) => {
        if (run.over) return this.#options.kept.drop(kept);
        slot.kept = kept;
        slot.phase = "usable";
        run.live--;
        run.usable++;
        this.#options.settle(run);
      },
      (error: unknown) => {
        if (run.over) return;
        slot.phase = "running";
        this.#memberFailed(slot, { usable: false, failure: { class: "infra", code: "host_exhausted", permanent: false }, message: messageOf(error) });
      },
    );
    this.#options.track(work);
  }

  #memberFailed(slot: Slot, { failure }: UnusableMember): void {
    const { run } = slot;
    const replaced = run.replaces(slot, failure);
    void this.#options.journal.commit({ type: "member_failed", id: run.group.id, member: slot.member, attempt: slot.attempt, failure, replaced });
    if (replaced) {
      slot.attempt++;
      slot.phase = "queued";
      this.#again.push(slot);
      this.#options.pump();
      return;
    }
    slot.phase = "out";
    run.live--;
    this.#options.settle(run);
  }
}

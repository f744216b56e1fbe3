/**
 * Runs the groups of one run: begins them while there is room, keeps as many rollouts running as are allowed, and brings each group to its one end.
 *
 * Everything is decided in the turn of the event loop in which it is learnt and committed to the journal there, so two decisions never see the same state. A worker that never ends
 * a rollout holds up nobody for longer than its group's deadline.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Durability } from "../store/durable.ts";
import { whyNotBegin } from "./admission.ts";
import { Alarms, type Alarm } from "./alarms.ts";
import { groupFacts } from "./group-facts.ts";
import { writeGroup } from "./group-file.ts";
import { GroupRun, sizeOf } from "./group-run.ts";
import type { GroupFacts, GroupOutcome, TerminalOutcome, WAITING_FOR } from "./contract.ts";
import type { MemberFailure } from "./events.ts";
import type { Journal } from "./journal.ts";
import type { KeptMember, KeptMembers } from "./kept-members.ts";
import { MemberRuns } from "./member-runs.ts";
import type { TaskMix } from "./mix.ts";
import { ReadyGroups } from "./ready-groups.ts";
import type { DeliveryState, Group } from "./state.ts";
import { WaitingGroups } from "./waiting-groups.ts";
import type { RolloutWorker } from "./worker.ts";

export interface EngineOptions {
  readonly journal: Journal;
  readonly worker: RolloutWorker;
  readonly mix: TaskMix | null;
  readonly kept: KeptMembers;
  readonly runtime: Runtime;
  readonly durability: Durability;
  /** Where the groups' files are. */
  readonly directory: string;
  /** Called after anything that may let a lease go out. */
  readonly changed: () => void;
  /** Called for what should never happen: the run stands still then, and can be opened again. */
  readonly bug: (error: unknown) => void;
  /** Called for a group that is ready or over, before `changed`. */
  readonly touched: (id: string) => void;
}

const DEADLINE: MemberFailure = { class: "timeout", code: "group_deadline", permanent: false };
const STRAGGLER: MemberFailure = { class: "cancelled", code: "straggler", permanent: false };

export class Engine {
  readonly ready: ReadyGroups;
  readonly alarms: Alarms;
  readonly #options: EngineOptions;
  readonly #state: DeliveryState;
  readonly #waiting = new WaitingGroups();
  readonly #runs = new Map<Group, GroupRun>();
  readonly #members: MemberRuns;
  readonly #files = new Set<Promise<void>>();
  readonly #deadlines = new Map<Group, Alarm>();
  readonly #closing = new AbortController();
  #pumping = false;
  #drawing = false;

  constructor(options: EngineOptions) {
    this.#options = options;
    this.#state = options.journal.state;
    this.alarms = new Alarms(options.runtime);
    this.ready = new ReadyGroups(this.#state);
    this.#members = new MemberRuns({
      ...options,
      alarms: this.alarms,
      closing: this.#closing.signal,
      guarded: (work) => this.#guarded(work),
      track: (work) => this.#track(work),
      pump: () => this.pump(),
      settle: (run) => this.#settleRun(run),
    });
  }

  /** Rollouts that run now. */
  get running(): number {
    return this.#members.running;
  }

  /** Nothing is being written, and nothing is about to be begun. */
  get idle(): boolean {
    return this.#files.size === 0 && !this.#pumping && !this.#drawing;
  }

  groupPath(seq: number): string {
    return join(this.#options.directory, `${seq}.safetensors`);
  }

  /** Takes up what the log knows: waiting groups wait again, running ones run again. */
  start(): void {
    for (const id of this.#state.known.keys()) if (!this.#runsAgain(id)) this.#options.worker.over(id);
    for (const group of [...this.#state.groups.values()].sort((a, b) => a.begun - b.begun || a.seq - b.seq)) {
      if (group.phase === "waiting") this.accepted(group);
      else if (group.phase === "running") this.#open(group);
    }
    this.#over();
    this.pump();
  }

  /** What is ready, leased or consumed is in its file. */
  #runsAgain(id: string): boolean {
    const phase = this.#state.groups.get(id)?.phase;
    return phase === "waiting" || phase === "running";
  }

  accepted(group: Group): void {
    this.#waiting.add(group, this.#state.policy?.version ?? -1);
    this.#watch(group);
    this.pump();
  }

  policyChanged(): void {
    this.#waiting.versionIs(this.#state.policy?.version ?? -1);
    this.pump();
  }

  /** Why no further group begins, where one could. */
  get waitingFor(): (typeof WAITING_FOR)[number] | null {
    if (this.#state.runState !== "running" || (this.#waiting.peek() === undefined && this.#options.mix === null)) return null;
    return whyNotBegin(this.#state) ?? (this.#members.running >= this.#state.request.concurrency ? "concurrency" : null);
  }

  /** Does what can be done now, in a moment: many causes make one pass. */
  pump(): void {
    if (this.#pumping || this.#closing.signal.aborted) return;
    this.#pumping = true;
    queueMicrotask(() => {
      this.#pumping = false;
      if (this.#closing.signal.aborted) return;
      this.#guarded(() => {
        this.#fill();
        this.#options.changed();
      });
    });
  }

  /** Ends a group that waits or runs. Its members are told to stop. */
  end(group: Group, outcome: Extract<TerminalOutcome, "cancelled" | "failed">, reason: string, failure: MemberFailure): void {
    const run = this.#runs.get(group);
    if (run !== undefined) {
      run.over = true;
      this.#runs.delete(group);
    }
    const live = run === undefined ? [] : this.#members.stop(run);
    this.#terminal(group, outcome, reason, this.#factsOf(group, outcome, run, [], run === undefined ? (outcome === "failed" ? [failure] : []) : live.map(() => failure)));
    if (run !== undefined) this.#members.drop(run.slots);
    this.pump();
  }

  /** Commits a group's last line. `facts` are those with which it became ready, unless it never did. */
  terminal(group: Group, outcome: TerminalOutcome, details: { readonly reason?: string | null; readonly consumer?: string; readonly trainedVersion?: number; readonly step?: number; readonly checkpoint?: string; readonly facts?: GroupFacts }): Promise<void> {
    const facts = details.facts ?? group.facts;
    if (facts === null) throw new MwError("internal", `group ${group.id} ends as ${outcome}, but nothing is known of it`);
    const done = this.#options.journal.commit({
      type: "terminal",
      seq: this.#state.terminalSeq + 1,
      id: group.id,
      outcome,
      reason: details.reason ?? null,
      facts,
      consumer: details.consumer ?? null,
      lease: group.lease,
      trained_version: details.trainedVersion ?? null,
      step: details.step ?? null,
      checkpoint: details.checkpoint ?? null,
    });
    this.#unwatch(group);
    this.#options.worker.over(group.id);
    this.#options.touched(group.id);
    this.#over();
    return done;
  }

  /** Begins nothing more; what has not begun is cancelled. */
  drain(reason: string): void {
    for (const group of this.#state.groups.values()) if (group.phase === "waiting") this.end(group, "cancelled", reason, STRAGGLER);
    this.pump();
  }

  /** The run has failed: nothing more is begun, and what runs is stopped. */
  fail(reason: string): void {
    if (this.#state.runState !== "running" && this.#state.runState !== "draining") return;
    void this.#options.journal.commit({ type: "run", state: "failed", reason });
    this.cancelAll(`the run failed: ${reason}`);
  }

  cancelAll(reason: string): void {
    for (const group of this.#state.groups.values()) if (group.phase === "waiting" || group.phase === "running") this.end(group, "cancelled", reason, { ...STRAGGLER, code: "cancelled" });
  }

  /** Decides nothing more. What runs is the worker's to stop: aborted here, it would be recorded as cancelled, and a later process is to take it up. */
  async close(): Promise<void> {
    this.#closing.abort(new MwError("cancelled", "the run is closed"));
    this.alarms.close();
    for (const run of this.#runs.values()) run.over = true;
    while (this.#files.size > 0) await Promise.allSettled(this.#files);
  }

  #fill(): void {
    const { request } = this.#state;
    for (;;) {
      this.#members.fill(request.concurrency);
      if (this.#members.running >= request.concurrency || this.#state.runState !== "running" || whyNotBegin(this.#state) !== null) break;
      const next = this.#waiting.peek();
      if (next === undefined) {
        this.#draw();
        break;
      }
      this.#waiting.take();
      if (this.#state.quarantined.has(next.spec.task)) this.end(next, "failed", "its task is in quarantine: its groups failed again and again", { class: "env", code: "quarantined", permanent: true });
      else this.#begin(next);
    }
  }

  #begin(group: Group): void {
    const version = this.#state.policy?.version ?? 0;
    void this.#options.journal.commit({ type: "begun", id: group.id, version });
    this.ready.begun(group);
    this.#open(group);
  }

  #open(group: Group): void {
    const run = new GroupRun(group, this.#state.request);
    this.#runs.set(group, run);
    this.#members.add(run);
    if (group.begunAt !== null && run.attempts > 0) this.#settleRun(run);
    this.#watch(group);
  }

  /** The group's deadline; it may have passed while no process was there. */
  #watch(group: Group): void {
    if (this.#deadlines.has(group)) return;
    const seconds = group.spec.deadline_s ?? this.#state.request.deadlines.group_s;
    const alarm = this.alarms.set(group.acceptedAt + seconds * 1000, () =>
      this.#guarded(() => {
        this.#deadlines.delete(group);
        if (group.phase === "waiting") this.end(group, "failed", "its deadline passed before it was begun", DEADLINE);
        const run = this.#runs.get(group);
        // What is being stored is there in a moment.
        if (run !== undefined && !run.over) this.#finish(run, run.outcomeNow(), DEADLINE);
      }),
    );
    this.#deadlines.set(group, alarm);
  }

  #unwatch(group: Group): void {
    const alarm = this.#deadlines.get(group);
    if (alarm === undefined) return;
    this.#deadlines.delete(group);
    this.alarms.takeBack(alarm);
  }

  /** Draws the next task of the mix, which may have to be looked at first. */
  #draw(): void {
    const { mix } = this.#options;
    if (mix === null || this.#drawing || this.#state.credits.groups < 1) return;
    if (this.#state.known.size >= LIMITS.deliveryGroups) return this.fail(`${LIMITS.deliveryGroups} groups were accepted, the most that one run takes`);
    this.#drawing = true;
    mix.draw().then(
      (drawn) => {
        this.#drawing = false;
        if (this.#closing.signal.aborted || this.#state.runState !== "running") return;
        if (drawn === null) this.fail("no task is left to draw: all of them are in quarantine");
        else if (drawn.kind === "broken") void this.#options.journal.commit({ type: "quarantined", task: drawn.task });
        else {
          void this.#options.journal.commit(drawn.event);
          this.accepted(this.#state.group(drawn.event.spec.group_id));
        }
        this.pump();
      },
      (error: unknown) => {
        this.#drawing = false;
        if (!this.#closing.signal.aborted) this.fail(`the mix cannot be drawn from: ${messageOf(error)}`);
      },
    ).catch((error: unknown) => this.#thrown(error));
  }

  #guarded(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.#thrown(error);
    }
  }

  /** A journal that is over has told whoever owns it. */
  #thrown(error: unknown): void {
    if (!this.#options.journal.isBroken && !this.#closing.signal.aborted) this.#options.bug(error);
  }

  #settleRun(run: GroupRun): void {
    const outcome = run.over ? null : run.outcome();
    if (outcome !== null) this.#finish(run, outcome, STRAGGLER);
  }

  /** The group's end: with its file first, where there is anything in it. What still runs is stopped and counted as `cut`. */
  #finish(run: GroupRun, outcome: "complete" | "partial" | "failed", cut: MemberFailure): void {
    run.over = true;
    const live = this.#members.stop(run);
    const failures = live.map(() => cut);
    if (outcome === "failed") {
      this.#runs.delete(run.group);
      this.#terminal(run.group, "failed", this.#reasonOf(run, failures), this.#factsOf(run.group, "failed", run, this.#membersOf(run), failures));
      this.#members.drop(run.slots);
      this.#afterFailure();
      this.pump();
      return;
    }
    const now = this.#options.runtime.now();
    const cutMs = live.filter(({ startedAt }) => startedAt > 0).map(({ startedAt }) => now - startedAt);
    this.#track(this.#store(run, outcome, failures, cutMs));
  }

  async #store(run: GroupRun, outcome: "complete" | "partial", failures: readonly MemberFailure[], cutMs: readonly number[]): Promise<void> {
    const { journal, kept, runtime, durability } = this.#options;
    const { group } = run;
    const members = this.#membersOf(run);
    const facts = this.#factsOf(group, outcome, run, members, failures);
    const reward = members.reduce((sum, member) => sum + member.reward, 0) / members.length;
    for (;;) {
      try {
        const sum = await writeGroup(this.groupPath(group.seq), facts, members.map((member) => () => kept.load(member)), durability);
        if (group.phase !== "running") {
          // It was ended while it was written.
          await rm(this.groupPath(group.seq), { force: true });
          break;
        }
        void journal.commit({ type: "ready", id: group.id, facts, sum, reward, cutMs });
        this.#unwatch(group);
        this.#options.worker.over(group.id);
        this.ready.ended(group);
        this.ready.add(group);
        this.#options.touched(group.id);
        break;
      } catch (error) {
        journal.assertWhole();
        if (group.phase !== "running" || this.#closing.signal.aborted) break;
        // A disk without room gets it back, or the group's deadline passes.
        const late = group.acceptedAt + (group.spec.deadline_s ?? this.#state.request.deadlines.group_s) * 1000 < runtime.now();
        if (late) {
          this.end(group, "failed", `its samples cannot be stored: ${messageOf(error)}`, { class: "infra", code: "host_exhausted", permanent: false });
          break;
        }
        await runtime.sleep(LIMITS.groupWriteRetryMs, this.#closing.signal);
      }
    }
    this.#runs.delete(group);
    this.#members.drop(run.slots);
    this.pump();
  }

  #membersOf(run: GroupRun): readonly KeptMember[] {
    return run.slots.flatMap(({ kept }) => (kept === null ? [] : [kept]));
  }

  #factsOf(group: Group, outcome: GroupOutcome, run: GroupRun | undefined, members: readonly KeptMember[], failures: readonly MemberFailure[]): GroupFacts {
    const { run: runId, epoch, request } = this.#state;
    return groupFacts({ group, outcome, expected: sizeOf(group, request), attempts: run?.attempts ?? group.failed.length, name: run?.name ?? null, members, failures, run: runId, epoch, at: Math.floor(this.#options.runtime.now()) });
  }

  #reasonOf(run: GroupRun, failures: readonly MemberFailure[]): string {
    const classes = new Set([...run.group.failed.map(({ failure }) => failure), ...failures].map((failure) => `${failure.class}: ${failure.code}`));
    return `${run.usable} of ${run.size} usable (${[...classes].join(", ").slice(0, 512)})`;
  }

  #terminal(group: Group, outcome: TerminalOutcome, reason: string, facts: GroupFacts): void {
    const wasRunning = group.phase === "running";
    void this.terminal(group, outcome, { reason, facts });
    if (wasRunning) this.ready.ended(group);
  }

  #afterFailure(): void {
    const { request, deadStreak, runState } = this.#state;
    const limit = request.fail_after_dead_groups;
    if (limit !== null && deadStreak >= limit && (runState === "running" || runState === "draining")) this.fail(`${deadStreak} groups in a row came to nothing`);
  }

  #track(work: Promise<void>): void {
    const tracked = work.catch((error: unknown) => this.#thrown(error)).finally(() => this.#files.delete(tracked));
    this.#files.add(tracked);
  }

  /** Once the log says that they are not needed: a process that dies before that needs them again. */
  async #remove(seqs: readonly number[]): Promise<void> {
    await this.#options.journal.settled();
    for (const seq of seqs) await rm(this.groupPath(seq), { force: true });
  }

  /** Deletes the files that nothing needs any more, and ends a run that is through. */
  #over(): void {
    const { released, runState } = this.#state;
    if (released.length > 0) this.#track(this.#remove(released.splice(0)));
    if (runState === "draining" && this.#state.open === 0) void this.#options.journal.commit({ type: "run", state: "finished", reason: null });
  }
}

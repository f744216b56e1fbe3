/**
 * One run of delivery: what a trainer may ask, checked and answered. Between an answer and a death there is no gap: what is told is in the log.
 *
 * Layout of a run's directory: `run.json` (what was asked for), `events.jsonl` (the truth), `snapshot.json` (a fold of it up to a point), `groups/` (one file for each group that is
 * ready, leased or could be restored), `parts/` (samples that wait for the rest of their group).
 */
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { MwError, toMwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Durability } from "../store/durable.ts";
import type { AckRequest, CancelRequest, DeliveryCheckpoint, DeliveryStatus, GroupSubmission, LeaseRequest, PolicyUpdate, RunRequest, TerminalRecord } from "./contract.ts";
import type { Delivery, Lease, SubmitResult } from "./delivery.ts";
import { Engine } from "./engine.ts";
import { Journal, type JournalOptions } from "./journal.ts";
import { KeptMembers, type KeptBudget } from "./kept-members.ts";
import { LeaseDesk } from "./lease-desk.ts";
import { TaskMix, type MixPart } from "./mix.ts";
import type { DeliveryState, Group } from "./state.ts";
import { statusOf } from "./status.ts";
import { submissionHash } from "./submission-hash.ts";
import type { PolicyState, RolloutWorker, TaskFacts } from "./worker.ts";

export interface DeliveryOptions {
  readonly directory: string;
  readonly name: string;
  readonly run: string;
  readonly epoch: number;
  readonly createdAt: number;
  readonly request: RunRequest;
  /** Tasks of the request's mix; null without one. */
  readonly mix: readonly MixPart[] | null;
  /** Asked once, unless the run is over. */
  readonly openWorker: () => Promise<RolloutWorker>;
  readonly runtime: Runtime;
  readonly durability: Durability;
  readonly kept: KeptBudget;
  /** Told once when the run can promise nothing any more, for instance because its disk is full. */
  readonly onBroken?: (error: MwError) => void;
  /** The file primitives of the log; tests replace them to fail at will. */
  readonly openFile?: JournalOptions["openFile"];
}

export class DeliveryService implements Delivery {
  readonly run: string;
  readonly name: string;
  readonly request: RunRequest;
  readonly #options: DeliveryOptions;
  readonly #worker: RolloutWorker;
  readonly #journal: Journal;
  readonly #state: DeliveryState;
  readonly #engine: Engine;
  readonly #desk: LeaseDesk;
  readonly #tasks = new Map<string, Promise<TaskFacts>>();
  #policyTurn: Promise<unknown> = Promise.resolve();
  #finishing: (() => void)[] = [];
  #workerClosed: Promise<void> | null = null;
  #closed: Promise<void> | null = null;

  /** Opens what is in the directory, or begins there. Rejects `corrupt` for a damaged log. */
  static async open(options: DeliveryOptions): Promise<DeliveryService> {
    await mkdir(join(options.directory, "groups"), { recursive: true });
    const kept = new KeptMembers(join(options.directory, "parts"), options.kept);
    await kept.sweep();
    // Nothing is written before the service is there.
    const owner: { broke: (error: MwError) => void } = { broke: () => undefined };
    const journal = await Journal.open({ ...options, onBroken: (error) => owner.broke(error) });
    let worker: RolloutWorker | null = null;
    try {
      worker = isOver(journal.state) ? idleWorker : await options.openWorker();
      if (journal.state.policy !== null) await worker.setPolicy(journal.state.policy);
      const service = new DeliveryService(options, journal, worker, kept);
      owner.broke = (error) => service.#broke(error);
      await service.#sweepFiles();
      service.#desk.start();
      service.#engine.start();
      return service;
    } catch (error) {
      await worker?.close().catch(() => undefined);
      await journal.close();
      throw error;
    }
  }

  private constructor(options: DeliveryOptions, journal: Journal, worker: RolloutWorker, kept: KeptMembers) {
    const { runtime, durability, directory, mix } = options;
    this.#options = options;
    this.#worker = worker;
    this.run = options.run;
    this.name = options.name;
    this.request = options.request;
    this.#journal = journal;
    this.#state = journal.state;
    this.#engine = new Engine({
      journal,
      worker,
      runtime,
      durability,
      kept,
      mix: mix === null ? null : new TaskMix(journal.state, worker, mix),
      directory: join(directory, "groups"),
      changed: () => this.#changed(),
      bug: (error) => this.#broke(toMwError(error)),
      touched: (id) => this.#desk.touched(id),
    });
    this.#desk = new LeaseDesk(options.name, journal, this.#engine, runtime);
  }

  /** Nothing is under way but rollouts and waiting: for simulations, which move their clock then. */
  get idle(): boolean {
    return this.#engine.idle && this.#journal.idle && this.#desk.idle;
  }

  setPolicy(update: PolicyUpdate): Promise<DeliveryStatus["policy"]> {
    const turn = this.#policyTurn.catch(() => undefined).then(() => this.#setPolicy(update));
    this.#policyTurn = turn;
    return turn;
  }

  async submit(groups: readonly GroupSubmission[]): Promise<SubmitResult> {
    this.#journal.assertWhole();
    const checked = new Map<string, { readonly submission: GroupSubmission; readonly hash: string }>();
    for (const submission of groups) {
      const hash = submissionHash(submission);
      if (checked.has(submission.group_id)) throw new MwError("conflict", `group ${submission.group_id} is in the request twice`, { fix: "give every group a name of its own" });
      checked.set(submission.group_id, { submission, hash });
      this.#checkName(submission.group_id, hash);
    }
    const fresh = [...checked.values()].filter(({ submission }) => !this.#state.known.has(submission.group_id));
    for (const { submission } of fresh) this.#checkSubmission(submission);
    const facts = await Promise.all(fresh.map(({ submission }) => this.#checkTask(submission)));
    // While tasks were looked at, others may have submitted.
    const accepted: Group[] = [];
    const written: Promise<void>[] = [];
    const isNew = fresh.map(({ submission, hash }) => !this.#checkName(submission.group_id, hash));
    this.#checkRoom(isNew.filter(Boolean).length);
    for (const [index, { submission, hash }] of fresh.entries()) {
      const task = facts[index];
      if (isNew[index] !== true || task === undefined) continue;
      written.push(this.#journal.commit({ type: "accepted", spec: submission, hash, ...task, dataset: null, draw: null }));
      accepted.push(this.#state.group(submission.group_id));
    }
    for (const group of accepted) this.#engine.accepted(group);
    await Promise.all(written);
    await this.#journal.settled();
    const names = new Set(accepted.map(({ id }) => id));
    return { groups: groups.map(({ group_id }) => ({ group_id, status: names.has(group_id) ? "accepted" : "known" })), credits: this.#state.credits };
  }

  lease(request: LeaseRequest, signal: AbortSignal): Promise<Lease> {
    return this.#desk.lease(request, signal);
  }

  async ack(lease: string, request: AckRequest): Promise<DeliveryStatus["credits"]> {
    this.#journal.assertWhole();
    const wanted = [
      ...request.consumed.map((id) => ({ id, outcome: "consumed" as const, reason: null })),
      ...request.rejected.map(({ group_id, reason }) => ({ id: group_id, outcome: "rejected" as const, reason })),
    ];
    const settled = this.#state.settled.get(lease);
    const held = this.#state.leases.get(lease);
    const due: { readonly group: Group; readonly outcome: "consumed" | "rejected"; readonly reason: string | null }[] = [];
    const seen = new Set<string>();
    for (const { id, outcome, reason } of wanted) {
      if (seen.has(id)) throw new MwError("usage", `group ${id} is in the acknowledgement twice`);
      seen.add(id);
      const group = this.#state.groups.get(id);
      // It went back when the lease's time was over, and nobody else has had it since: late is as good.
      const isMine = group !== undefined && group.lease === lease && (group.phase === "leased" || group.phase === "ready");
      if (isMine) due.push({ group, outcome, reason });
      else if (settled?.get(id) !== outcome) throw new MwError("not_found", `lease ${lease} does not hold group ${id} (any more)`, { fix: "a group that was not acknowledged in time is delivered again: ask for a lease, and drop what you have trained on" });
    }
    if (wanted.length === 0 && held === undefined && settled === undefined) throw new MwError("not_found", `there is no lease ${lease}`, { fix: "its time is over, or the run was restored: ask for a new one" });
    const written = due.map(({ group, outcome, reason }) =>
      this.#engine.terminal(group, outcome, {
        reason,
        consumer: held?.consumer ?? "late",
        ...(request.trained_version === undefined ? {} : { trainedVersion: request.trained_version }),
        ...(request.step === undefined ? {} : { step: request.step }),
        ...(request.checkpoint === undefined ? {} : { checkpoint: request.checkpoint }),
      }),
    );
    this.#engine.pump();
    await Promise.all(written);
    await this.#journal.settled();
    return this.#state.credits;
  }

  async extend(lease: string): Promise<{ readonly expires_at: number }> {
    if (!this.#state.leases.has(lease)) throw new MwError("not_found", `there is no lease ${lease}`, { fix: "its time is over, or all of it was acknowledged: ask for a new one" });
    const expiresAt = Math.floor(this.#options.runtime.now()) + this.request.lease_s * 1000;
    await this.#journal.commit({ type: "extended", lease, expiresAt });
    return { expires_at: expiresAt };
  }

  /** Whether a lease is not over: neither its time, nor all of it acknowledged. */
  holds(lease: string): boolean {
    return this.#state.leases.has(lease);
  }

  /** Gives a lease back that its trainer will not get: the connection broke before its end. */
  release(lease: string): void {
    this.#desk.release(lease);
  }

  async cancel(request: CancelRequest): Promise<{ readonly cancelled: readonly string[] }> {
    this.#journal.assertWhole();
    const cancelled = this.#toCancel(request);
    for (const group of cancelled) {
      if (group.phase === "ready") void this.#engine.terminal(group, "cancelled", { reason: "cancelled by the trainer" });
      else this.#engine.end(group, "cancelled", "cancelled by the trainer", { class: "cancelled", code: "cancelled", permanent: false });
    }
    this.#engine.pump();
    await this.#journal.settled();
    return { cancelled: cancelled.map(({ id }) => id) };
  }

  terminal(after: number, limit: number): Promise<readonly TerminalRecord[]> {
    return this.#journal.terminal(after, Math.min(limit, LIMITS.terminalRecords));
  }

  status(): DeliveryStatus {
    return statusOf(this.name, this.#state, this.#engine);
  }

  async checkpoint(): Promise<DeliveryCheckpoint> {
    const checkpoint = this.#state.checkpoint();
    await this.#journal.commit({ type: "checkpoint", checkpoint });
    this.#engine.pump();
    return checkpoint;
  }

  async restore(checkpoint: DeliveryCheckpoint): Promise<DeliveryStatus> {
    this.#journal.assertWhole();
    const known = this.#state.checkpoints.find(({ cursor }) => cursor === checkpoint.cursor);
    if (checkpoint.run !== this.run || checkpoint.epoch !== this.#state.epoch) throw new MwError("conflict", `the checkpoint is of run ${checkpoint.run} (${checkpoint.epoch}), this one is ${this.run} (${this.#state.epoch})`, { fix: "restore it where it was made, or begin a new run" });
    if (known === undefined || known.digest !== checkpoint.digest) {
      throw new MwError("conflict", `the checkpoint at line ${checkpoint.cursor} can no longer be restored: what was consumed after it was let go`, {
        fix: `the two latest checkpoints can be restored while what was consumed since has at most retain_bytes (${this.request.retain_bytes}); now: ${this.#state.checkpoints.map(({ cursor }) => cursor).join(", ") || "none"}`,
      });
    }
    const leased = [...this.#state.groups.values()].filter(({ phase }) => phase === "leased");
    const back = [...this.#state.retained].filter((group) => group.terminalSeq > checkpoint.cursor);
    // Of several made at one line only the last is kept, which may be of a later version.
    void this.#journal.commit({ type: "restored", checkpoint: { ...known, version: checkpoint.version } });
    for (const group of back) void this.#engine.terminal(group, "restored", { reason: `the trainer went back to line ${checkpoint.cursor}` });
    for (const group of [...leased, ...back]) this.#engine.ready.add(group);
    this.#engine.pump();
    await this.#journal.settled();
    return this.status();
  }

  async finish(): Promise<DeliveryStatus> {
    await this.drain();
    while (this.#state.runState === "draining") await new Promise<void>((resolve) => this.#finishing.push(resolve));
    await this.#journal.settled();
    return this.status();
  }

  /** The beginning of `finish`, without waiting for its end. */
  async drain(): Promise<DeliveryStatus> {
    this.#journal.assertWhole();
    if (this.#state.runState === "running") {
      void this.#journal.commit({ type: "run", state: "draining", reason: null });
      this.#engine.drain("the run was finished before the group was begun");
      if (this.#state.open === 0) void this.#journal.commit({ type: "run", state: "finished", reason: null });
    }
    this.#engine.pump();
    await this.#journal.settled();
    return this.status();
  }

  /** Ends the run for good: everything that is not consumed is cancelled. */
  async end(reason: string): Promise<DeliveryStatus> {
    this.#journal.assertWhole();
    this.#engine.cancelAll(reason);
    for (const group of this.#state.groups.values()) if (group.phase === "ready" || group.phase === "leased") void this.#engine.terminal(group, "cancelled", { reason });
    if (this.#state.runState !== "closed") void this.#journal.commit({ type: "run", state: "closed", reason });
    this.#engine.pump();
    await this.#journal.settled();
    return this.status();
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#desk.close();
    const files = this.#engine.close();
    await this.#closeWorker();
    await files;
    await this.#journal.close();
    this.#wakeFinishing();
  }

  #closeWorker(): Promise<void> {
    this.#workerClosed ??= this.#worker.close(isOver(this.#state));
    return this.#workerClosed;
  }

  async #setPolicy(update: PolicyUpdate): Promise<DeliveryStatus["policy"]> {
    this.#journal.assertWhole();
    const { policy, versionFloor } = this.#state;
    if (update.version < versionFloor) {
      throw new MwError("conflict", `version ${update.version} is below ${versionFloor}, which the policy has already`, { fix: "versions only grow within a run; after going back to a checkpoint, restore it here first" });
    }
    const model = update.model ?? policy?.model;
    const endpoints = update.endpoints ?? policy?.endpoints;
    if (model === undefined || endpoints === undefined) throw new MwError("usage", "the first update of the policy names neither model nor endpoints before it", { fix: 'give both: {"version": 0, "model": "...", "endpoints": [{"url": "http://..."}]}' });
    const next: PolicyState = { version: update.version, state: update.state, model, endpoints };
    if (submissionHash(next) !== submissionHash(policy)) {
      await this.#worker.setPolicy(next);
      await this.#journal.commit({ type: "policy", policy: next });
      this.#engine.policyChanged();
    }
    return { version: next.version, state: next.state, model };
  }

  /** Whether the same was accepted before. */
  #checkName(id: string, hash: string): boolean {
    const known = this.#state.known.get(id);
    if (known !== undefined && known !== hash) throw new MwError("conflict", `group ${id} was accepted before with other content`, { fix: "give a new group a new name" });
    return known !== undefined;
  }

  #checkSubmission({ group_id: id, task, metadata }: GroupSubmission): void {
    const { runState, reason, quarantined, known } = this.#state;
    if (runState !== "running") throw new MwError("conflict", `run ${this.name} takes no more groups: it is ${runState}${reason === null ? "" : ` (${reason})`}`, { fix: "begin another run" });
    if (quarantined.has(task)) throw new MwError("unsupported", `group ${id}: the task ${task} is in quarantine, because its groups failed ${this.request.quarantine_after ?? 0} times in a row`, { fix: "mw task check finds out what is wrong with it; then begin another run" });
    const bytes = metadata === undefined ? 0 : Buffer.byteLength(JSON.stringify(metadata));
    if (bytes > LIMITS.deliveryMetadataBytes) throw new MwError("limit_exceeded", `group ${id}: metadata of ${bytes} bytes, at most ${LIMITS.deliveryMetadataBytes} are kept`);
    if (known.size >= LIMITS.deliveryGroups) throw new MwError("limit_exceeded", `run ${this.name} has accepted ${known.size} groups, the most that one run takes`, { fix: "begin another run" });
  }

  #checkRoom(groups: number): void {
    const { credits } = this.#state;
    if (groups <= credits.groups && (credits.bytes > 0 || groups === 0)) return;
    throw new MwError("overloaded", `run ${this.name} has no room for ${groups} more groups: ${credits.groups} groups and ${credits.bytes} bytes are free`, {
      fix: "consume and acknowledge what is ready, or raise credits.groups and credits.bytes",
      facts: { credits_groups: credits.groups, credits_bytes: credits.bytes },
    });
  }

  /** Looked at once in the life of this process, whatever comes of it. */
  #checkTask({ task, harness }: GroupSubmission): Promise<TaskFacts> {
    const names = harness ?? this.request.harness;
    const key = `${names.join(",")}\n${task}`;
    let checked = this.#tasks.get(key);
    if (checked === undefined) {
      if (this.#tasks.size >= LIMITS.tasksPerRun) this.#tasks.clear();
      checked = this.#worker.check(task, names);
      // One that was corrected may be submitted again.
      checked.catch(() => this.#tasks.delete(key));
      this.#tasks.set(key, checked);
    }
    return checked;
  }

  #toCancel(request: CancelRequest): readonly Group[] {
    const mayEnd = (group: Group): boolean => group.phase === "waiting" || group.phase === "running" || group.phase === "ready";
    if ("group_ids" in request) {
      return request.group_ids.flatMap((id) => {
        const group = this.#state.groups.get(id);
        if (group === undefined && !this.#state.known.has(id)) throw new MwError("not_found", `there is no group ${id} in run ${this.name}`);
        return group !== undefined && mayEnd(group) ? [group] : [];
      });
    }
    const all = [...this.#state.groups.values()].filter(mayEnd);
    if ("all" in request) return all;
    return all.filter((group) => group.phase !== "waiting" && (group.facts?.version_min ?? group.version) < request.older_than_version);
  }

  #changed(): void {
    this.#desk.changed();
    if (isOver(this.#state) && this.#engine.running === 0) void this.#closeWorker().catch(() => undefined);
    if (this.#state.runState !== "draining") this.#wakeFinishing();
  }

  #wakeFinishing(): void {
    for (const wake of this.#finishing.splice(0)) wake();
  }

  #broke(error: MwError): void {
    void this.close().catch(() => undefined);
    this.#options.onBroken?.(error);
  }

  /** What a death left: files of groups that are over, or were not ready yet. */
  async #sweepFiles(): Promise<void> {
    const directory = join(this.#options.directory, "groups");
    const needed = new Set<string>();
    for (const { seq, phase } of this.#state.groups.values()) if (phase === "ready" || phase === "leased" || phase === "retained") needed.add(`${seq}.safetensors`);
    this.#state.released.length = 0;
    for (const name of await readdir(directory)) if (!needed.has(name)) await rm(join(directory, name), { force: true });
  }
}

function isOver({ runState }: DeliveryState): boolean {
  return runState === "finished" || runState === "failed" || runState === "closed";
}

/** Of a run that begins nothing any more. */
const idleWorker: RolloutWorker = {
  check: () => Promise.reject(new MwError("conflict", "the run is over")),
  setPolicy: () => Promise.resolve(),
  run: () => Promise.reject(new MwError("internal", "a run that is over began a rollout")),
  over: () => undefined,
  close: () => Promise.resolve(),
};

/**
 * What is known of a run, as a fold over its events: live and after any death it is made by the same function, so recovery cannot differ from what happened.
 *
 * A group is `waiting` (accepted) -> `running` (begun) -> `ready` (its file is there) -> `leased` -> over, or over from any of these. What is over is kept as its name and hash, which
 * makes submitting it again harmless; consumed groups are `retained` with their files while a checkpoint can bring them back.
 */
import { createHash } from "node:crypto";
import { MwError } from "../core/errors.ts";
import type { DeliveryCheckpoint, GroupFacts, GroupSubmission, RUN_STATES, RunRequest, TerminalOutcome, TerminalRecord } from "./contract.ts";
import type { DeliveryEvent, FailureClass, MemberFailure } from "./events.ts";
import type { PolicyState } from "./worker.ts";

export interface Group {
  readonly id: string;
  /** Counts accepted groups of the run from 0; names its file. */
  readonly seq: number;
  readonly spec: GroupSubmission;
  readonly hash: string;
  readonly name: string;
  readonly family: string;
  readonly digest: string | null;
  readonly dataset: string | null;
  readonly acceptedAt: number;
  phase: "waiting" | "running" | "ready" | "leased" | "retained" | "over";
  /** Position in the order in which groups were begun; -1 before. */
  begun: number;
  /** Of the policy when it was begun; -1 before. */
  version: number;
  begunAt: number | null;
  /** Failed tries by member. */
  failed: { member: number; attempt: number; failure: MemberFailure; replaced: boolean }[];
  /** Once it is ready. */
  facts: GroupFacts | null;
  sum: number;
  reward: number | null;
  /** The last lease that it was in. */
  lease: string | null;
  /** While it is retained. */
  terminalSeq: number;
}

export interface LeaseState {
  readonly consumer: string;
  readonly groups: Set<Group>;
  expiresAt: number;
}

export interface PartCounts {
  draws: number;
  begun: number;
  consumed: number;
  failed: number;
  rewardSum: number;
  rewards: number;
}

/** Leases that are over and whose acknowledgement may come again. */
const LEASES_REMEMBERED = 1024;
const ENDINGS_REMEMBERED = 16_384;
const CHECKPOINTS_KEPT = 64;

export class DeliveryState {
  readonly request: RunRequest;
  readonly run: string;
  readonly epoch: number;
  /** Those that are not over, and those that are retained. */
  readonly groups = new Map<string, Group>();
  /** Hash of everything that was ever accepted, by name. */
  readonly known = new Map<string, string>();
  readonly leases = new Map<string, LeaseState>();
  /** How the latest groups ended, for whoever waits for them by name; the terminal log has all. */
  readonly endings = new Map<string, { readonly outcome: TerminalOutcome; readonly reason: string | null }>();
  /** What became of the groups of leases that are over. */
  readonly settled = new Map<string, Map<string, TerminalOutcome>>();
  readonly counts = { waiting: 0, running: 0, ready: 0, leased: 0, consumed: 0, rejected: 0, failed: 0, cancelled: 0, expired: 0 };
  readonly failures: Partial<Record<FailureClass, number>> = {};
  readonly parts = new Map<string, PartCounts>();
  /** Failed groups in a row, by task. */
  readonly failing = new Map<string, number>();
  readonly quarantined = new Set<string>();
  /** Members that still ran when their group was ready without them. */
  readonly stragglers = { count: 0, run_ms: 0, longest_ms: 0 };
  readonly retained = new Set<Group>();
  /** Files that nothing needs any more; whoever applied the event deletes them. */
  readonly released: number[] = [];
  checkpoints: DeliveryCheckpoint[] = [];
  policy: PolicyState | null = null;
  /** The first version that the run ever had: the admission rule counts from there. */
  firstVersion = 0;
  /** Versions below are refused. */
  versionFloor = 0;
  runState: (typeof RUN_STATES)[number] = "running";
  reason: string | null = null;
  accepted = 0;
  begun = 0;
  leaseCount = 0;
  terminalSeq = 0;
  digest = "";
  readyBytes = 0;
  retainedBytes = 0;
  /** Of all groups that became ready, for what the next will take. */
  everReady = 0;
  everBytes = 0;
  deadStreak = 0;
  rolloutsEnded = 0;
  lastProgressAt: number;

  constructor(request: RunRequest, run: string, epoch: number, createdAt: number) {
    this.request = request;
    this.run = run;
    this.epoch = epoch;
    this.lastProgressAt = createdAt;
    for (const { name } of request.dataset ?? []) this.parts.set(name, { draws: 0, begun: 0, consumed: 0, failed: 0, rewardSum: 0, rewards: 0 });
  }

  /** `at`: milliseconds since the epoch. Throws `internal` for an event that cannot follow on what was before. */
  apply(event: DeliveryEvent, at: number): void {
    switch (event.type) {
      case "accepted":
        return this.#accepted(event, at);
      case "begun":
        return this.#begun(event, at);
      case "member_failed": {
        const { member, attempt, failure, replaced } = event;
        this.group(event.id).failed.push({ member, attempt, failure, replaced });
        this.failures[failure.class] = (this.failures[failure.class] ?? 0) + 1;
        this.lastProgressAt = at;
        return;
      }
      case "ready":
        return this.#ready(event, at);
      case "leased":
        this.leaseCount++;
        this.leases.set(event.lease, { consumer: event.consumer, groups: new Set(event.ids.map((id) => this.#toLeased(id, event.lease))), expiresAt: event.expiresAt });
        return;
      case "extended": {
        const lease = this.leases.get(event.lease);
        if (lease !== undefined) lease.expiresAt = event.expiresAt;
        return;
      }
      case "lease_over":
        return this.#leaseOver(event.lease);
      case "terminal":
        return this.#terminal(event, at);
      case "policy":
        if (this.policy === null) this.firstVersion = event.policy.version;
        this.policy = event.policy;
        this.versionFloor = event.policy.version;
        this.lastProgressAt = at;
        return;
      case "quarantined":
        this.quarantined.add(event.task);
        return;
      case "checkpoint":
        this.#keepCheckpoint(event.checkpoint);
        return;
      case "restored":
        return this.#restored(event.checkpoint, at);
      case "run":
        this.runState = event.state;
        this.reason = event.reason;
        this.lastProgressAt = at;
    }
  }

  group(id: string): Group {
    const group = this.groups.get(id);
    if (group === undefined) throw new MwError("internal", `the log speaks of group ${id}, which is not there`);
    return group;
  }

  /** Groups that were begun and are neither over nor consumed. */
  get inFlight(): number {
    return this.counts.running + this.counts.ready + this.counts.leased;
  }

  get open(): number {
    return this.counts.waiting + this.inFlight;
  }

  get credits(): { groups: number; bytes: number } {
    return { groups: this.request.credits.groups - this.open, bytes: this.request.credits.bytes - this.readyBytes };
  }

  part(name: string): PartCounts {
    const part = this.parts.get(name);
    if (part === undefined) throw new MwError("internal", `${name} is no part of the mix`);
    return part;
  }

  checkpoint(): DeliveryCheckpoint {
    return { run: this.run, epoch: this.epoch, cursor: this.terminalSeq, consumed: this.counts.consumed, version: this.policy?.version ?? null, digest: this.digest };
  }

  #accepted({ spec, hash, name, family, digest, dataset, draw }: DeliveryEvent & { type: "accepted" }, at: number): void {
    const id = spec.group_id;
    this.groups.set(id, {
      id,
      seq: this.accepted++,
      spec,
      hash,
      name,
      family,
      digest,
      dataset,
      acceptedAt: at,
      phase: "waiting",
      begun: -1,
      version: -1,
      begunAt: null,
      failed: [],
      facts: null,
      sum: 0,
      reward: null,
      lease: null,
      terminalSeq: 0,
    });
    this.known.set(id, hash);
    this.counts.waiting++;
    if (dataset !== null && draw !== null) this.part(dataset).draws = draw + 1;
  }

  #begun({ id, version }: DeliveryEvent & { type: "begun" }, at: number): void {
    const group = this.group(id);
    this.#move(group, "running");
    group.begun = this.begun++;
    group.version = version;
    group.begunAt = at;
    if (group.dataset !== null) this.part(group.dataset).begun++;
    this.lastProgressAt = at;
  }

  #ready({ id, facts, sum, reward, cutMs }: DeliveryEvent & { type: "ready" }, at: number): void {
    const group = this.group(id);
    this.#move(group, "ready");
    group.facts = facts;
    group.sum = sum;
    group.reward = reward;
    group.failed = [];
    this.readyBytes += facts.bytes;
    this.everReady++;
    this.everBytes += facts.bytes;
    for (const ms of cutMs) {
      this.stragglers.count++;
      this.stragglers.run_ms += ms;
      this.stragglers.longest_ms = Math.max(this.stragglers.longest_ms, ms);
    }
    this.rolloutsEnded += facts.attempts;
    this.deadStreak = 0;
    this.failing.delete(group.spec.task);
    this.lastProgressAt = at;
  }

  #toLeased(id: string, lease: string): Group {
    const group = this.group(id);
    this.#move(group, "leased");
    group.lease = lease;
    return group;
  }

  #leaseOver(id: string): void {
    const lease = this.leases.get(id);
    if (lease === undefined) return;
    this.leases.delete(id);
    for (const group of lease.groups) this.#move(group, "ready");
  }

  #terminal(event: DeliveryEvent & { type: "terminal" }, at: number): void {
    const { id, outcome, facts } = event;
    const group = this.group(id);
    if (event.seq !== ++this.terminalSeq) throw new MwError("internal", `line ${event.seq} of the terminal log follows line ${this.terminalSeq - 1}`);
    this.digest = createHash("sha256").update(`${this.digest}\n${id}\n${outcome}`).digest("hex");
    this.lastProgressAt = at;
    if (outcome === "restored") {
      this.endings.delete(id);
      return this.#bringBack(group);
    }
    this.#remember(this.endings, id, { outcome, reason: event.reason }, ENDINGS_REMEMBERED);
    const { phase } = group;
    const wasStored = phase === "ready" || phase === "leased";
    if (wasStored) this.readyBytes -= facts.bytes;
    else this.rolloutsEnded += facts.attempts;
    this.#settle(group, outcome);
    if (phase === "retained" || phase === "over") throw new MwError("internal", `group ${id} ends as ${outcome}, but it is ${phase}`);
    this.counts[phase]--;
    this.counts[outcome]++;
    if (outcome === "failed") this.#groupFailed(group, facts);
    if (outcome === "consumed") this.#consumed(group);
    else this.#drop(group, wasStored);
  }

  /** Takes it out of its lease, which is over with its last group. */
  #settle(group: Group, outcome: TerminalOutcome): void {
    if (group.lease === null) return;
    let settled = this.settled.get(group.lease);
    if (settled === undefined) {
      settled = new Map();
      this.#remember(this.settled, group.lease, settled, LEASES_REMEMBERED);
    }
    settled.set(group.id, outcome);
    const lease = this.leases.get(group.lease);
    lease?.groups.delete(group);
    if (lease?.groups.size === 0) this.leases.delete(group.lease);
  }

  /** Adds to a map, and lets go of its oldest entry where it is full. */
  #remember<V>(map: Map<string, V>, key: string, value: V, limit: number): void {
    map.set(key, value);
    if (map.size <= limit) return;
    const [oldest] = map.keys();
    if (oldest !== undefined) map.delete(oldest);
  }

  #consumed(group: Group): void {
    if (group.dataset !== null) {
      const part = this.part(group.dataset);
      part.consumed++;
      if (group.reward !== null) {
        part.rewardSum += group.reward;
        part.rewards++;
      }
    }
    if (this.checkpoints.length === 0) return this.#drop(group, true);
    group.phase = "retained";
    group.terminalSeq = this.terminalSeq;
    this.retained.add(group);
    this.retainedBytes += group.facts?.bytes ?? 0;
    this.#letGo();
  }

  #groupFailed(group: Group, facts: GroupFacts): void {
    if (group.dataset !== null) this.part(group.dataset).failed++;
    // What was never begun says nothing about its task.
    if (facts.attempts === 0) return;
    if (facts.usable === 0) this.deadStreak++;
    // Neither does a model server that is down, or a host that is short.
    if (!facts.failures.some((failure) => failure.class !== "model" && failure.class !== "infra" && failure.class !== "cancelled")) return;
    const streak = (this.failing.get(group.spec.task) ?? 0) + 1;
    this.failing.set(group.spec.task, streak);
    if (this.request.quarantine_after !== null && streak >= this.request.quarantine_after) this.quarantined.add(group.spec.task);
  }

  #keepCheckpoint(checkpoint: DeliveryCheckpoint): void {
    const last = this.checkpoints.at(-1);
    if (last?.cursor === checkpoint.cursor) this.checkpoints.pop();
    this.checkpoints.push(checkpoint);
    if (this.checkpoints.length > CHECKPOINTS_KEPT) this.checkpoints.shift();
    this.#letGo();
  }

  /** A trainer may die while it saves its checkpoint: the one before it stays restorable too. What only older ones would bring back goes, and the oldest when there is too much. */
  #letGo(): void {
    const floor = this.checkpoints.at(-2)?.cursor ?? this.checkpoints.at(-1)?.cursor ?? 0;
    let gone = floor;
    for (const group of this.retained) {
      if (group.terminalSeq > floor && this.retainedBytes <= this.request.retain_bytes) break;
      gone = Math.max(gone, group.terminalSeq);
      this.#forget(group);
      this.#drop(group, true);
    }
    this.checkpoints = this.checkpoints.filter(({ cursor }) => cursor >= gone);
  }

  #drop(group: Group, hasFile: boolean): void {
    group.phase = "over";
    this.groups.delete(group.id);
    if (hasFile) this.released.push(group.seq);
  }

  #forget(group: Group): void {
    this.retained.delete(group);
    this.retainedBytes -= group.facts?.bytes ?? 0;
  }

  #restored(checkpoint: DeliveryCheckpoint, at: number): void {
    this.checkpoints = this.checkpoints.filter(({ cursor }) => cursor <= checkpoint.cursor);
    for (const lease of this.leases.keys()) this.#leaseOver(lease);
    this.versionFloor = Math.min(this.versionFloor, checkpoint.version ?? 0);
    this.lastProgressAt = at;
  }

  #bringBack(group: Group): void {
    this.#forget(group);
    this.counts.consumed--;
    if (group.dataset !== null) {
      const part = this.part(group.dataset);
      part.consumed--;
      if (group.reward !== null) {
        part.rewardSum -= group.reward;
        part.rewards--;
      }
    }
    group.phase = "ready";
    group.lease = null;
    group.terminalSeq = 0;
    this.counts.ready++;
    this.readyBytes += group.facts?.bytes ?? 0;
  }

  #move(group: Group, phase: "running" | "ready" | "leased"): void {
    const legal = { running: ["waiting"], ready: ["running", "leased"], leased: ["ready"] }[phase];
    if (!legal.includes(group.phase)) throw new MwError("internal", `group ${group.id} cannot be ${phase}: it is ${group.phase}`);
    // Legal phases to come from are counted ones.
    this.counts[group.phase as "waiting" | "running" | "ready" | "leased"]--;
    group.phase = phase;
    this.counts[phase]++;
  }
}

/** A terminal event as its line of the terminal log. */
export function terminalRecord(event: DeliveryEvent & { type: "terminal" }, at: number): TerminalRecord {
  const { seq, id, outcome, reason, facts, consumer, lease, trained_version, step, checkpoint } = event;
  return { seq, at, group_id: id, outcome, reason, group: facts, consumer, lease_id: lease, trained_version, step, checkpoint };
}

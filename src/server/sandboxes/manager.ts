/**
 * Sandboxes of the server's clients: whose each is, how long it lives, what becomes of it then. Both interfaces, the native one and E2B's, are skins over this.
 *
 * An owner sees only what is its own: everything else is `not_found`. A sandbox is made in turn with those of other owners, ends by its lease unless that is renewed, and is gone
 * from here the moment its machine has ended. Paused ones are kept on disk and are there again after a restart.
 */
import { MwError, messageOf } from "../../core/errors.ts";
import { isId, type SandboxId, type SnapshotId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import { hostRoom, shortage } from "../../rollout/host.ts";
import type { ForkResult, Sandbox, Snapshot, SnapshotOptions, SnapshotTaken } from "../../sandbox/sandbox.ts";
import { LOCAL_OWNER } from "../authentication/keys.ts";
import { ProblemError } from "../problem.ts";
import type { Services } from "../services.ts";
import { Admission, type AdmissionLimits, type Place } from "./admission.ts";
import { DurableRecords, type SandboxRecord } from "./durable-records.ts";
import { ImageAccess } from "./image-access.ts";
import { endLease } from "./lease-end.ts";
import { OwnerStorage, type StorageLimits } from "./owner-storage.ts";
import { requestDigest, SandboxEntry, type SandboxRequest } from "./sandbox-entry.ts";
import { recordOf, specOf } from "./sandbox-spec.ts";

/** How old what was found out about the host's room may be. */
const ROOM_MS = 250;

/** How many sandboxes may live at once, and of one owner. Default: as many as the host takes. */
export interface SandboxLimits extends StorageLimits {
  readonly maxSandboxes?: number | undefined;
  readonly maxSandboxesPerOwner?: number | undefined;
}

interface ManagerServices extends Pick<Services, "home" | "runtime" | "machines" | "keepsMachines" | "draining" | "log"> {
  readonly limits?: SandboxLimits;
  /** How many owners have keys. */
  readonly owners: () => number;
}

/** Keeps what belongs to sandboxes and is not theirs to keep. */
export interface LifeWatcher {
  /** Before a pause with the processes. */
  pausing(sandbox: Sandbox): Promise<void>;
  resumed(sandbox: Sandbox): void;
  /** A sandbox, also a paused one, or a snapshot is no more. */
  gone(id: SandboxId | SnapshotId, sandbox: Sandbox | null): Promise<void>;
}

/** A snapshot that is part of something else, named in its label `part_of`: its owner knows that, and not the snapshot. */
const PART_OF = "part_of";

export class SandboxManager {
  readonly images: ImageAccess;
  watcher: LifeWatcher | null = null;
  readonly #services: ManagerServices;
  readonly #records: DurableRecords;
  readonly admission: Admission;
  readonly #storage: OwnerStorage;
  readonly #entries = new Map<SandboxId, SandboxEntry>();
  readonly #keys = new Map<string, { readonly digest: string; readonly made: Promise<SandboxEntry> }>();
  #closed = false;
  #room: { readonly at: number; readonly short: Promise<string | null> } | null = null;

  /**
   * With the sandboxes that an earlier controller paused, and those whose machines outlived it. A record with neither is of one that died before the pause was, or after its end: the record is the first
   * to come and the last to go.
   */
  static async open(services: ManagerServices): Promise<SandboxManager> {
    const manager = new SandboxManager(services);
    const pauses = await manager.#pauses();
    for (const record of await manager.#records.all(services.log)) {
      const { facts, pausedAt } = record;
      const sandbox = services.keepsMachines === true ? services.machines.backend.get(facts.id) : null;
      if (sandbox !== null) manager.#takeOver(record, sandbox);
      else if (pauses?.has(facts.id) === false) await manager.#records.delete(facts.id);
      else manager.#entries.set(facts.id, new SandboxEntry(facts, null, pausedAt));
    }
    return manager;
  }

  /** The machine goes on as what it was. One that was about to be paused was not: nobody has been told that it was. */
  #takeOver({ facts, pausedAt, running }: SandboxRecord, sandbox: Sandbox): void {
    const entry = new SandboxEntry(facts, sandbox, running?.startedAt ?? pausedAt);
    if (running !== undefined) Object.assign(entry, { ttlMs: running.ttlMs, endAt: running.endAt, key: running.key });
    if (entry.key !== undefined) this.#know(entry.key, Promise.resolve(entry));
    // Its image is this process's business now as well.
    this.images.use(LOCAL_OWNER.id, facts.imageDigest).catch((error: unknown) => this.#services.log(`the image of ${facts.id}: ${messageOf(error)}`));
    this.#enter(entry, this.admission.occupy(facts.owner));
  }

  #know({ name, digest }: { readonly name: string; readonly digest: string }, made: Promise<SandboxEntry>): void {
    this.#keys.set(name, { digest, made });
    made.then((entry) => entry.sandbox?.ended.then(() => this.#keys.delete(name)), () => this.#keys.delete(name));
  }

  /** Where machines outlive this process: what the next one is to know of a running one. */
  async #record(entry: SandboxEntry): Promise<void> {
    if (this.#services.keepsMachines !== true || !Number.isFinite(entry.ttlMs)) return;
    await this.#records.put(entry.id, () => (entry.gone ? null : recordOf(entry, this.#services.runtime.now())));
  }

  /** Sandboxes that the backend keeps; null when it does not say. */
  async #pauses(): Promise<ReadonlySet<SandboxId | null> | null> {
    const { snapshots, capabilities } = this.#services.machines.backend;
    if (!capabilities.pause) return null;
    try {
      return new Set((await snapshots.list()).map(({ pausedSandbox }) => pausedSandbox));
    } catch (error) {
      this.#services.log(`paused sandboxes: ${messageOf(error)}`);
      return null;
    }
  }

  private constructor(services: ManagerServices) {
    this.#services = services;
    this.#records = new DurableRecords(services.home);
    this.images = new ImageAccess(services.machines.images, services.runtime, services.log);
    this.#storage = new OwnerStorage({ ...services.limits, store: () => services.machines.backend.snapshots, ownerOf, entries: (owner) => this.list(owner) });
    this.admission = new Admission(admissionLimits(services.limits ?? {}), services.runtime, services.owners);
  }

  /** With a `key` the same sandbox as before, as long as it lives; `conflict` when it was asked for otherwise. `fresh` says whether it was made now. */
  async create(owner: string, request: SandboxRequest, options: { readonly key?: string; readonly signal: AbortSignal }): Promise<{ readonly entry: SandboxEntry; readonly fresh: boolean }> {
    checkMetadata(request.metadata);
    if (options.key === undefined) return { entry: await this.#make(owner, request, options.signal), fresh: true };
    const name = `${owner}\n${options.key}`;
    const digest = requestDigest(request);
    const known = this.#keys.get(name);
    if (known !== undefined) {
      if (known.digest !== digest) throw new MwError("conflict", "a sandbox was made with this key, but from another request", { fix: "use a key of its own for each sandbox" });
      return { entry: await known.made, fresh: false };
    }
    const made = this.#make(owner, request, options.signal, { name, digest });
    this.#know({ name, digest }, made);
    return { entry: await made, fresh: true };
  }

  /** Shows a machine that another module made and ends, until it ends. It has no lease of ours. */
  show(owner: string, sandbox: Sandbox, template: string, metadata: Readonly<Record<string, string>> = {}): SandboxEntry {
    const request: SandboxRequest = { template, metadata, ttlMs: Number.POSITIVE_INFINITY, onTimeout: "kill", pauseMemory: false, autoResume: false };
    const now = this.#services.runtime.now();
    const entry = new SandboxEntry({ id: sandbox.id, owner, request, imageDigest: sandbox.spec.root.digest, createdAt: now }, sandbox, now);
    this.#entries.set(entry.id, entry);
    this.#follow(entry);
    return entry;
  }

  /** `not_found` for what is not this owner's. */
  get(owner: string, id: string): SandboxEntry {
    const entry = isId("sbx", id) ? this.#entries.get(id) : undefined;
    if (entry === undefined || entry.gone || entry.facts.owner !== owner) throw noSuch(id);
    return entry;
  }

  /** Whoever's it is: for those who prove by other means that they may. */
  find(id: string): SandboxEntry | null {
    const entry = isId("sbx", id) ? this.#entries.get(id) : undefined;
    return entry === undefined || entry.gone ? null : entry;
  }

  /** Oldest first. */
  list(owner: string): readonly SandboxEntry[] {
    return [...this.#entries.values()].filter((entry) => entry.facts.owner === owner && !entry.gone);
  }

  all(): Iterable<SandboxEntry> {
    return this.#entries.values();
  }

  /** Its machine. `sandbox_paused` for a paused one, unless that resumes by itself. */
  async running(entry: SandboxEntry): Promise<Sandbox> {
    const { sandbox } = entry;
    if (sandbox !== null && sandbox.state === "running") return sandbox;
    if (!entry.facts.request.autoResume) throw new MwError("sandbox_paused", `the sandbox ${entry.id} is paused`, { fix: "resume it first" });
    return this.resume(entry, entry.ttlMs);
  }

  async kill(entry: SandboxEntry): Promise<void> {
    await entry.turn.use(async () => {
      if (entry.gone) return;
      const sandbox = entry.sandbox ?? (await this.#adopt(entry));
      await sandbox.kill();
      await this.#forget(entry);
    });
  }

  /** The lease ends `ttlMs` from now. */
  async renew(entry: SandboxEntry, ttlMs: number): Promise<void> {
    if (!Number.isFinite(entry.ttlMs)) throw new MwError("unsupported", `the sandbox ${entry.id} belongs to a rollout, which decides how long it lives`);
    Object.assign(entry, { ttlMs, endAt: this.#services.runtime.now() + ttlMs, lateSince: null });
    this.#watch(entry);
    await this.#record(entry);
  }

  /** Replaces the hosts that it may reach. Rejects `unsupported` where its network is no list, or somebody else's to decide. */
  async allow(entry: SandboxEntry, hosts: readonly string[]): Promise<void> {
    if (!Number.isFinite(entry.ttlMs)) throw new MwError("unsupported", `the sandbox ${entry.id} belongs to a rollout, whose task decides what it reaches`);
    const { egress, spec } = await this.running(entry);
    if (egress === undefined) throw new MwError("unsupported", `the network of ${entry.id} is ${spec.network ?? "none"}: it has no list of hosts`, { fix: 'make it with the network "allowlist"' });
    egress.allow(hosts);
    await this.#record(entry);
  }

  async pause(entry: SandboxEntry, memory: boolean): Promise<void> {
    if (!Number.isFinite(entry.ttlMs)) throw new MwError("unsupported", `the sandbox ${entry.id} belongs to a rollout, which could not go on in a paused one`);
    await entry.turn.use(async () => {
      if (entry.gone) throw noSuch(entry.id);
      if (entry.state === "paused") throw new MwError("conflict", `the sandbox ${entry.id} is paused already`);
      // First, so that a pause is never kept by the backend without being known here.
      const record = recordOf(entry, this.#services.runtime.now());
      await this.#records.put(entry.id, () => record);
      try {
        if (memory && entry.sandbox !== null) await this.watcher?.pausing(entry.sandbox);
        await entry.sandbox?.pause({ memory });
      } catch (error) {
        if (this.#services.keepsMachines !== true || entry.gone) await this.#records.delete(entry.id);
        throw error;
      }
      entry.stopWatch();
      entry.leavePlace();
    });
  }

  /** Its machine, which has `ttlMs` from now on. A running one keeps at least what it had. */
  async resume(entry: SandboxEntry, ttlMs: number): Promise<Sandbox> {
    return entry.turn.use(async () => {
      if (entry.gone) throw noSuch(entry.id);
      const sandbox = entry.sandbox ?? (await this.#adopt(entry));
      if (sandbox.state === "running") {
        if (this.#services.runtime.now() + ttlMs > entry.endAt) await this.renew(entry, ttlMs);
        return sandbox;
      }
      await this.#storage.forSandboxes(entry.facts.owner, entry.facts.request.diskBytes ?? 0, () => this.admission.run(entry.facts.owner, this.#services.draining, 1, async ([place]) => {
        await sandbox.resume();
        entry.takePlace(place);
      }));
      this.watcher?.resumed(sandbox);
      if (this.#services.keepsMachines !== true) await this.#records.delete(entry.id);
      entry.startedAt = this.#services.runtime.now();
      await this.renew(entry, ttlMs);
      return sandbox;
    });
  }

  async snapshot(entry: SandboxEntry, options: { readonly name?: string; readonly memory: boolean }): Promise<SnapshotTaken> {
    const { owner, request } = entry.facts;
    return this.#take(owner, await this.running(entry), { ...options, labels: { owner, template: request.template } });
  }

  /** Of a machine that is in no list, with its processes, as a part of what the owner has under another name. */
  async snapshotPart(owner: string, sandbox: Sandbox, partOf: string): Promise<Snapshot> {
    return (await this.#take(owner, sandbox, { memory: true, labels: { owner, [PART_OF]: partOf } })).snapshot;
  }

  async #take(owner: string, sandbox: Sandbox, options: SnapshotOptions): Promise<SnapshotTaken> {
    const size = async (): Promise<number> => {
      const { diskBytes, memoryBytes } = await sandbox.metrics();
      return (diskBytes ?? 0) + (options.memory === true ? (memoryBytes ?? 0) : 0);
    };
    return this.#storage.forSnapshot(owner, size, () => sandbox.snapshot(options));
  }

  /** Children are sandboxes of the same owner; each succeeds or fails by itself. What a protocol keeps with its sandbox (`extra`) is none of theirs: they have their own. */
  async fork(entry: SandboxEntry, count: number, options: { readonly memory: boolean; readonly ttlMs: number; readonly extra?: () => SandboxRequest["extra"] }): Promise<readonly ({ readonly entry: SandboxEntry } | { readonly error: MwError })[]> {
    await this.expectRoom();
    const sandbox = await this.running(entry);
    const promised = count * (entry.facts.request.diskBytes ?? 0);
    return this.#storage.forSandboxes(entry.facts.owner, promised, () => this.admission.run(entry.facts.owner, this.#services.draining, count, async (places) => {
      const results = await sandbox.fork(count, { memory: options.memory, child: () => ({ labels: { owner: entry.facts.owner } }) });
      return Promise.all(results.map(async (result: ForkResult, at) => {
        if (!result.ok) {
          places[at]?.release();
          return { error: result.error };
        }
        const now = this.#services.runtime.now();
        const facts = { ...entry.facts, id: result.sandbox.id, createdAt: now, request: { ...entry.facts.request, ttlMs: options.ttlMs, extra: options.extra?.() } };
        const child = this.#enter(new SandboxEntry(facts, result.sandbox, now), places[at]);
        await this.#record(child);
        return { entry: child };
      }));
    }));
  }

  /** Of this owner, oldest first. Those of pauses are no snapshots to it, nor parts of something else. */
  async snapshots(owner: string): Promise<readonly Snapshot[]> {
    return (await this.#services.machines.backend.snapshots.list()).filter((snapshot) => ownerOf(snapshot) === owner && snapshot.pausedSandbox === null && snapshot.labels[PART_OF] === undefined);
  }

  /** Of all owners, with what each is a part of. */
  async snapshotParts(): Promise<readonly { readonly id: SnapshotId; readonly partOf: string }[]> {
    return (await this.#services.machines.backend.snapshots.list()).flatMap(({ id, labels }) => (labels[PART_OF] === undefined ? [] : [{ id, partOf: labels[PART_OF] }]));
  }

  /** By id or name; `not_found` for what is not this owner's. */
  async getSnapshot(owner: string, reference: string): Promise<Snapshot> {
    // A name means something to its owner alone.
    const snapshot = isId("snap", reference) ? await this.#services.machines.backend.snapshots.get(reference) : ((await this.snapshots(owner)).findLast(({ name }) => name === reference) ?? null);
    if (snapshot === null || ownerOf(snapshot) !== owner || snapshot.pausedSandbox !== null) throw new MwError("not_found", `there is no snapshot ${JSON.stringify(reference.slice(0, 200))}`);
    return snapshot;
  }

  async removeSnapshot(owner: string, reference: string): Promise<void> {
    const snapshot = await this.getSnapshot(owner, reference);
    await this.#services.machines.backend.snapshots.remove(snapshot.id);
    await this.watcher?.gone(snapshot.id, null);
  }

  /** Timers would keep the process alive. Sandboxes that end from here on end with their backend, and paused ones are there again with the next server. */
  close(): void {
    this.#closed = true;
    this.admission.close();
    for (const entry of this.#entries.values()) entry.stopWatch();
  }

  async #make(owner: string, asked: SandboxRequest, signal: AbortSignal, key?: SandboxEntry["key"]): Promise<SandboxEntry> {
    const request = this.#storage.bounded(asked);
    await this.expectRoom();
    const snapshot = request.snapshot === undefined ? null : await this.getSnapshot(owner, request.snapshot);
    const reference = snapshot?.imageDigest ?? request.image ?? "host";
    const { root } = await this.images.use(snapshot === null ? owner : LOCAL_OWNER.id, reference, signal);
    const spec = specOf(owner, request, root, snapshot);
    return this.#storage.forSandboxes(owner, request.diskBytes ?? 0, () => this.admission.run(owner, signal, 1, async ([place]) => {
      const sandbox = await this.#services.machines.backend.create(spec);
      const now = this.#services.runtime.now();
      const entry = new SandboxEntry({ id: sandbox.id, owner, request, imageDigest: root.digest, createdAt: now }, sandbox, now);
      entry.key = key;
      this.#enter(entry, place);
      await this.#record(entry);
      return entry;
    }));
  }

  #enter(entry: SandboxEntry, place: Place | undefined): SandboxEntry {
    entry.takePlace(place);
    this.#entries.set(entry.id, entry);
    this.#follow(entry);
    this.#watch(entry);
    return entry;
  }

  /** A machine that ends takes its entry with it. */
  #follow(entry: SandboxEntry): void {
    void entry.sandbox?.ended.then(() => (this.#closed ? undefined : this.#forget(entry))).catch((error: unknown) => this.#services.log(`${entry.id}: ${messageOf(error)}`));
  }

  async #forget(entry: SandboxEntry): Promise<void> {
    if (entry.gone) return;
    entry.gone = true;
    entry.stopWatch();
    entry.leavePlace();
    this.#entries.delete(entry.id);
    await this.#records.delete(entry.id);
    await this.watcher?.gone(entry.id, entry.sandbox);
  }

  /** One timer an entry: a lease that was made longer meanwhile is looked at again when the old end comes. */
  #watch(entry: SandboxEntry): void {
    const { runtime } = this.#services;
    entry.watch(runtime, () => void this.#timeUp(entry).catch((error: unknown) => this.#services.log(`the end of ${entry.id}: ${messageOf(error)}`)));
  }

  async #timeUp(entry: SandboxEntry): Promise<void> {
    const { runtime, log } = this.#services;
    await endLease(entry, { runtime, log, pause: (of, memory) => this.pause(of, memory), kill: (of) => this.kill(of), watch: (of) => this.#watch(of) });
  }

  /** A paused one of an earlier controller, known to the backend again. */
  async #adopt(entry: SandboxEntry): Promise<Sandbox> {
    const { facts } = entry;
    const { root } = await this.images.use(LOCAL_OWNER.id, facts.imageDigest);
    const sandbox = await this.#services.machines.backend.adoptPaused(entry.id, specOf(facts.owner, facts.request, root, null)).catch(async (error: unknown) => {
      if (error instanceof MwError && error.code === "not_found") await this.#forget(entry);
      throw error;
    });
    entry.sandbox = sandbox;
    this.#follow(entry);
    return sandbox;
  }

  /** Rejects `host_exhausted` when the host is short of something. */
  async expectRoom(): Promise<void> {
    const now = this.#services.runtime.monotonic();
    if (this.#room === null || now - this.#room.at > ROOM_MS) this.#room = { at: now, short: hostRoom(this.#services.home).then(shortage) };
    const short = await this.#room.short;
    if (short !== null) throw new ProblemError("host_exhausted", `the host is short of ${short}`, { fix: "end sandboxes, or ask again later", headers: { "retry-after": "5" } });
  }
}

function admissionLimits({ maxSandboxes = LIMITS.sandboxesPerHost, maxSandboxesPerOwner = maxSandboxes }: SandboxLimits): AdmissionLimits {
  return {
    atOnce: LIMITS.creationsAtOnce,
    places: maxSandboxes,
    placesOfOwner: Math.min(maxSandboxes, maxSandboxesPerOwner),
    waiting: LIMITS.creationsWaiting,
    waitingOfOwner: LIMITS.creationsWaitingOfOwner,
    waitMs: LIMITS.creationWaitMs,
  };
}

function ownerOf(snapshot: Snapshot): string {
  return snapshot.labels["owner"] ?? LOCAL_OWNER.id;
}

function checkMetadata(metadata: Readonly<Record<string, string>>): void {
  const entries = Object.entries(metadata);
  const bytes = entries.reduce((sum, [key, value]) => sum + Buffer.byteLength(key) + Buffer.byteLength(value), 0);
  if (entries.length > LIMITS.metadataEntries || bytes > LIMITS.metadataBytes) throw new MwError("limit_exceeded", `the metadata has ${entries.length} entries and ${bytes} bytes; ${LIMITS.metadataEntries} and ${LIMITS.metadataBytes} are the most`);
}

function noSuch(id: string): MwError {
  return new MwError("not_found", `there is no sandbox ${JSON.stringify(id.slice(0, 100))}`);
}

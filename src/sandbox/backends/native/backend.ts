/**
 * The native backend: machines made by the spawner of one data directory, leases renewed while this process lives.
 *
 * When the spawner dies, its machines are lost and every request that waits on it fails; the next creation starts a new spawner, which sweeps what the old
 * one left before it says hello.
 */
import { messageOf, MwError } from "../../../core/errors.ts";
import { makeDataDirectory } from "../../../core/home.ts";
import { newId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { systemRuntime, type Runtime } from "../../../core/runtime.ts";
import { checkSpec } from "../../check-spec.ts";
import { type EgressProxy, openEgressProxy } from "../../egress/egress-proxy.ts";
import type { Resolve } from "../../egress/resolve.ts";
import type { Capabilities, PreparedSandbox, Sandbox, SandboxBackend, SandboxSpec } from "../../sandbox.ts";
import { DiskSnapshotStore } from "../../snapshots/disk-store.ts";
import type { SnapshotRecord } from "../../snapshots/record.ts";
import { KeyedCreation } from "../keyed-creation.ts";
import { findCriu } from "./criu/program.ts";
import { processesOf } from "./criu/machine-processes.ts";
import { BlankConnections } from "./blank-connections.ts";
import { NO_HOLD, type Ground } from "./ground.ts";
import { newMachineId } from "./machine-children.ts";
import { type MachineContext, workdirOf } from "./machine-life.ts";
import { NativeMachine } from "./machine.ts";
import { type Recalled, recallMachines } from "./recall.ts";
import { prepareWorkdir } from "./workdir.ts";
import { egressSocket } from "./run-directory.ts";
import { startSpawner, takeOverSpawner } from "./start-spawner.ts";
import type { Spawner } from "./spawner.ts";

export interface NativeBackendOptions {
  /** The data directory: locked by this backend's spawner, made when missing. */
  readonly home: string;
  /**
   * How long machines outlive this process when it dies, seconds, and whether those of one that died before are taken over: a controller of the same user and version, on the same data
   * directory, that comes in that time finds them running. Default 0: machines end with their controller.
   */
  readonly keepSeconds?: number;
  /** Default true. False: `busy` is rejected while such machines wait for a controller. */
  readonly takesOver?: boolean;
  readonly runtime?: Runtime;
  /** The data directory whose snapshots are used and made. Default `home`. */
  readonly snapshotsHome?: string;
  /** How names of `allowlist` networks become addresses. Default: this host's hosts file and name servers. */
  readonly resolve?: Resolve;
  /** Lines that the spawner writes. Default: this process's stderr. */
  readonly log?: (line: string) => void;
}

/** Rejects `busy` when another controller holds the data directory, `environment` when this host cannot make machines. */
export async function openNativeBackend(options: NativeBackendOptions): Promise<NativeBackend> {
  makeDataDirectory(options.home);
  const how = spawnerOptions(options);
  const found = how.graceMs > 0 && options.takesOver !== false ? await takeOverSpawner(options.home, how) : { spawner: null, ended: null };
  const spawner = found.spawner ?? (await startSpawner(options.home, how, found.ended));
  const backend = new NativeBackend(options, spawner);
  if (found.spawner !== null) await backend.takeOver(spawner);
  return backend;
}

export class NativeBackend implements SandboxBackend {
  readonly name = "native";
  readonly #options: NativeBackendOptions;
  readonly #runtime: Runtime;
  readonly snapshots: DiskSnapshotStore;
  readonly #machines = new Map<SandboxId, NativeMachine>();
  readonly sealed = new Map<SandboxId, NativeMachine>();
  readonly #byKey = new KeyedCreation<NativeMachine>();
  #spawner: Promise<Spawner> | null = null;
  /** Of the one that lives, or lived last. */
  #spawnerPid: number | null = null;
  #egress: Promise<EgressProxy> | null = null;
  #blanks: BlankConnections | null = null;
  #capabilities: Capabilities;
  readonly #keepMs: number;
  #renewing: NodeJS.Timeout | null = null;
  #closed = false;

  constructor(options: NativeBackendOptions, spawner: Spawner) {
    this.#options = options;
    this.#runtime = options.runtime ?? systemRuntime;
    this.#keepMs = spawnerOptions(options).graceMs;
    this.#capabilities = capabilitiesOf(spawner);
    this.snapshots = new DiskSnapshotStore(options.snapshotsHome ?? options.home, this.#runtime);
    this.#adopt(spawner);
  }

  get capabilities(): Capabilities {
    return this.#capabilities;
  }

  /** Raised by one with every spawner of this data directory; what an older one recorded is void. */
  get epoch(): Promise<number> {
    return this.#ready().then((spawner) => spawner.hello.epoch);
  }

  /** The process that this backend's machines end with, where they outlive this one; else null. */
  get keeper(): number | null {
    return this.#keepMs > 0 ? this.#spawnerPid : null;
  }

  /** The machines of the controller that this spawner had before. What cannot go on is ended, so that nothing is left that nobody knows of. */
  async takeOver(spawner: Spawner): Promise<void> {
    const ended = new Set<string>();
    const stop = spawner.onEnded(({ id }) => ended.add(id));
    const holds = await this.snapshots.keepWith(spawner.hello.pid);
    const { machines, sealed, rest, workspaces } = await recallMachines(spawner);
    for (const note of sealed) {
      const machine = this.#machine(note.id, note.spec, { ...note.ground, hold: NO_HOLD });
      machine.recallSealed(spawner, note);
      this.sealed.set(note.id, machine);
    }
    for (const recalled of machines) await this.#takeOverOne(spawner, recalled).catch((error: unknown) => this.#say(`the sandbox ${recalled.note.id} could not be taken over, and is ended: ${messageOf(error)}`));
    for (const id of rest) await spawner.kill(id).catch(() => undefined);
    for (const id of workspaces) await spawner.releaseWorkspace(id).catch(() => undefined);
    await this.snapshots.dropHolds(holds);
    stop();
    for (const id of ended) this.#machines.get(id as SandboxId)?.machineEnded({ reason: "lost", limits: { oom_killed: 0, pids: 0, disk_full: 0 }, kept: false });
  }

  async #takeOverOne(spawner: Spawner, { note, running }: Recalled): Promise<void> {
    const { id, spec } = note;
    const ground = running === null && note.next !== null ? note.next : note.ground;
    const hold = await this.snapshots.hold(ground.diskLayers.map((layer) => layer.id));
    const machine = this.#machine(id, spec, { ...ground, hold });
    try {
      if (running === null) await machine.makeAgain(note, { ...ground, hold });
      else await machine.takeOver(spawner, note, { ...running, hold });
      this.#byKey.know(spec.key, machine);
      // A pause that was not carried out.
      const pause = await this.snapshots.pauseOf(id);
      if (pause !== null) await this.snapshots.remove(pause.id);
    } catch (error) {
      await spawner.kill(id).catch(() => undefined);
      machine.machineEnded({ reason: "lost", limits: { oom_killed: 0, pids: 0, disk_full: 0 }, kept: false });
      throw error;
    }
  }

  #say(line: string): void {
    (this.#options.log ?? ((text: string) => process.stderr.write(`${text}\n`)))(line);
  }

  async create(spec: SandboxSpec): Promise<Sandbox> {
    checkSpec(spec, this.#capabilities);
    return this.#byKey.of(spec.key, () => this.#make(spec));
  }

  async prepare(spec: SandboxSpec): Promise<PreparedSandbox> {
    checkSpec(spec, this.#capabilities);
    const machine = await this.#make(spec, true);
    return { ended: machine.ended, take: async (own) => ((await machine.take(own)) ? machine : null), discard: () => machine.kill() };
  }

  async list(): ReturnType<SandboxBackend["list"]> {
    return [...this.#machines.values()].filter(({ spare }) => !spare).map(({ id, spec, createdAt, state }) => ({ id, labels: spec.labels ?? {}, createdAt, state }));
  }

  get(id: SandboxId): Sandbox | null {
    const machine = this.#machines.get(id);
    return machine === undefined || machine.spare ? null : machine;
  }

  async adoptPaused(id: SandboxId, spec: SandboxSpec): Promise<Sandbox> {
    checkSpec(spec, this.#capabilities);
    const known = this.#machines.get(id);
    if (known !== undefined) return known;
    const record = await this.snapshots.pauseOf(id);
    if (record === null) throw new MwError("not_found", `There is no paused sandbox ${id}`);
    checkImage(spec, record);
    const machine = this.#machine(id, spec, { workspace: null, memoryLayers: 0, diskLayers: [], hold: NO_HOLD, machineId: record.machineId, ownIdentity: false });
    machine.adoptPause(record);
    return machine;
  }

  async close(): Promise<void> {
    this.#closed = true;
    if (this.#renewing !== null) clearInterval(this.#renewing);
    this.#renewing = null;
    const spawner = await this.#spawner?.catch(() => null);
    this.#spawner = null;
    await spawner?.close();
    for (const machine of this.#machines.values()) machine.abandon();
    await (await this.#egress?.catch(() => null))?.close();
    this.#egress = null;
    await this.snapshots.settled();
  }

  async #make(asked: SandboxSpec, spare = false): Promise<NativeMachine> {
    const ground = await this.#groundOf(asked);
    // What has processes of another goes on being a machine whose processes can be kept.
    const spec = ground.processes === undefined ? asked : { ...asked, checkpointable: true };
    const machine = await this.#launch(newId("sbx", this.#runtime), spec, ground, spare);
    try {
      await prepareWorkdir(machine, workdirOf(spec), spec);
      if (!spare) await machine.last();
      return machine;
    } catch (error) {
      await machine.kill();
      throw error;
    }
  }

  /** What fails leaves nothing but the ground, which is the caller's then. */
  async #launch(id: SandboxId, spec: SandboxSpec, ground: Ground, spare = false): Promise<NativeMachine> {
    if (this.#machines.size >= LIMITS.sandboxesPerHost) throw new MwError("host_exhausted", `There are ${this.#machines.size} sandboxes already, which is this host's limit`);
    const machine = this.#machine(id, spec, ground);
    machine.spare = spare;
    try {
      await machine.launch();
      return machine;
    } catch (error) {
      machine.neverMade();
      this.#machines.delete(id);
      if (spec.snapshot !== undefined) await ground.hold.release();
      throw error;
    }
  }

  #machine(id: SandboxId, spec: SandboxSpec, ground: Ground): NativeMachine {
    const context: MachineContext = {
      spawner: () => this.#ready(),
      runtime: this.#runtime,
      capabilities: this.#capabilities,
      store: this.snapshots,
      takeConnection: (blank) => this.#blanks?.take(blank) ?? null,
      makeChild: (child, on) => this.#makeChild(child, on),
      egress: () => this.#openEgress(),
      keepMs: this.#keepMs,
      forget: (gone) => {
        this.#machines.delete(gone);
        this.sealed.delete(gone);
      },
    };
    const machine = new NativeMachine(context, id, spec, spec.ttlMs ?? LIMITS.leaseDefaultMs, ground);
    this.#machines.set(id, machine);
    this.#renewFrom(spec.ttlMs ?? LIMITS.leaseDefaultMs);
    return machine;
  }

  async #makeChild(spec: SandboxSpec, ground: Ground): Promise<Sandbox> {
    const id = newId("sbx", this.#runtime);
    return this.#byKey.of(spec.key, async () => {
      const machine = await this.#launch(id, { hostname: id, ...spec }, ground);
      await machine.last();
      return machine;
    });
  }

  async #groundOf(spec: SandboxSpec): Promise<Ground> {
    const fresh: Ground = { workspace: spec.workspace?.id ?? null, memoryLayers: 0, diskLayers: [], hold: NO_HOLD, machineId: newMachineId(this.#runtime), ownIdentity: false };
    if (spec.snapshot === undefined) return fresh;
    const used = await this.snapshots.use(spec.snapshot);
    if (used === null) throw new MwError("not_found", `There is no snapshot ${JSON.stringify(spec.snapshot)}`, { fix: "mw sandbox snapshots lists them" });
    const { record, hold } = used;
    try {
      checkImage(spec, record);
      const processes = spec.snapshotFilesOnly === true ? null : await processesOf(record, this.snapshots);
      if (processes !== null) checkSpec({ ...spec, checkpointable: true }, this.#capabilities);
      return { ...fresh, diskLayers: record.layers, hold, ownIdentity: true, ...(processes === null ? {} : { processes }) };
    } catch (error) {
      await hold.release();
      throw error;
    }
  }

  /** Opened with the first machine that needs it. */
  #openEgress(): Promise<EgressProxy> {
    const { home, resolve } = this.#options;
    const opening = this.#egress ?? openEgressProxy({ socketPath: egressSocket(home), runtime: this.#runtime, ...(resolve === undefined ? {} : { resolve }) });
    this.#egress = opening;
    // One that failed is tried again.
    opening.catch(() => (this.#egress = null));
    return opening;
  }

  /** The spawner that lives, or a new one. */
  #ready(): Promise<Spawner> {
    if (this.#closed) return Promise.reject(new MwError("sandbox_gone", "The sandbox backend is closed"));
    if (this.#spawner !== null) return this.#spawner;
    const starting = startSpawner(this.#options.home, spawnerOptions(this.#options), this.#spawnerPid);
    this.#spawner = starting;
    starting.then(
      (spawner) => this.#adopt(spawner),
      () => {
        if (this.#spawner === starting) this.#spawner = null;
      },
    );
    return starting;
  }

  #adopt(spawner: Spawner): void {
    const current = Promise.resolve(spawner);
    this.#spawner = current;
    this.#spawnerPid = spawner.hello.pid;
    if (this.#keepMs > 0) void this.snapshots.keepWith(spawner.hello.pid);
    this.#capabilities = capabilitiesOf(spawner);
    this.#blanks = new BlankConnections(spawner);
    spawner.onEnded(({ id, ...end }) => {
      // An id that came back from the spawner is one that we gave it.
      this.#machines.get(id as SandboxId)?.machineEnded(end);
    });
    void spawner.exited.then(() => {
      if (this.#spawner === current) this.#spawner = null;
      for (const machine of this.#machines.values()) {
        if (machine.belongsTo(spawner)) machine.machineEnded({ reason: this.#closed ? "killed" : "lost", limits: { oom_killed: 0, pids: 0, disk_full: 0 }, kept: false });
      }
    });
  }

  /** Leases are renewed at a third of the shortest one, all machines of one length in one request. */
  #renewFrom(leaseMs: number): void {
    const wanted = Math.max(250, leaseMs / 3);
    if (this.#renewing !== null && this.#renewEveryMs <= wanted) return;
    if (this.#renewing !== null) clearInterval(this.#renewing);
    this.#renewEveryMs = wanted;
    this.#renewing = setInterval(() => void this.#renewAll(), wanted);
    this.#renewing.unref();
  }
  #renewEveryMs = Number.POSITIVE_INFINITY;

  async #renewAll(): Promise<void> {
    const byLease = new Map<number, SandboxId[]>();
    for (const machine of this.#machines.values()) {
      const { id, leaseMs } = machine;
      if (leaseMs === null) continue;
      machine.renewed();
      const ids = byLease.get(leaseMs);
      if (ids === undefined) byLease.set(leaseMs, [id]);
      else ids.push(id);
    }
    if (this.#machines.size === 0 && this.#renewing !== null) {
      clearInterval(this.#renewing);
      this.#renewing = null;
      return;
    }
    const spawner = await this.#spawner?.catch(() => null);
    // A spawner that died meanwhile takes its machines with it; there is nothing to renew.
    for (const [leaseMs, ids] of byLease) await spawner?.renew(ids, leaseMs + this.#keepMs).catch(() => undefined);
  }
}

function spawnerOptions({ keepSeconds = 0, log }: NativeBackendOptions): { readonly graceMs: number; readonly log?: (line: string) => void } {
  return { graceMs: Math.round(keepSeconds * 1000), ...(log === undefined ? {} : { log }) };
}

function checkImage(spec: SandboxSpec, record: SnapshotRecord): void {
  if (spec.root.digest === record.imageDigest) return;
  throw new MwError("invalid_input", `The snapshot ${record.name ?? record.id} was taken on the image ${record.imageDigest}, not on ${spec.root.digest}`, { fix: "name the image that the snapshot was taken on" });
}

/** The reason of whoever looked for CRIU says more than that there is none. */
function processesMissing({ missing }: Spawner["hello"]): string {
  const criu = findCriu();
  return "missing" in criu ? criu.missing : (missing["processes"] ?? "");
}

function capabilitiesOf({ hello }: Spawner): Capabilities {
  return {
    isolation: {
      backend: "native",
      profile: hello.userns ? "userns" : "namespaces",
      privileged: hello.privileged,
      enforced: { ...hello.enforced, disk: true },
    },
    networks: hello.publicNetwork ? ["none", "allowlist", "public"] : ["none", "allowlist"],
    users: hello.users,
    freeze: hello.freeze,
    seal: true,
    export: true,
    snapshot: true,
    memorySnapshot: hello.processes,
    fork: true,
    pause: true,
    services: true,
    layers: true,
    hostname: true,
    guarded: true,
    missing: { ...hello.missing, memorySnapshot: processesMissing(hello) },
  };
}

/**
 * One machine of the native backend: a sandbox on top of the spawner (life, limits, leases) and of the machine's init (commands, files).
 *
 * A broken connection to init only means that the next request connects again, or finds out that the machine has ended.
 */
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import { newId, type ExecId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { Semaphore } from "../../../core/semaphore.ts";
import { checkExecOptions, checkSpec } from "../../check-spec.ts";
import type {
  Exec,
  ExecOptions,
  ExecResult,
  ForkOptions,
  ForkResult,
  PauseOptions,
  Sandbox,
  SandboxEnd,
  SandboxFiles,
  SandboxMetrics,
  SandboxSpec,
  SnapshotOptions,
  SnapshotTaken,
  Workspace,
} from "../../sandbox.ts";
import type { LayerHold } from "../../snapshots/disk-store.ts";
import { checkSnapshotName, snapshotOf, type SnapshotRecord } from "../../snapshots/record.ts";
import { forkWithProcesses, pauseWithProcesses, processesOf, snapshotWithProcesses } from "./criu/machine-processes.ts";
import { NO_HOLD, type Ground } from "./ground.ts";
import { GuardedFiles } from "./guarded-files.ts";
import { freezeLayer, persist, type KeptMachine, type PersistedLayers } from "./keeping.ts";
import { childSpec, makeChildren } from "./machine-children.ts";
import { MachineLife, sum, type MachineContext } from "./machine-life.ts";
import { SealedWorkspace } from "./sealed-workspace.ts";

export class NativeMachine extends MachineLife implements Sandbox {
  readonly files: SandboxFiles;
  /** Snapshots, forks, pauses and the like follow each other. */
  readonly #turn = new Semaphore(1);

  constructor(context: MachineContext, id: SandboxId, spec: SandboxSpec, leaseMs: number, ground: Ground) {
    super(context, id, spec, leaseMs, ground);
    this.files = new GuardedFiles(this.client.files, context.capabilities, () => this.alive());
  }

  async run(options: ExecOptions): Promise<ExecResult> {
    this.#check(options);
    return this.causes.of(await this.client.run(options));
  }

  async exec(options: ExecOptions): Promise<Exec> {
    this.#check(options);
    return this.causes.explained(await this.client.exec(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<Exec> {
    this.alive();
    return this.causes.explained(await this.client.attach(id, offsets));
  }

  async connect(port: number): Promise<Duplex> {
    this.alive();
    return this.client.connectPort(port);
  }

  async killProcesses(): Promise<void> {
    this.alive();
    await this.client.killProcesses();
  }

  async freeze(): Promise<void> {
    this.alive();
    this.#need("freeze", this.context.capabilities.freeze);
    await this.steady();
    this.frozen = true;
    await this.spawner().freeze(this.id);
    await this.note();
  }

  async thaw(): Promise<void> {
    this.alive();
    this.#need("freeze", this.context.capabilities.freeze);
    await this.steady();
    await this.spawner().thaw(this.id);
    this.frozen = false;
    await this.note();
  }

  async snapshot(options: SnapshotOptions = {}): Promise<SnapshotTaken> {
    if (options.name !== undefined) checkSnapshotName(options.name);
    this.alive();
    this.#need("snapshot", this.context.capabilities.snapshot);
    this.#needMemory(options.memory);
    return this.#turn.use(async () => {
      this.alive();
      if (options.memory === true) return snapshotWithProcesses(this.#kept(), (layers, memory) => this.#record({ ...options, layers, memory }));
      const { method, stoppedMs, workspace, diskLayers } = await freezeLayer(this.#kept());
      const { spawner } = this.#kept();
      try {
        const persisted = await persist({ spawner, store: this.context.store }, workspace, diskLayers);
        const record = this.#record({ ...options, layers: persisted.layers, memory: null });
        await this.#commit(record, persisted.hold);
        // What lies below the machine is on disk now; the next switch gives the memory back.
        if (this.end === null && this.ground.workspace === workspace) this.#setPersisted(persisted);
        else await persisted.hold.release();
        return { snapshot: snapshotOf(record), method, stoppedMs };
      } finally {
        await spawner.releaseWorkspace(workspace).catch(() => undefined);
      }
    });
  }

  async fork(count: number, options: ForkOptions = {}): Promise<readonly ForkResult[]> {
    if (!Number.isInteger(count) || count < 1 || count > LIMITS.forkChildren) throw new MwError("invalid_input", `A fork makes 1 to ${LIMITS.forkChildren} children, not ${count}`);
    this.alive();
    this.#need("fork", this.context.capabilities.fork);
    this.#needMemory(options.memory);
    const specs = Array.from({ length: count }, (_, index) => childSpec(this.specNow(), options.child?.(index) ?? {}));
    for (const spec of specs) checkSpec(spec, this.context.capabilities);
    return this.#turn.use(async () => {
      this.alive();
      if (options.memory === true) return forkWithProcesses(this.#kept(), ({ workspace, memoryLayers, diskLayers }, processes) => makeChildren(this.context, specs, { workspace, memoryLayers, diskLayers, processes }));
      const { workspace, memoryLayers, diskLayers } = await freezeLayer(this.#kept());
      const { spawner } = this.#kept();
      try {
        return await makeChildren(this.context, specs, { workspace, memoryLayers, diskLayers });
      } finally {
        await spawner.releaseWorkspace(workspace).catch(() => undefined);
      }
    });
  }

  async pause(options: PauseOptions = {}): Promise<void> {
    this.over();
    this.#need("pause", this.context.capabilities.pause);
    this.#needMemory(options.memory);
    await this.#turn.use(async () => {
      this.over();
      if (this.paused !== null) return;
      this.client.hold();
      try {
        await this.#stopAndKeep(options.memory === true);
      } finally {
        this.client.reopen();
      }
    });
  }

  async resume(options: { readonly ttlMs?: number } = {}): Promise<void> {
    this.over();
    await this.#turn.use(async () => {
      this.over();
      if (this.paused === null) return;
      const { store } = this.context;
      const used = await store.use(this.paused.id);
      if (used === null) throw new MwError("not_found", `What was kept of the paused sandbox ${this.id} has been removed`);
      const { record, hold } = used;
      if (options.ttlMs !== undefined) this.lease.ms = options.ttlMs;
      try {
        const processes = await processesOf(record, store);
        await this.launch({ workspace: null, memoryLayers: 0, diskLayers: record.layers, hold, machineId: record.machineId, ownIdentity: false, ...(processes === null ? {} : { processes }) });
        if (this.incarnation === null) throw new MwError("sandbox_failed", `The sandbox ${this.id} ended as it was resumed, and is paused as before`, { fix: "resume it again" });
      } catch (error) {
        this.client.drop();
        await hold.release();
        throw error;
      }
      this.paused = null;
      try {
        await this.client.rejoin();
      } finally {
        await store.remove(record.id);
      }
    });
  }

  async metrics(): Promise<SandboxMetrics> {
    this.alive();
    await this.steady();
    const { limits, cpuMs, ...now } = await this.spawner().metrics(this.id);
    return { ...now, cpuMs: cpuMs === null ? null : cpuMs + this.carried.cpuMs, limits: sum(limits, this.carried.limits) };
  }

  async renew(ttlMs: number): Promise<void> {
    this.alive();
    const first = !this.lease.ownerRenews;
    this.lease.ownerRenews = true;
    this.lease.begin(ttlMs);
    const gone = await this.spawner().renew([this.id], ttlMs);
    if (first) await this.note().catch(() => undefined);
    if (gone.length > 0 && !this.changing) throw this.gone();
  }

  async seal(): Promise<Workspace> {
    if (this.end?.kept !== true) this.alive();
    return this.#turn.use(async () => {
      const spawner = this.incarnation?.spawner;
      if (spawner === undefined) throw this.gone();
      if (this.sealed) {
        // One that died, and whose files waited for that.
        await spawner.seal(this.id).catch(() => undefined);
        const workspace = await SealedWorkspace.takeUp(spawner, this.id, this.context.runtime);
        this.#handedOut();
        return workspace;
      }
      const { memoryLayers, diskLayers, hold } = this.ground;
      // Its end lets go of the layers, which are read after it.
      this.ground = { ...this.ground, hold: NO_HOLD };
      try {
        const { bytes } = await spawner.seal(this.id);
        await this.ended;
        if (memoryLayers === 0 && diskLayers.length === 0) return new SealedWorkspace(spawner, this.id, bytes);
        // Whoever looks at the workspace is to see all that was done since the image, however often the machine was kept meanwhile.
        const whole = newId("sbx", this.context.runtime);
        try {
          return new SealedWorkspace(spawner, whole, (await spawner.flatten(this.id, whole, diskLayers.length)).bytes);
        } finally {
          await spawner.releaseWorkspace(this.id).catch(() => undefined);
        }
      } finally {
        if (this.end === null) this.ground = { ...this.ground, hold };
        else await hold.release();
      }
    });
  }

  async kill(): Promise<void> {
    await this.steady();
    if (this.paused !== null) await this.#turn.use(() => this.#endPaused());
    if (this.end === null) await this.incarnation?.spawner.kill(this.id);
    else if (this.sealed) {
      this.#handedOut();
      await this.incarnation?.spawner.releaseWorkspace(this.id).catch(() => undefined);
    }
    // What waits for a seal is gone with its keeper.
    else if (this.end.kept) {
      await this.incarnation?.spawner.kill(this.id).catch(() => undefined);
      await this.ground.hold.release();
    }
    await this.ended;
  }

  #handedOut(): void {
    this.sealed = false;
    this.context.forget(this.id);
  }

  /** Unless it was resumed meanwhile. What was kept goes first: nobody would know of it afterwards. */
  async #endPaused(): Promise<void> {
    if (this.paused === null) return;
    await this.context.store.remove(this.paused.id).catch(() => undefined);
    this.finish({ reason: "killed", limits: this.carried.limits, kept: false });
  }

  // ---- keeping ----

  #kept(): KeptMachine {
    const { store, runtime } = this.context;
    return { id: this.id, spec: this.spec, spawner: this.spawner(), client: this.client, store, runtime, ground: this.ground, frozen: this.frozen, persisted: this.persisted, relaunch: (ground) => this.relaunch(ground), announce: (next) => this.note(next), leaving: () => this.leave() };
  }

  /** What there is no record of holds nothing. */
  async #commit(record: SnapshotRecord, hold: LayerHold): Promise<void> {
    try {
      await this.context.store.commit(record);
    } catch (error) {
      await hold.release();
      throw error;
    }
  }

  #setPersisted(persisted: PersistedLayers): void {
    void this.persisted?.hold.release();
    this.persisted = persisted;
  }

  /** Everything stands still until it is on disk; only then it ends. What fails before lets it go on. */
  async #stopAndKeep(memory: boolean): Promise<void> {
    const spawner = this.spawner();
    const { store, capabilities } = this.context;
    let record: SnapshotRecord;
    if (memory) {
      record = await pauseWithProcesses(this.#kept(), (layers, kept) => this.#record({ layers, memory: kept, pausedSandbox: this.id }));
    } else {
      try {
        if (capabilities.freeze) await spawner.freeze(this.id);
        else await this.client.killNow();
        const persisted = await persist({ spawner, store }, this.id, this.ground.diskLayers);
        record = this.#record({ layers: persisted.layers, pausedSandbox: this.id });
        await this.#commit(record, persisted.hold);
        await persisted.hold.release();
      } catch (error) {
        if (capabilities.freeze && !this.frozen) await spawner.thaw(this.id).catch(() => undefined);
        throw error;
      }
    }
    // Its machine ended before all was kept: by a lease, or with its spawner.
    if (this.end !== null) {
      await store.remove(record.id);
      throw this.gone();
    }
    // From here on it is paused, whatever becomes of its machine. The report of its end is waited for, so that nobody takes it for the next one's.
    const departed = new Promise<SandboxEnd>((resolve) => (this.departed = resolve));
    this.paused = record;
    this.changing = true;
    const counted = await spawner.metrics(this.id).catch(() => null);
    if (counted !== null) this.carry(counted);
    this.client.drop();
    // The death of the spawner is reported in the same way. One that refuses has none of it any more.
    const ends = await spawner.kill(this.id).then(() => true, () => false);
    if (ends) await departed;
    this.incarnation = null;
    this.changing = false;
    this.frozen = false;
    await this.ground.hold.release();
    await this.persisted?.hold.release();
    this.persisted = null;
    this.ground = { ...this.ground, workspace: null, memoryLayers: 0, diskLayers: [], hold: NO_HOLD };
  }

  #record(of: Omit<SnapshotOptions, "memory"> & { readonly layers: SnapshotRecord["layers"]; readonly memory?: SnapshotRecord["memory"]; readonly pausedSandbox?: SandboxId }): SnapshotRecord {
    const { store, runtime } = this.context;
    return {
      version: 1,
      id: store.newId(),
      name: of.name ?? null,
      createdAt: runtime.now(),
      sandbox: this.id,
      imageDigest: this.spec.root.digest,
      labels: of.labels ?? {},
      pausedSandbox: of.pausedSandbox ?? null,
      layers: of.layers,
      machineId: this.ground.machineId,
      memory: of.memory ?? null,
    };
  }

  #check(options: ExecOptions): void {
    checkExecOptions(options, this.context.capabilities);
    this.alive();
  }

  #needMemory(wanted: boolean | undefined): void {
    if (wanted !== true) return;
    this.#need("memorySnapshot", this.context.capabilities.memorySnapshot);
    if (this.spec.checkpointable !== true) throw new MwError("unsupported", `The memory of the sandbox ${this.id} cannot be kept: it was not made checkpointable`, { fix: "make it with `checkpointable`, or keep files only" });
  }

  #need(name: string, present: boolean): void {
    if (!present) throw new MwError("unsupported", `This host cannot ${name} a sandbox: ${this.context.capabilities.missing[name] ?? "the backend lacks it"}`);
  }
}

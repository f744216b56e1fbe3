/**
 * One machine of the native backend: a sandbox on top of the spawner (life, limits, leases) and of the machine's init (commands, files).
 *
 * The spawner's word decides when a machine has ended; a broken connection to init only means that the next request connects again, or finds out.
 */
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { MwError, toMwError } from "../../../core/errors.ts";
import { newId, type ExecId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { Semaphore } from "../../../core/semaphore.ts";
import { checkExecOptions, checkSpec } from "../../check-spec.ts";
import type { EgressProxy } from "../../egress/egress-proxy.ts";
import { execEnvironment } from "../../exec-environment.ts";
import type {
  Capabilities,
  Exec,
  ExecOptions,
  ExecResult,
  ForkChild,
  ForkOptions,
  ForkResult,
  Isolation,
  OwnParts,
  PauseOptions,
  Sandbox,
  SandboxEgress,
  SandboxEnd,
  SandboxFiles,
  SandboxMetrics,
  SandboxSpec,
  SnapshotOptions,
  SnapshotTaken,
  Workspace,
} from "../../sandbox.ts";
import type { DiskSnapshotStore, LayerHold } from "../../snapshots/disk-store.ts";
import { checkSnapshotName, snapshotOf, type SnapshotRecord } from "../../snapshots/record.ts";
import { type LimitCounts, LimitCauses, NO_LIMITS } from "../limit-causes.ts";
import { InitConnection } from "./init-connection.ts";
import { createRequest, creationError, NO_HOLD, type Ground } from "./ground.ts";
import { forkWithProcesses, pauseWithProcesses, processesOf, snapshotWithProcesses } from "./criu/machine-processes.ts";
import { type MachineNote, writeNote } from "./machine-note.ts";
import { type FrozenLayer, freezeLayer, persist, type KeptMachine, type PersistedLayers } from "./keeping.ts";
import { MachineClient } from "./machine-client.ts";
import { GuardedFiles } from "./guarded-files.ts";
import { SealedWorkspace } from "./sealed-workspace.ts";
import type { Spawner } from "./spawner.ts";
import type { KeptProcesses } from "./spawner-protocol.ts";

export interface MachineContext {
  /** The spawner that lives now. */
  readonly spawner: () => Promise<Spawner>;
  readonly runtime: Runtime;
  readonly capabilities: Capabilities;
  readonly store: DiskSnapshotStore;
  /** The connection that was made to a blank beforehand; null when there is none. */
  readonly takeConnection: (blank: string) => InitConnection | null;
  /** Makes children: machines of this backend that stand on another one's layers. */
  readonly makeChild: (spec: SandboxSpec, ground: Ground) => Promise<Sandbox>;
  /** The proxy of machines with the network `allowlist`. */
  readonly egress: () => Promise<EgressProxy>;
  /** How long machines outlive this controller, milliseconds; 0: they do not. */
  readonly keepMs: number;
  /** The machine is no longer to be found. */
  readonly forget: (id: SandboxId) => void;
}


/** `null` between its creation and the first launch, and while it is paused. */
type Incarnation = { readonly spawner: Spawner } | null;

export class NativeMachine implements Sandbox {
  readonly id: SandboxId;
  spec: SandboxSpec;
  readonly isolation: Isolation;
  readonly files: SandboxFiles;
  readonly ended: Promise<SandboxEnd>;
  createdAt: number;
  /** Made beforehand, and nobody's yet. */
  spare = false;
  readonly #defaults: { env: Readonly<Record<string, string>>; readonly user: string; readonly workdir: string };
  readonly #context: MachineContext;
  readonly #client: MachineClient;
  #egress: { readonly proxy: EgressProxy; readonly machine: SandboxEgress } | null = null;
  #incarnation: Incarnation = null;
  #end: SandboxEnd | null = null;
  #resolveEnded: (end: SandboxEnd) => void = () => undefined;
  /** Of this incarnation. */
  readonly #causes = new LimitCauses(async () => (await this.#spawner().metrics(this.id)).limits);
  /** Of the incarnations before this one. */
  #carried: { readonly limits: LimitCounts; readonly cpuMs: number } = { limits: NO_LIMITS, cpuMs: 0 };
  #leaseMs: number;
  #ownerRenews = false;
  #expiresAt = 0;
  #ground: Ground;
  #persisted: PersistedLayers | null = null;
  /** Set while it is paused. */
  #pause: SnapshotRecord | null = null;
  /** Its machine ends because we are putting another one in its place, or none. */
  #changing = false;
  #departed: (end: SandboxEnd) => void = () => undefined;
  #frozen = false;
  /** Its maker has it: a controller after this one would take it over. */
  #lasting = false;
  /** Snapshots, forks, pauses and the like follow each other. */
  readonly #turn = new Semaphore(1);

  constructor(context: MachineContext, id: SandboxId, spec: SandboxSpec, leaseMs: number, ground: Ground) {
    this.#context = context;
    this.id = id;
    this.spec = spec;
    this.isolation = isolationOf(context.capabilities, spec);
    this.createdAt = context.runtime.now();
    this.#leaseMs = leaseMs;
    this.#ground = ground;
    this.#defaults = { env: execEnvironment(spec), user: spec.user ?? spec.root.user, workdir: workdirOf(spec) };
    this.#client = new MachineClient(async () => InitConnection.connect(this.#spawner().initSocket(id)), this.#defaults, context.runtime, () => this.#alive());
    this.files = new GuardedFiles(this.#client.files, context.capabilities, () => this.#alive());
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  // ---- called by the backend ----

  /** Makes the machine. What fails leaves nothing of it. */
  async launch(ground: Ground = this.#ground, ttlMs: number = this.#leaseMs): Promise<void> {
    const { store, runtime, takeConnection, keepMs } = this.#context;
    const spawner = await this.#context.spawner();
    if (this.spec.network === "allowlist") await this.#openEgress();
    // Known before it is made: its end may be reported right behind the answer.
    this.#incarnation = { spawner };
    this.#changing = false;
    try {
      const { blank } = await spawner.create(createRequest(this.id, this.spec, ground, { store, profile: this.isolation.profile === "userns" ? "userns" : "namespaces", ttlMs: ttlMs + keepMs, egress: this.#egress?.proxy.socketPath ?? null }));
      // Processes go on once.
      const { processes: _gone, ...lasting } = ground;
      this.#ground = lasting;
      this.#expiresAt = runtime.now() + ttlMs;
      const connection = takeConnection(blank);
      if (connection !== null) this.#client.adopt(connection);
      await this.#note();
    } catch (error) {
      this.#incarnation = null;
      throw creationError(error, this.spec);
    }
  }

  /** Known to the proxy, with its list, before it can ask; and as long as it lives, pauses included. */
  async #openEgress(): Promise<void> {
    if (this.#egress !== null) return;
    const proxy = await this.#context.egress();
    if (this.#end === null) this.#egress = { proxy, machine: proxy.admit(this.id, this.spec.allow ?? [], () => void this.#note().catch(() => undefined)) };
  }

  /** Its first launch has failed. */
  neverMade(): void {
    this.#egress?.proxy.forget(this.id);
    this.#egress = null;
  }

  /** One that was made beforehand is somebody's now; false when it has ended meanwhile. */
  async take(own: OwnParts): Promise<boolean> {
    if (this.#end !== null || this.#incarnation === null) return false;
    this.spec = { ...this.spec, ...own };
    this.createdAt = this.#context.runtime.now();
    this.spare = false;
    this.#defaults.env = execEnvironment(this.spec);
    return this.last().then(() => true, () => false);
  }

  /** It is somebody's from now on. Where machines outlive their controller, this one does. */
  async last(): Promise<void> {
    this.#lasting = this.#context.keepMs > 0;
    await this.#note();
  }

  /** It was another controller's, and runs; `hold` is on what it stands on. What that controller left standing still goes on, unless its owner wanted it so. */
  async takeOver(spawner: Spawner, note: MachineNote, found: { readonly leftMs: number | null; readonly frozen: boolean; readonly hold: LayerHold }): Promise<void> {
    this.#recall(note, { ...note.ground, hold: found.hold });
    this.#incarnation = { spawner };
    this.#expiresAt = this.#context.runtime.now() + (found.leftMs ?? this.#leaseMs);
    if (this.spec.network === "allowlist") await this.#openEgress();
    this.#frozen = note.frozen && found.frozen;
    if (found.frozen && !this.#frozen) await spawner.thaw(this.id);
    await this.#note();
    // Of one that stands still they stand still with it.
    if (!this.#frozen) void this.#client.endHelpers();
  }

  /** It was another controller's, and was being made again on that ground. */
  async makeAgain(note: MachineNote, ground: Ground): Promise<void> {
    this.#recall(note, ground);
    await this.launch();
  }

  #recall({ createdAt, leaseMs, ownerRenews, carried }: MachineNote, ground: Ground): void {
    this.createdAt = createdAt;
    this.#leaseMs = leaseMs;
    this.#ownerRenews = ownerRenews;
    this.#carried = carried;
    this.#ground = ground;
    this.#lasting = true;
  }

  async #note(next: Ground | null = null): Promise<void> {
    if (!this.#lasting || this.#incarnation === null) return;
    const { id, createdAt } = this;
    const allow = this.egress?.report().allow;
    const spec = allow === undefined ? this.spec : { ...this.spec, allow };
    await this.#incarnation.spawner.note(id, writeNote({ id, spec, createdAt, leaseMs: this.#leaseMs, ownerRenews: this.#ownerRenews, frozen: this.#frozen, ground: this.#ground, next, carried: this.#carried }));
  }

  /** It begins as a paused one. */
  adoptPause(record: SnapshotRecord): void {
    this.#pause = record;
    this.#lasting = this.#context.keepMs > 0;
  }

  /** False for a machine that has none of this spawner's. */
  belongsTo(spawner: Spawner): boolean {
    return this.#incarnation?.spawner === spawner;
  }

  /** The lease that the backend renews for this machine; null when its owner does, or nobody needs to. */
  get leaseMs(): number | null {
    return this.#ownerRenews || this.#incarnation === null ? null : this.#leaseMs;
  }

  renewed(): void {
    this.#expiresAt = this.#context.runtime.now() + this.#leaseMs;
  }

  /** The spawner's report, or its death. Only the first end counts. */
  machineEnded(end: SandboxEnd): void {
    if (this.#changing) {
      this.#departed(end);
      return;
    }
    // While it is resumed: what was kept is there, and can be resumed again.
    if (this.#pause !== null) {
      this.#incarnation = null;
      return;
    }
    this.#finish({ ...end, limits: sum(this.#carried.limits, end.limits) });
  }

  #finish(end: SandboxEnd): void {
    if (this.#end !== null) return;
    this.#end = end;
    this.#client.reopen();
    this.#client.close();
    this.#egress?.proxy.forget(this.id);
    this.#context.forget(this.id);
    // What waits for a seal still stands on them.
    if (!end.kept) void this.#ground.hold.release();
    void this.#persisted?.hold.release();
    this.#resolveEnded(end);
  }

  // ---- the sandbox ----

  get state(): "running" | "paused" {
    return this.#pause === null ? "running" : "paused";
  }

  async run(options: ExecOptions): Promise<ExecResult> {
    this.#check(options);
    return this.#causes.of(await this.#client.run(options));
  }

  async exec(options: ExecOptions): Promise<Exec> {
    this.#check(options);
    return this.#causes.explained(await this.#client.exec(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<Exec> {
    this.#alive();
    return this.#causes.explained(await this.#client.attach(id, offsets));
  }

  get egress(): SandboxEgress | undefined {
    return this.#egress?.machine;
  }

  async connect(port: number): Promise<Duplex> {
    this.#alive();
    return this.#client.connectPort(port);
  }

  async killProcesses(): Promise<void> {
    this.#alive();
    await this.#client.killProcesses();
  }

  async freeze(): Promise<void> {
    this.#alive();
    this.#need("freeze", this.#context.capabilities.freeze);
    await this.#steady();
    this.#frozen = true;
    await this.#spawner().freeze(this.id);
    await this.#note();
  }

  async thaw(): Promise<void> {
    this.#alive();
    this.#need("freeze", this.#context.capabilities.freeze);
    await this.#steady();
    await this.#spawner().thaw(this.id);
    this.#frozen = false;
    await this.#note();
  }

  async snapshot(options: SnapshotOptions = {}): Promise<SnapshotTaken> {
    if (options.name !== undefined) checkSnapshotName(options.name);
    this.#alive();
    this.#need("snapshot", this.#context.capabilities.snapshot);
    this.#needMemory(options.memory);
    return this.#turn.use(async () => {
      this.#alive();
      if (options.memory === true) return snapshotWithProcesses(this.#kept(), (layers, memory) => this.#record({ ...options, layers, memory }));
      const { method, stoppedMs, workspace, diskLayers } = await freezeLayer(this.#kept());
      const { spawner } = this.#kept();
      try {
        const persisted = await persist({ spawner, store: this.#context.store }, workspace, diskLayers);
        const record = this.#record({ ...options, layers: persisted.layers, memory: null });
        await this.#commit(record, persisted.hold);
        // What lies below the machine is on disk now; the next switch gives the memory back.
        if (this.#end === null && this.#ground.workspace === workspace) this.#setPersisted(persisted);
        else await persisted.hold.release();
        return { snapshot: snapshotOf(record), method, stoppedMs };
      } finally {
        await spawner.releaseWorkspace(workspace).catch(() => undefined);
      }
    });
  }

  async fork(count: number, options: ForkOptions = {}): Promise<readonly ForkResult[]> {
    if (!Number.isInteger(count) || count < 1 || count > LIMITS.forkChildren) throw new MwError("invalid_input", `A fork makes 1 to ${LIMITS.forkChildren} children, not ${count}`);
    this.#alive();
    this.#need("fork", this.#context.capabilities.fork);
    this.#needMemory(options.memory);
    const specs = Array.from({ length: count }, (_, index) => this.#childSpec(options.child?.(index) ?? {}));
    for (const spec of specs) checkSpec(spec, this.#context.capabilities);
    return this.#turn.use(async () => {
      this.#alive();
      if (options.memory === true) return forkWithProcesses(this.#kept(), (layer, processes) => this.#children(specs, layer, processes));
      const layer = await freezeLayer(this.#kept());
      const { spawner } = this.#kept();
      try {
        return await this.#children(specs, layer);
      } finally {
        await spawner.releaseWorkspace(layer.workspace).catch(() => undefined);
      }
    });
  }

  async pause(options: PauseOptions = {}): Promise<void> {
    this.#over();
    this.#need("pause", this.#context.capabilities.pause);
    this.#needMemory(options.memory);
    await this.#turn.use(async () => {
      this.#over();
      if (this.#pause !== null) return;
      this.#client.hold();
      try {
        await this.#stopAndKeep(options.memory === true);
      } finally {
        this.#client.reopen();
      }
    });
  }

  async resume(options: { readonly ttlMs?: number } = {}): Promise<void> {
    this.#over();
    await this.#turn.use(async () => {
      this.#over();
      if (this.#pause === null) return;
      const { store } = this.#context;
      const used = await store.use(this.#pause.id);
      if (used === null) throw new MwError("not_found", `What was kept of the paused sandbox ${this.id} has been removed`);
      const { record, hold } = used;
      if (options.ttlMs !== undefined) this.#leaseMs = options.ttlMs;
      try {
        const processes = await processesOf(record, store);
        await this.launch({ workspace: null, memoryLayers: 0, diskLayers: record.layers, hold, machineId: record.machineId, ownIdentity: false, ...(processes === null ? {} : { processes }) });
        if (this.#incarnation === null) throw new MwError("sandbox_failed", `The sandbox ${this.id} ended as it was resumed, and is paused as before`, { fix: "resume it again" });
      } catch (error) {
        this.#client.drop();
        await hold.release();
        throw error;
      }
      this.#pause = null;
      try {
        await this.#client.rejoin();
      } finally {
        await store.remove(record.id);
      }
    });
  }

  async metrics(): Promise<SandboxMetrics> {
    this.#alive();
    await this.#steady();
    const { limits, cpuMs, ...now } = await this.#spawner().metrics(this.id);
    return { ...now, cpuMs: cpuMs === null ? null : cpuMs + this.#carried.cpuMs, limits: sum(limits, this.#carried.limits) };
  }

  async renew(ttlMs: number): Promise<void> {
    this.#alive();
    const first = !this.#ownerRenews;
    this.#ownerRenews = true;
    this.#expiresAt = this.#context.runtime.now() + ttlMs;
    const gone = await this.#spawner().renew([this.id], ttlMs);
    if (first) await this.#note().catch(() => undefined);
    if (gone.length > 0 && !this.#changing) throw this.#gone();
  }

  async seal(): Promise<Workspace> {
    if (this.#end?.kept !== true) this.#alive();
    return this.#turn.use(async () => {
      const spawner = this.#incarnation?.spawner;
      if (spawner === undefined) throw this.#gone();
      const { memoryLayers, diskLayers, hold } = this.#ground;
      // Its end lets go of the layers, which are read after it.
      this.#ground = { ...this.#ground, hold: NO_HOLD };
      try {
        const { bytes } = await spawner.seal(this.id);
        await this.ended;
        if (memoryLayers === 0 && diskLayers.length === 0) return new SealedWorkspace(spawner, this.id, bytes);
        // Whoever looks at the workspace is to see all that was done since the image, however often the machine was kept meanwhile.
        const whole = newId("sbx", this.#context.runtime);
        try {
          return new SealedWorkspace(spawner, whole, (await spawner.flatten(this.id, whole, diskLayers.length)).bytes);
        } finally {
          await spawner.releaseWorkspace(this.id).catch(() => undefined);
        }
      } finally {
        if (this.#end === null) this.#ground = { ...this.#ground, hold };
        else await hold.release();
      }
    });
  }

  async kill(): Promise<void> {
    await this.#steady();
    if (this.#pause !== null) await this.#turn.use(() => this.#endPaused());
    if (this.#end === null) await this.#incarnation?.spawner.kill(this.id);
    // What waits for a seal is gone with its keeper.
    else if (this.#end.kept) {
      await this.#incarnation?.spawner.kill(this.id).catch(() => undefined);
      await this.#ground.hold.release();
    }
    await this.ended;
  }

  /** Unless it was resumed meanwhile. What was kept goes first: nobody would know of it afterwards. */
  async #endPaused(): Promise<void> {
    if (this.#pause === null) return;
    await this.#context.store.remove(this.#pause.id).catch(() => undefined);
    this.#finish({ reason: "killed", limits: this.#carried.limits, kept: false });
  }

  /** Its backend closes. */
  abandon(): void {
    if (this.#pause !== null) this.#finish({ reason: "killed", limits: this.#carried.limits, kept: false });
  }

  // ---- keeping ----

  #kept(): KeptMachine {
    const { store, runtime } = this.#context;
    return { id: this.id, spec: this.spec, spawner: this.#spawner(), client: this.#client, store, runtime, ground: this.#ground, frozen: this.#frozen, persisted: this.#persisted, relaunch: (ground) => this.#relaunch(ground), announce: (next) => this.#note(next), leaving: () => this.#leave() };
  }

  /** What is known of the incarnation that is about to end goes on being counted. */
  async #leave(): Promise<{ gone(): void; stays(): void }> {
    const counted = await this.#spawner().metrics(this.id);
    // With its spawner, whose death is reported before the request that waits on it fails.
    let died: SandboxEnd | null = null;
    this.#departed = (end) => (died = end);
    this.#changing = true;
    const stays = (): void => {
      this.#changing = false;
      if (died !== null) this.machineEnded(died);
    };
    return { gone: () => this.#carry(counted), stays };
  }

  #carry({ limits, cpuMs }: Pick<SandboxMetrics, "limits" | "cpuMs">): void {
    this.#carried = { limits: sum(this.#carried.limits, limits), cpuMs: this.#carried.cpuMs + (cpuMs ?? 0) };
    this.#causes.reset();
  }

  /** What there is no record of holds nothing. */
  async #commit(record: SnapshotRecord, hold: LayerHold): Promise<void> {
    try {
      await this.#context.store.commit(record);
    } catch (error) {
      await hold.release();
      throw error;
    }
  }

  async #relaunch(ground: Ground): Promise<void> {
    const left = this.#ownerRenews ? Math.max(1, this.#expiresAt - this.#context.runtime.now()) : this.#leaseMs;
    try {
      await this.launch(ground, left);
      // From here on the machine itself says what it stands on.
      if (this.#lasting && ground.workspace !== null) await this.#spawner().note(ground.workspace, new Uint8Array());
      this.#persisted = null;
    } catch (error) {
      this.#finish({ reason: "lost", limits: this.#carried.limits, kept: false });
      throw error;
    }
  }

  #setPersisted(persisted: PersistedLayers): void {
    void this.#persisted?.hold.release();
    this.#persisted = persisted;
  }

  /** Everything stands still until it is on disk; only then it ends. What fails before lets it go on. */
  async #stopAndKeep(memory: boolean): Promise<void> {
    const spawner = this.#spawner();
    const { store, capabilities } = this.#context;
    let record: SnapshotRecord;
    if (memory) {
      record = await pauseWithProcesses(this.#kept(), (layers, kept) => this.#record({ layers, memory: kept, pausedSandbox: this.id }));
    } else {
      try {
        if (capabilities.freeze) await spawner.freeze(this.id);
        else await this.#client.killNow();
        const persisted = await persist({ spawner, store }, this.id, this.#ground.diskLayers);
        record = this.#record({ layers: persisted.layers, pausedSandbox: this.id });
        await this.#commit(record, persisted.hold);
        await persisted.hold.release();
      } catch (error) {
        if (capabilities.freeze && !this.#frozen) await spawner.thaw(this.id).catch(() => undefined);
        throw error;
      }
    }
    // Its machine ended before all was kept: by a lease, or with its spawner.
    if (this.#end !== null) {
      await store.remove(record.id);
      throw this.#gone();
    }
    // From here on it is paused, whatever becomes of its machine. The report of its end is waited for, so that nobody takes it for the next one's.
    const departed = new Promise<SandboxEnd>((resolve) => (this.#departed = resolve));
    this.#pause = record;
    this.#changing = true;
    const counted = await spawner.metrics(this.id).catch(() => null);
    if (counted !== null) this.#carry(counted);
    this.#client.drop();
    // The death of the spawner is reported in the same way. One that refuses has none of it any more.
    const ends = await spawner.kill(this.id).then(() => true, () => false);
    if (ends) await departed;
    this.#incarnation = null;
    this.#changing = false;
    this.#frozen = false;
    await this.#ground.hold.release();
    await this.#persisted?.hold.release();
    this.#persisted = null;
    this.#ground = { ...this.#ground, workspace: null, memoryLayers: 0, diskLayers: [], hold: NO_HOLD };
  }

  #record(of: Omit<SnapshotOptions, "memory"> & { readonly layers: SnapshotRecord["layers"]; readonly memory?: SnapshotRecord["memory"]; readonly pausedSandbox?: SandboxId }): SnapshotRecord {
    const { store, runtime } = this.#context;
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
      machineId: this.#ground.machineId,
      memory: of.memory ?? null,
    };
  }

  #childSpec(child: ForkChild): SandboxSpec {
    const { snapshot: _snapshot, workspace: _workspace, key: _key, hostname: _hostname, ...spec } = this.spec;
    // The list as it is now, which may be another than it was made with.
    const allow = this.egress?.report().allow;
    return { ...spec, ...(allow === undefined ? {} : { allow }), ...child, env: { ...spec.env, ...child.env } };
  }

  async #children(specs: readonly SandboxSpec[], { workspace, memoryLayers, diskLayers }: Pick<FrozenLayer, "workspace" | "memoryLayers" | "diskLayers">, processes?: KeptProcesses): Promise<readonly ForkResult[]> {
    return Promise.all(specs.map(async (spec) => this.#child(spec, { workspace, memoryLayers, diskLayers, ...(processes === undefined ? {} : { processes }) })));
  }

  async #child(spec: SandboxSpec, on: Pick<Ground, "workspace" | "memoryLayers" | "diskLayers" | "processes">): Promise<ForkResult> {
    let hold = NO_HOLD;
    try {
      hold = await this.#context.store.hold(on.diskLayers.map((layer) => layer.id));
      return { ok: true, sandbox: await this.#context.makeChild(spec, { ...on, hold, machineId: newMachineId(this.#context.runtime), ownIdentity: true }) };
    } catch (error) {
      await hold.release();
      return { ok: false, error: toMwError(error) };
    }
  }

  #check(options: ExecOptions): void {
    checkExecOptions(options, this.#context.capabilities);
    this.#alive();
  }

  #spawner(): Spawner {
    if (this.#incarnation === null) throw this.#gone();
    return this.#incarnation.spawner;
  }

  /** While it changes over it has no machine for a moment; who asks for something then means the next one. */
  async #steady(): Promise<void> {
    while (this.#changing && this.#end === null) await this.#context.runtime.sleep(1);
  }

  #over(): void {
    if (this.#end !== null) throw this.#gone();
  }

  #alive(): void {
    this.#over();
    if (this.#pause !== null) throw new MwError("sandbox_paused", `The sandbox ${this.id} is paused`, { fix: "resume it first", facts: { sandbox: this.id } });
  }

  #needMemory(wanted: boolean | undefined): void {
    if (wanted !== true) return;
    this.#need("memorySnapshot", this.#context.capabilities.memorySnapshot);
    if (this.spec.checkpointable !== true) throw new MwError("unsupported", `The memory of the sandbox ${this.id} cannot be kept: it was not made checkpointable`, { fix: "make it with `checkpointable`, or keep files only" });
  }

  #gone(): MwError {
    const reason = this.#end?.reason ?? "gone";
    return new MwError("sandbox_gone", `The sandbox ${this.id} is over: ${reason}`, { facts: { sandbox: this.id, reason } });
  }

  #need(name: string, present: boolean): void {
    if (!present) throw new MwError("unsupported", `This host cannot ${name} a sandbox: ${this.#context.capabilities.missing[name] ?? "the backend lacks it"}`);
  }
}

/** 32 hexadecimal digits, as in machine-id(5). */
export function newMachineId(runtime: Runtime): string {
  return Buffer.from(runtime.randomBytes(16)).toString("hex");
}

function isolationOf(capabilities: Capabilities, spec: SandboxSpec): Isolation {
  return spec.checkpointable === true ? { ...capabilities.isolation, profile: "namespaces" } : capabilities.isolation;
}

function sum(one: LimitCounts, two: LimitCounts): LimitCounts {
  return { oom_killed: one.oom_killed + two.oom_killed, pids: one.pids + two.pids, disk_full: one.disk_full + two.disk_full };
}

/** The default directory of commands: absolute, below `/`. */
export function workdirOf(spec: SandboxSpec): string {
  return join("/", spec.workdir ?? spec.root.workdir);
}

/**
 * The life of a machine of the native backend, which is longer than that of what runs: it is made, made again over its own files, paused and resumed, and taken over by another
 * controller. Here is what it stands on, whose it is, how long, and how it ended.
 *
 * The spawner's word decides when a machine has ended.
 */
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { EgressProxy } from "../../egress/egress-proxy.ts";
import { execEnvironment } from "../../exec-environment.ts";
import type { Capabilities, Isolation, OwnParts, Sandbox, SandboxEgress, SandboxEnd, SandboxMetrics, SandboxSpec } from "../../sandbox.ts";
import type { DiskSnapshotStore, LayerHold } from "../../snapshots/disk-store.ts";
import type { SnapshotRecord } from "../../snapshots/record.ts";
import { Lease } from "../lease.ts";
import { type LimitCounts, LimitCauses, NO_LIMITS } from "../limit-causes.ts";
import { createRequest, creationError, NO_HOLD, type Ground } from "./ground.ts";
import { InitConnection } from "./init-connection.ts";
import type { PersistedLayers } from "./keeping.ts";
import { MachineClient } from "./machine-client.ts";
import { type MachineNote, writeNote } from "./machine-note.ts";
import type { Spawner } from "./spawner.ts";

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

export abstract class MachineLife {
  readonly id: SandboxId;
  spec: SandboxSpec;
  readonly isolation: Isolation;
  readonly ended: Promise<SandboxEnd>;
  createdAt: number;
  /** Made beforehand, and nobody's yet. */
  spare = false;
  protected readonly context: MachineContext;
  protected readonly client: MachineClient;
  /** Of this incarnation. */
  protected readonly causes = new LimitCauses(async () => (await this.spawner().metrics(this.id)).limits);
  /** Of the incarnations before this one. */
  protected carried: { readonly limits: LimitCounts; readonly cpuMs: number } = { limits: NO_LIMITS, cpuMs: 0 };
  protected readonly lease: Lease;
  protected incarnation: Incarnation = null;
  protected ground: Ground;
  protected persisted: PersistedLayers | null = null;
  /** Set while it is paused. */
  protected paused: SnapshotRecord | null = null;
  protected frozen = false;
  protected end: SandboxEnd | null = null;
  /** By the controller before, and nobody has its files yet. */
  protected sealed = false;
  /** Its machine ends because we are putting another one in its place, or none. */
  protected changing = false;
  /** Told of that end. */
  protected departed: (end: SandboxEnd) => void = () => undefined;
  readonly #defaults: { env: Readonly<Record<string, string>>; readonly user: string; readonly workdir: string };
  #egress: { readonly proxy: EgressProxy; readonly machine: SandboxEgress } | null = null;
  #resolveEnded: (end: SandboxEnd) => void = () => undefined;
  /** Its maker has it: a controller after this one would take it over. */
  #lasting = false;

  constructor(context: MachineContext, id: SandboxId, spec: SandboxSpec, leaseMs: number, ground: Ground) {
    this.context = context;
    this.id = id;
    this.spec = spec;
    this.isolation = isolationOf(context.capabilities, spec);
    this.createdAt = context.runtime.now();
    this.lease = new Lease(context.runtime, leaseMs);
    this.ground = ground;
    this.#defaults = { env: execEnvironment(spec), user: spec.user ?? spec.root.user, workdir: workdirOf(spec) };
    this.client = new MachineClient(async () => InitConnection.connect(this.spawner().initSocket(id)), this.#defaults, context.runtime, () => this.alive());
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  get egress(): SandboxEgress | undefined {
    return this.#egress?.machine;
  }

  get state(): "running" | "paused" {
    return this.paused === null ? "running" : "paused";
  }

  // ---- its beginnings ----

  /** Makes the machine. What fails leaves nothing of it. */
  async launch(ground: Ground = this.ground, ttlMs: number = this.lease.ms): Promise<void> {
    const { store, takeConnection, keepMs } = this.context;
    const spawner = await this.context.spawner();
    if (this.spec.network === "allowlist") await this.#openEgress();
    // Known before it is made: its end may be reported right behind the answer.
    this.incarnation = { spawner };
    this.changing = false;
    try {
      const { blank } = await spawner.create(createRequest(this.id, this.spec, ground, { store, profile: this.isolation.profile === "userns" ? "userns" : "namespaces", ttlMs: ttlMs + keepMs, egress: this.#egress?.proxy.socketPath ?? null }));
      // Processes go on once.
      const { processes: _gone, ...lasting } = ground;
      this.ground = lasting;
      this.lease.begin(ttlMs);
      const connection = takeConnection(blank);
      if (connection !== null) this.client.adopt(connection);
      await this.note();
    } catch (error) {
      this.incarnation = null;
      throw creationError(error, this.spec);
    }
  }

  /** Known to the proxy, with its list, before it can ask; and as long as it lives, pauses included. */
  async #openEgress(): Promise<void> {
    if (this.#egress !== null) return;
    const proxy = await this.context.egress();
    if (this.end === null) this.#egress = { proxy, machine: proxy.admit(this.id, this.spec.allow ?? [], () => void this.note().catch(() => undefined)) };
  }

  /** Its first launch has failed. */
  neverMade(): void {
    this.#egress?.proxy.forget(this.id);
    this.#egress = null;
  }

  /** One that was made beforehand is somebody's now; false when it has ended meanwhile. */
  async take(own: OwnParts): Promise<boolean> {
    if (this.end !== null || this.incarnation === null) return false;
    this.spec = { ...this.spec, ...own };
    this.createdAt = this.context.runtime.now();
    this.spare = false;
    this.#defaults.env = execEnvironment(this.spec);
    return this.last().then(() => true, () => false);
  }

  /** It is somebody's from now on. Where machines outlive their controller, this one does. */
  async last(): Promise<void> {
    this.#lasting = this.context.keepMs > 0;
    await this.note();
  }

  /** It begins as a paused one. */
  adoptPause(record: SnapshotRecord): void {
    this.paused = record;
    this.#lasting = this.context.keepMs > 0;
  }

  // ---- from one controller to the next ----

  /** It was another controller's, and runs; `hold` is on what it stands on. What that controller left standing still goes on, unless its owner wanted it so. */
  async takeOver(spawner: Spawner, note: MachineNote, found: { readonly leftMs: number | null; readonly frozen: boolean; readonly hold: LayerHold }): Promise<void> {
    this.#recall(note, { ...note.ground, hold: found.hold });
    this.incarnation = { spawner };
    this.lease.begin(found.leftMs ?? this.lease.ms);
    if (this.spec.network === "allowlist") await this.#openEgress();
    this.frozen = note.frozen && found.frozen;
    if (found.frozen && !this.frozen) await spawner.thaw(this.id);
    await this.note();
    // Of one that stands still they stand still with it.
    if (!this.frozen) void this.client.endHelpers();
  }

  /** It was another controller's, which sealed it: its files are kept by the spawner. */
  recallSealed(spawner: Spawner, note: MachineNote): void {
    this.#recall(note, { ...note.ground, hold: NO_HOLD });
    this.incarnation = { spawner };
    this.sealed = true;
    this.finish({ reason: "sealed", limits: note.carried.limits, kept: true });
  }

  /** It was another controller's, and was being made again on that ground. */
  async makeAgain(note: MachineNote, ground: Ground): Promise<void> {
    this.#recall(note, ground);
    await this.launch();
  }

  #recall({ createdAt, leaseMs, ownerRenews, carried }: MachineNote, ground: Ground): void {
    this.createdAt = createdAt;
    this.lease.ms = leaseMs;
    this.lease.ownerRenews = ownerRenews;
    this.carried = carried;
    this.ground = ground;
    this.#lasting = true;
  }

  protected async note(next: Ground | null = null): Promise<void> {
    if (!this.#lasting || this.incarnation === null) return;
    const { id, createdAt, frozen, ground, carried } = this;
    await this.incarnation.spawner.note(id, writeNote({ id, spec: this.specNow(), createdAt, leaseMs: this.lease.ms, ownerRenews: this.lease.ownerRenews, frozen, ground, next, carried }));
  }

  /** With the list of hosts as it is now, which may be another than it was made with. */
  protected specNow(): SandboxSpec {
    const allow = this.egress?.report().allow;
    return allow === undefined ? this.spec : { ...this.spec, allow };
  }

  // ---- from one incarnation to the next ----

  /** False for a machine that has none of this spawner's. */
  belongsTo(spawner: Spawner): boolean {
    return this.incarnation?.spawner === spawner;
  }

  /** What is known of the incarnation that is about to end goes on being counted. */
  protected async leave(): Promise<{ gone(): void; stays(): void }> {
    const counted = await this.spawner().metrics(this.id);
    // With its spawner, whose death is reported before the request that waits on it fails.
    let died: SandboxEnd | null = null;
    this.departed = (end) => (died = end);
    this.changing = true;
    const stays = (): void => {
      this.changing = false;
      if (died !== null) this.machineEnded(died);
    };
    return { gone: () => this.carry(counted), stays };
  }

  protected carry({ limits, cpuMs }: Pick<SandboxMetrics, "limits" | "cpuMs">): void {
    this.carried = { limits: sum(this.carried.limits, limits), cpuMs: this.carried.cpuMs + (cpuMs ?? 0) };
    this.causes.reset();
  }

  protected async relaunch(ground: Ground): Promise<void> {
    const left = this.lease.ownerRenews ? Math.max(1, this.lease.leftMs) : this.lease.ms;
    try {
      await this.launch(ground, left);
      // From here on the machine itself says what it stands on.
      if (this.#lasting && ground.workspace !== null) await this.spawner().note(ground.workspace, new Uint8Array());
      this.persisted = null;
    } catch (error) {
      this.finish({ reason: "lost", limits: this.carried.limits, kept: false });
      throw error;
    }
  }

  /** While it changes over it has no machine for a moment; who asks for something then means the next one. */
  protected async steady(): Promise<void> {
    while (this.changing && this.end === null) await this.context.runtime.sleep(1);
  }

  protected spawner(): Spawner {
    if (this.incarnation === null) throw this.gone();
    return this.incarnation.spawner;
  }

  // ---- its lease and its end ----

  /** The lease that the backend renews for this machine; null when its owner does, or nobody needs to. */
  get leaseMs(): number | null {
    return this.lease.ownerRenews || this.incarnation === null ? null : this.lease.ms;
  }

  renewed(): void {
    this.lease.begin();
  }

  /** The spawner's report, or its death. Only the first end counts. */
  machineEnded(end: SandboxEnd): void {
    if (this.changing) {
      this.departed(end);
      return;
    }
    // While it is resumed: what was kept is there, and can be resumed again.
    if (this.paused !== null) {
      this.incarnation = null;
      return;
    }
    this.finish({ ...end, limits: sum(this.carried.limits, end.limits) });
  }

  /** Its backend closes. */
  abandon(): void {
    if (this.paused !== null) this.finish({ reason: "killed", limits: this.carried.limits, kept: false });
  }

  protected finish(end: SandboxEnd): void {
    if (this.end !== null) return;
    this.end = end;
    this.client.reopen();
    this.client.close();
    this.#egress?.proxy.forget(this.id);
    this.context.forget(this.id);
    // What waits for a seal still stands on them.
    if (!end.kept) void this.ground.hold.release();
    void this.persisted?.hold.release();
    this.#resolveEnded(end);
  }

  protected over(): void {
    if (this.end !== null) throw this.gone();
  }

  protected alive(): void {
    this.over();
    if (this.paused !== null) throw new MwError("sandbox_paused", `The sandbox ${this.id} is paused`, { fix: "resume it first", facts: { sandbox: this.id } });
  }

  protected gone(): MwError {
    const reason = this.end?.reason ?? "gone";
    return new MwError("sandbox_gone", `The sandbox ${this.id} is over: ${reason}`, { facts: { sandbox: this.id, reason } });
  }
}

function isolationOf(capabilities: Capabilities, spec: SandboxSpec): Isolation {
  return spec.checkpointable === true ? { ...capabilities.isolation, profile: "namespaces" } : capabilities.isolation;
}

/** Of one incarnation and another. */
export function sum(one: LimitCounts, two: LimitCounts): LimitCounts {
  return { oom_killed: one.oom_killed + two.oom_killed, pids: one.pids + two.pids, disk_full: one.disk_full + two.disk_full };
}

/** The default directory of commands: absolute, below `/`. */
export function workdirOf(spec: SandboxSpec): string {
  return join("/", spec.workdir ?? spec.root.workdir);
}

/**
 * One machine of a remote service. The service gives life, lease and network; commands and files go through our own init, which runs in the machine as a process (guest-link.ts).
 *
 * The service's word decides whether it lives: it is asked whenever the connection breaks, a lease has passed or a renewal is refused.
 */
import { join } from "node:path";
import { Readable, type Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import type { ExecId, SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { execEnvironment } from "../../exec-environment.ts";
import type { Capabilities, Exec, ExecOptions, ExecResult, Sandbox, SandboxEnd, SandboxFiles, SandboxMetrics, SandboxSpec, TreeReport, Workspace } from "../../sandbox.ts";
import { Lease } from "../lease.ts";
import { placeRequest, without } from "../native/files.ts";
import { GuardedFiles } from "../native/guarded-files.ts";
import { InitConnection } from "../native/init-connection.ts";
import { layerItems, removedPaths } from "../native/layer-items.ts";
import { MachineClient } from "../native/machine-client.ts";
import { Refusals } from "../native/tree-items.ts";
import { UnkeptMachine } from "../unkept-machine.ts";
import type { ControlPlane, RemoteSandbox } from "./control-plane.ts";
import { openGuestLink, putFile, type GuestAgent } from "./guest-link.ts";
import { GUEST_DIRECTORY, GUEST_FILES, GUEST_INIT, type GuestPrograms } from "./guest-programs.ts";
import { NOT_SCANNED, scanOf, type Scan } from "./scan.ts";

export interface RemoteMachineContext {
  readonly control: ControlPlane;
  readonly agent: (sandbox: RemoteSandbox) => GuestAgent;
  readonly programs: GuestPrograms;
  /** Of the digests of all scans that are compared. */
  readonly scanKey: Uint8Array;
  readonly runtime: Runtime;
  readonly capabilities: Capabilities;
  readonly forget: (id: SandboxId) => void;
  readonly seal: (machine: RemoteMachine) => Promise<Workspace>;
}

/** Where what is put in place at once waits. */
const SENT = `${GUEST_DIRECTORY}/sent`;
const BATCH_BYTES = 256 * 1024;

const NO_LIMITS = { oom_killed: 0, pids: 0, disk_full: 0 } as const;
/** The service ends a sandbox some time after its lease; it is asked so often. */
const EXPIRY_CHECK_MS = 1000;

export class RemoteMachine extends UnkeptMachine implements Sandbox {
  readonly id: SandboxId;
  readonly spec: SandboxSpec;
  readonly files: SandboxFiles;
  readonly ended: Promise<SandboxEnd>;
  readonly createdAt: number;
  readonly remote: RemoteSandbox;
  /** What it started from, and what that holds. */
  readonly template: string;
  readonly base: () => Promise<Scan>;
  readonly workdir: string;
  readonly passage = { open: () => this.#explained(() => this.#openLink()), filesProgram: GUEST_FILES };
  readonly #context: RemoteMachineContext;
  readonly #client: MachineClient;
  #end: SandboxEnd | null = null;
  #resolveEnded: (end: SandboxEnd) => void = () => undefined;
  readonly #lease: Lease;
  #renewing = false;
  #killing: Promise<boolean> | null = null;
  #watching: NodeJS.Timeout | null = null;

  constructor(context: RemoteMachineContext, id: SandboxId, spec: SandboxSpec, remote: RemoteSandbox, template: string, base: () => Promise<Scan>) {
    super(context.capabilities);
    this.#context = context;
    this.id = id;
    this.spec = spec;
    this.remote = remote;
    this.template = template;
    this.base = base;
    this.workdir = join("/", spec.workdir ?? spec.root.workdir);
    this.createdAt = context.runtime.now();
    this.#lease = new Lease(context.runtime, spec.ttlMs ?? LIMITS.leaseDefaultMs);
    const defaults = { env: execEnvironment(spec), user: spec.user ?? spec.root.user, workdir: this.workdir };
    this.#client = new MachineClient(() => this.#connect(), defaults, context.runtime, () => this.alive(), GUEST_FILES);
    this.files = new GuardedFiles(this.#client.files, context.capabilities, () => this.alive());
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
    this.#leaseFrom(this.#lease.ms);
  }

  // ---- called by the backend ----

  /** Connects. `fresh`: puts our programs there first, over whatever has their names: the machine starts from files of an agent's. */
  async begin(fresh: boolean): Promise<void> {
    const agent = this.#context.agent(this.remote);
    try {
      if (fresh) for (const [path, bytes] of [[GUEST_INIT, this.#context.programs.init], [GUEST_FILES, this.#context.programs.files]] as const) await putFile(agent, path, bytes);
      await this.#client.connect();
    } catch (error) {
      await this.#lives();
      if (fresh && this.#end === null && error instanceof MwError && error.code !== "timeout" && error.facts["unreached"] !== true) {
        throw new MwError("conflict", `Our programs cannot run on these files: ${error.message}`, { cause: error });
      }
      throw error;
    }
  }

  /** Whether a third of its lease has passed, and nobody else renews it. */
  get needsRenewal(): boolean {
    return !this.#lease.ownerRenews && !this.#renewing && this.#lease.leftMs < (this.#lease.ms * 2) / 3;
  }

  async renewByItself(): Promise<void> {
    this.#renewing = true;
    try {
      await this.#renewOwn();
    } finally {
      this.#renewing = false;
    }
  }

  async #renewOwn(): Promise<void> {
    if (await this.#context.control.renew(this.remote.sandboxID, this.#lease.ms)) this.#leaseFrom(this.#lease.ms);
    else await this.#lives();
  }

  /** As `files.applyLayer`, sent as one file: for much. Returns what is not as in the archive. */
  async applyWhole(archive: string, except: readonly string[]): Promise<TreeReport["refused"]> {
    for (const path of await removedPaths(archive)) await this.#client.files.remove(path);
    const names = new Set(except);
    const pass = async (): Promise<TreeReport["refused"]> => {
      const refusals = new Refusals();
      await putFile(this.#context.agent(this.remote), SENT, Readable.from(batched(placeRequest(without(layerItems(archive), names), refusals))));
      return [...refusals.list, ...(await this.#client.files.placeFrom(SENT)).refused];
    };
    const first = await pass();
    // A file where the layer below has a directory, or the other way round: the upper one counts.
    const inTheWay = first.filter(({ reason }) => reason.endsWith("is in the way"));
    for (const { path } of inTheWay) await this.#client.files.remove(`/${path}`);
    const refused = inTheWay.length === 0 ? first : await pass();
    await this.#client.files.remove(SENT);
    return refused;
  }

  async scan(): Promise<Scan> {
    return scanOf(await this.#client.files.scan("/", NOT_SCANNED, this.#context.scanKey));
  }

  get ownFiles(): MachineClient["files"] {
    return this.#client.files;
  }

  finish(reason: SandboxEnd["reason"]): void {
    if (this.#end !== null) return;
    this.#end = { reason, limits: NO_LIMITS, kept: false };
    if (this.#watching !== null) clearTimeout(this.#watching);
    this.#client.close();
    this.#context.forget(this.id);
    this.#resolveEnded(this.#end);
  }

  // ---- the sandbox ----

  async run(options: ExecOptions): Promise<ExecResult> {
    this.check(options);
    return this.#explained(() => this.#client.run(options));
  }

  async exec(options: ExecOptions): Promise<Exec> {
    this.check(options);
    return this.#explained(() => this.#client.exec(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<Exec> {
    this.alive();
    return this.#explained(() => this.#client.attach(id, offsets));
  }

  async connect(port: number): Promise<Duplex> {
    this.alive();
    return this.#explained(() => this.#client.connectPort(port));
  }

  async killProcesses(): Promise<void> {
    this.alive();
    await this.#explained(() => this.#client.killProcesses());
  }

  async metrics(): Promise<SandboxMetrics> {
    this.alive();
    const { memoryBytes, diskBytes } = await this.#explained(() => this.#context.control.metrics(this.remote.sandboxID));
    return { cpuMs: null, memoryBytes, memoryPeakBytes: null, diskBytes, pids: null, limits: NO_LIMITS };
  }

  async renew(ttlMs: number): Promise<void> {
    this.alive();
    this.#lease.ownerRenews = true;
    const there = await this.#context.control.renew(this.remote.sandboxID, ttlMs);
    if (there) this.#leaseFrom(ttlMs);
    else await this.#lives();
    this.alive();
  }

  async seal(): Promise<Workspace> {
    this.alive();
    return this.#context.seal(this);
  }

  async kill(): Promise<void> {
    if (this.#end !== null) return;
    // Whoever asks meanwhile waits for the same answer: the backend may be closed behind it.
    await (this.#killing ??= this.#context.control.kill(this.remote.sandboxID).finally(() => (this.#killing = null)));
    this.finish("killed");
  }

  async freeze(): Promise<void> {
    return this.refuse("freeze");
  }

  async thaw(): Promise<void> {
    return this.refuse("freeze");
  }

  // ---- its connection and its life ----

  async #connect(): Promise<InitConnection> {
    const connection = InitConnection.over(await this.#openLink());
    void connection.closed.then(() => (this.#end === null ? this.#lives() : undefined)).catch(() => undefined);
    await this.#answers(connection);
    void this.#watchOver(connection);
    return connection;
  }

  #openLink(): Promise<Duplex> {
    // Only root may connect to it, whatever it is called.
    return openGuestLink(this.#context.agent(this.remote), [GUEST_INIT, "--link", "manyworlds-guest", GUEST_FILES]);
  }

  /** One whose init has been stopped from inside is given up; a new connection makes it go on. */
  async #watchOver(connection: InitConnection): Promise<void> {
    const over = new AbortController();
    void connection.closed.then(() => over.abort());
    try {
      for (;;) {
        await this.#context.runtime.sleep(LIMITS.remotePulseMs, over.signal);
        await this.#answers(connection);
      }
    } catch {
      // It has ended, or was closed by us.
    }
  }

  async #answers(connection: InitConnection): Promise<void> {
    const late = setTimeout(() => connection.close(new MwError("sandbox_failed", `The machine ${this.id} has not answered for ${LIMITS.remotePulseMs / 1000} s`)), LIMITS.remotePulseMs).unref();
    await connection.ping().finally(() => clearTimeout(late));
  }

  /** What failed because the machine is over says that. */
  async #explained<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (this.#end === null && error instanceof MwError && (error.code === "sandbox_gone" || error.code === "sandbox_failed" || error.code === "not_found")) await this.#lives().catch(() => undefined);
      if (this.#end !== null) throw this.#gone();
      throw error;
    }
  }

  /** Asks the service, and takes note when it is over. */
  async #lives(): Promise<void> {
    if (this.#end !== null || (await this.#context.control.state(this.remote.sandboxID)) === "running") return;
    this.finish(this.#lease.leftMs <= 0 ? "expired" : "lost");
  }

  #leaseFrom(ttlMs: number): void {
    this.#lease.begin(ttlMs);
    this.#watch(ttlMs);
  }

  #watch(afterMs: number): void {
    if (this.#watching !== null) clearTimeout(this.#watching);
    if (this.#end !== null) return;
    const look = (): void => void this.#lives().then(() => this.#watch(EXPIRY_CHECK_MS), () => this.#watch(10 * EXPIRY_CHECK_MS));
    this.#watching = setTimeout(look, afterMs + EXPIRY_CHECK_MS / 4).unref();
  }

  protected alive(): void {
    if (this.#end !== null) throw this.#gone();
  }

  #gone(): MwError {
    const reason = this.#end?.reason ?? "gone";
    return new MwError("sandbox_gone", `The sandbox ${this.id} is over: ${reason}`, { facts: { sandbox: this.id, reason, remote: this.remote.sandboxID } });
  }
}

/** Small frames together. */
async function* batched(frames: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let held: Buffer[] = [];
  let bytes = 0;
  for await (const frame of frames) {
    held.push(frame);
    bytes += frame.length;
    if (bytes < BATCH_BYTES) continue;
    yield Buffer.concat(held, bytes);
    held = [];
    bytes = 0;
  }
  yield Buffer.concat(held, bytes);
}

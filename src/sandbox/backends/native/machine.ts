/**
 * One machine of the native backend: a sandbox on top of the spawner (life, limits, leases) and of the machine's init (commands, files).
 *
 * The spawner's word decides when a machine has ended; a broken connection to init only means that the next request connects again, or finds out.
 */
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { ExecId, SandboxId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { checkExecOptions } from "../../check-spec.ts";
import type {
  Capabilities,
  Exec,
  ExecExit,
  ExecOptions,
  ExecResult,
  Isolation,
  LimitCause,
  Sandbox,
  SandboxEnd,
  SandboxFiles,
  SandboxMetrics,
  SandboxSpec,
  Workspace,
} from "../../sandbox.ts";
import type { NativeExec } from "./exec.ts";
import type { InitConnection } from "./init-connection.ts";
import { MachineClient } from "./machine-client.ts";
import { GuardedFiles } from "./guarded-files.ts";
import { SealedWorkspace } from "./sealed-workspace.ts";
import type { Spawner } from "./spawner.ts";

export interface MachineContext {
  readonly spawner: Spawner;
  readonly runtime: Runtime;
  readonly capabilities: Capabilities;
}

type Counts = Readonly<Record<LimitCause, number>>;
const NO_LIMITS: Counts = { oom_killed: 0, pids: 0, disk_full: 0 };

export class NativeMachine implements Sandbox {
  readonly id: SandboxId;
  readonly spec: SandboxSpec;
  readonly isolation: Isolation;
  readonly files: SandboxFiles;
  readonly ended: Promise<SandboxEnd>;
  readonly createdAt: number;
  readonly #context: MachineContext;
  readonly #client: MachineClient;
  #end: SandboxEnd | null = null;
  #resolveEnded: (end: SandboxEnd) => void = () => undefined;
  #seen: Counts = NO_LIMITS;
  /** Null once the caller renews by itself. */
  #ownLeaseMs: number | null;

  constructor(context: MachineContext, id: SandboxId, spec: SandboxSpec, leaseMs: number) {
    this.#context = context;
    this.id = id;
    this.spec = spec;
    this.isolation = context.capabilities.isolation;
    this.createdAt = context.runtime.now();
    this.#ownLeaseMs = leaseMs;
    const defaults = { env: { ...spec.root.env, ...spec.env }, user: spec.user ?? spec.root.user, workdir: workdirOf(spec) };
    this.#client = new MachineClient(context.spawner.initSocket(id), defaults, context.runtime);
    this.files = new GuardedFiles(this.#client.files, context.capabilities, () => this.#alive());
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  /** Called by the backend, with a connection to what has become this machine. */
  adopt(connection: InitConnection): void {
    this.#client.adopt(connection);
  }

  belongsTo(spawner: Spawner): boolean {
    return this.#context.spawner === spawner;
  }

  /** The lease that the backend renews for this machine; null when its owner does. */
  get leaseMs(): number | null {
    return this.#ownLeaseMs;
  }

  async run(options: ExecOptions): Promise<ExecResult> {
    this.#check(options);
    const result = await this.#client.run(options);
    const cause = await this.#causeOf(result);
    return cause === null ? result : { ...result, cause };
  }

  async exec(options: ExecOptions): Promise<Exec> {
    this.#check(options);
    return this.#wrap(await this.#client.exec(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<Exec> {
    this.#alive();
    return this.#wrap(await this.#client.attach(id, offsets));
  }

  async killProcesses(): Promise<void> {
    this.#alive();
    await this.#client.killProcesses();
  }

  async freeze(): Promise<void> {
    this.#alive();
    this.#need("freeze", this.#context.capabilities.freeze);
    await this.#context.spawner.freeze(this.id);
  }

  async thaw(): Promise<void> {
    this.#alive();
    this.#need("freeze", this.#context.capabilities.freeze);
    await this.#context.spawner.thaw(this.id);
  }

  async metrics(): Promise<SandboxMetrics> {
    this.#alive();
    return this.#context.spawner.metrics(this.id);
  }

  async renew(ttlMs: number): Promise<void> {
    this.#alive();
    this.#ownLeaseMs = null;
    const gone = await this.#context.spawner.renew([this.id], ttlMs);
    if (gone.length > 0) throw this.#gone();
  }

  async seal(): Promise<Workspace> {
    if (this.#end?.kept !== true) this.#alive();
    const { bytes } = await this.#context.spawner.seal(this.id);
    await this.ended;
    return new SealedWorkspace(this.#context.spawner, this.id, bytes);
  }

  async kill(): Promise<void> {
    if (this.#end === null) await this.#context.spawner.kill(this.id);
    // What waits for a seal is gone with its keeper.
    else if (this.#end.kept) await this.#context.spawner.kill(this.id).catch(() => undefined);
    await this.ended;
  }

  /** The spawner's report, or its death. Called by the backend; only the first end counts. */
  end(end: SandboxEnd): void {
    if (this.#end !== null) return;
    this.#end = end;
    this.#resolveEnded(end);
    this.#client.close();
  }

  #check(options: ExecOptions): void {
    checkExecOptions(options, this.#context.capabilities);
    this.#alive();
  }

  #wrap(exec: NativeExec): Exec {
    const exit = exec.exit.then(async (ended) => {
      const cause = await this.#causeOf(ended);
      return cause === null ? ended : { ...ended, cause };
    });
    // Whoever awaits it sees the rejection; nobody has to.
    exit.catch(() => undefined);
    return {
      id: exec.id,
      output: exec.output,
      exit,
      writeStdin: (data) => exec.writeStdin(data),
      closeStdin: () => exec.closeStdin(),
      kill: (signal) => exec.kill(signal),
      resize: (columns, rows) => exec.resize(columns, rows),
      acknowledge: () => exec.acknowledge(),
    };
  }

  /**
   * The limit that was hit while a command ran. The counters are asked only when a command failed or complained: a limit that nobody felt is in the metrics,
   * and the question is not worth its time in every exec.
   */
  async #causeOf(exit: ExecExit): Promise<LimitCause | null> {
    if (exit.ended === "lost" || (exit.code === 0 && exit.stderrBytes === 0)) return null;
    const before = this.#seen;
    try {
      this.#seen = (await this.#context.spawner.metrics(this.id)).limits;
    } catch {
      // The machine ended meanwhile; its end carries the counters.
      return null;
    }
    const order: readonly LimitCause[] = ["oom_killed", "disk_full", "pids"];
    return order.find((cause) => this.#seen[cause] > before[cause]) ?? null;
  }

  #alive(): void {
    if (this.#end !== null) throw this.#gone();
  }

  #gone(): MwError {
    const reason = this.#end?.reason ?? "gone";
    return new MwError("sandbox_gone", `The sandbox ${this.id} is over: ${reason}`, { facts: { sandbox: this.id, reason } });
  }

  #need(name: string, present: boolean): void {
    if (!present) throw new MwError("unsupported", `This host cannot ${name} a sandbox: ${this.#context.capabilities.missing[name] ?? "the backend lacks it"}`);
  }
}

/** The default directory of commands: absolute, below `/`. */
export function workdirOf(spec: SandboxSpec): string {
  return join("/", spec.workdir ?? spec.root.workdir);
}

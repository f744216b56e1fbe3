/**
 * One machine of an OCI runtime: a container whose PID 1 is our init, asked over a socket that nothing inside has a name for.
 *
 * The runtime runs beside it until it has ended, and takes its own state and the control groups away. Init holds one end of a lifeline: when this process lets go of the
 * other, by killing the machine or by dying, init ends, and everything inside with it.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import type { ExecId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { execEnvironment } from "../../exec-environment.ts";
import type { Capabilities, Exec, ExecOptions, ExecResult, Sandbox, SandboxEgress, SandboxEnd, SandboxFiles, SandboxMetrics, SandboxSpec, Workspace } from "../../sandbox.ts";
import { LimitCauses, NO_LIMITS, type LimitCounts } from "../limit-causes.ts";
import { UnkeptMachine } from "../unkept-machine.ts";
import { GuardedFiles } from "../native/guarded-files.ts";
import { InitConnection } from "../native/init-connection.ts";
import { MachineClient } from "../native/machine-client.ts";
import { SealedWorkspace } from "../native/sealed-workspace.ts";
import { START_MEMORY_BYTES } from "./bundle.ts";
import { heldByGroups, MachineGroups } from "./control-groups.ts";
import { listening } from "./listening.ts";
import { askRuntime, type OciRuntime, runtimeCommand } from "./runtime.ts";
import type { Kept, OciWorkspaces } from "./workspaces.ts";

export interface OciMachineContext {
  readonly runtime: Runtime;
  readonly oci: OciRuntime;
  /** Directory of the runtime's own state. */
  readonly state: string;
  /** Where machines listen: a short path. */
  readonly sockets: string;
  /** Above the machines' control groups. */
  readonly group: string;
  readonly capabilities: Capabilities;
  readonly workspaces: OciWorkspaces;
  readonly remove: (directory: string) => Promise<void>;
  readonly forget: (machine: OciMachine) => void;
}

/** An init that has not ended so long after its lifeline is left to the runtime. */
const END_MS = 10_000;

export class OciMachine extends UnkeptMachine implements Sandbox {
  readonly id: Sandbox["id"];
  readonly spec: SandboxSpec;
  readonly files: SandboxFiles;
  readonly ended: Promise<SandboxEnd>;
  readonly createdAt: number;
  readonly workdir: string;
  readonly socket: string;
  readonly egress: SandboxEgress | undefined;
  readonly #context: OciMachineContext;
  readonly #kept: Kept;
  readonly #client: MachineClient;
  readonly #causes = new LimitCauses(async () => this.#limits());
  #process: ChildProcess | null = null;
  #lifeline: Duplex | null = null;
  readonly #groups: MachineGroups;
  #limitsSeen: LimitCounts = NO_LIMITS;
  /** Why we end it; null while we do not. */
  #ending: SandboxEnd["reason"] | null = null;
  #end: SandboxEnd | null = null;
  /** Its files are nobody's any more. */
  #disposed = false;
  #resolveEnded: (end: SandboxEnd) => void = () => undefined;
  #expiry: NodeJS.Timeout | null = null;
  #frozen = false;

  constructor(context: OciMachineContext, kept: Kept, spec: SandboxSpec, egress?: SandboxEgress) {
    super(context.capabilities);
    this.egress = egress;
    this.#context = context;
    this.#kept = kept;
    this.id = kept.id;
    this.spec = spec;
    this.socket = join(context.sockets, `${this.id}.sock`);
    this.#groups = new MachineGroups(join(context.group, kept.id));
    this.createdAt = context.runtime.now();
    this.workdir = join("/", spec.workdir ?? spec.root.workdir);
    const defaults = { env: execEnvironment(spec), user: spec.user ?? spec.root.user, workdir: this.workdir };
    this.#client = new MachineClient(() => InitConnection.connect(this.socket), defaults, context.runtime, () => this.alive());
    this.files = new GuardedFiles(this.#client.files, context.capabilities, () => this.alive());
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  /** Has the runtime run the bundle that is prepared as `setup` says, and waits until init answers. What fails leaves nothing of it. */
  async launch(setup: readonly string[]): Promise<void> {
    const { directory } = this.#kept;
    const { oci, state } = this.#context;
    const log = join(directory, "log");
    const command = ["--log", join(directory, "runtime.log"), "run", "--bundle", directory, "--preserve-fds", "2", this.id];
    const [program, args] = runtimeCommand(oci, state, [...setup, "--listen", this.socket], command);
    const output = openSync(log, "w", 0o600);
    const child = spawn(program, args, { cwd: directory, stdio: ["ignore", "ignore", output, "ignore", "pipe"], env: { PATH: process.env["PATH"] ?? "" }, detached: true });
    closeSync(output);
    this.#process = child;
    child.once("error", () => void this.#over(null));
    child.once("exit", (code, signal) => void this.#over(signal ?? code));
    try {
      this.#lifeline = await listening(child);
      await (await this.#client.connect()).ping();
      const { memoryBytes } = this.spec;
      if (memoryBytes !== undefined && memoryBytes < START_MEMORY_BYTES) await this.#ask("update", "--memory", String(memoryBytes), ...(heldByGroups().swap ? ["--memory-swap", String(memoryBytes)] : []));
    } catch (error) {
      const said = logged(log);
      await this.kill();
      throw said === "" ? error : new MwError("sandbox_failed", `${oci.name} could not start the machine ${this.id}: ${said}`, { cause: error });
    }
  }

  // ---- the sandbox ----

  async run(options: ExecOptions): Promise<ExecResult> {
    this.check(options);
    return this.#causes.of(await this.#client.run(options));
  }

  async exec(options: ExecOptions): Promise<Exec> {
    this.check(options);
    return this.#causes.explained(await this.#client.exec(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<Exec> {
    this.alive();
    return this.#causes.explained(await this.#client.attach(id, offsets));
  }

  async connect(port: number): Promise<Duplex> {
    this.alive();
    return this.#client.connectPort(port);
  }

  async killProcesses(): Promise<void> {
    this.alive();
    await this.#client.killProcesses();
  }

  async freeze(): Promise<void> {
    this.#freezable();
    if (this.#frozen) return;
    this.#frozen = true;
    await this.#ask("pause");
  }

  async thaw(): Promise<void> {
    this.#freezable();
    if (!this.#frozen) return;
    await this.#ask("resume");
    this.#frozen = false;
  }

  async metrics(): Promise<SandboxMetrics> {
    this.alive();
    return { ...this.#groups.metrics(), diskBytes: null, limits: this.#limits() };
  }

  async renew(ttlMs: number): Promise<void> {
    this.alive();
    if (this.#expiry !== null) clearTimeout(this.#expiry);
    this.#expiry = setTimeout(() => void this.#finish("expired"), ttlMs).unref();
  }

  async seal(): Promise<Workspace> {
    if (this.#end?.kept !== true || this.#disposed) {
      this.alive();
      await this.#finish("sealed");
      if (this.#end?.reason !== "sealed") throw this.#gone();
    }
    this.#disposed = true;
    try {
      return new SealedWorkspace(this.#context.workspaces, this.id, await this.#context.workspaces.keep(this.#kept));
    } catch (error) {
      await this.#context.workspaces.releaseWorkspace(this.id);
      throw error;
    }
  }

  async kill(): Promise<void> {
    await this.#finish("killed");
    await this.#dispose();
  }

  // ---- its end ----

  /** Lets go of the lifeline, and waits until the runtime has taken everything away. */
  async #finish(reason: SandboxEnd["reason"]): Promise<void> {
    if (this.#end !== null) return;
    if (this.#ending === null) {
      this.#ending = reason;
      this.#limits();
      // Nothing in a frozen machine could end.
      if (this.#frozen) await this.#ask("resume").catch(() => undefined);
      const late = setTimeout(() => void this.#ask("delete", "--force").catch(() => undefined), END_MS).unref();
      this.#lifeline?.destroy();
      (this.#process?.stdio[4] as Duplex | undefined)?.destroy();
      void this.ended.then(() => clearTimeout(late));
    }
    await this.ended;
  }

  /** The runtime has ended, with what init ended with; null: it was never started. */
  async #over(how: number | NodeJS.Signals | null): Promise<void> {
    if (this.#end !== null) return;
    // Nobody but the kernel ends init in this way, for memory. Its counters went with it.
    const forMemory = this.#ending === null && how === 137 && this.spec.memoryBytes !== undefined;
    const reason = this.#ending ?? (typeof how === "string" ? "lost" : "died");
    const limits = forMemory ? { ...this.#limitsSeen, oom_killed: this.#limitsSeen.oom_killed + 1 } : this.#limitsSeen;
    // A runtime that was killed leaves the machine and its own state behind.
    if (typeof how === "string") await this.#ask("delete", "--force").catch(() => undefined);
    this.#end = { reason, limits, kept: forMemory };
    if (this.#expiry !== null) clearTimeout(this.#expiry);
    this.#lifeline?.destroy();
    this.#client.close();
    this.#context.forget(this);
    if (reason !== "sealed" && !forMemory) await this.#dispose();
    await this.#context.remove(this.socket);
    this.#resolveEnded(this.#end);
  }

  async #dispose(): Promise<void> {
    if (this.#disposed) return;
    this.#disposed = true;
    await this.#context.remove(this.#kept.directory);
    await this.#context.workspaces.leave(this.#kept.base);
  }

  // ---- helpers ----

  #ask(verb: string, ...flags: readonly string[]): Promise<void> {
    return askRuntime(this.#context.oci, this.#context.state, [verb, ...flags, this.id]);
  }

  #limits(): LimitCounts {
    const now = this.#groups.limits();
    this.#limitsSeen = { oom_killed: Math.max(now.oom_killed, this.#limitsSeen.oom_killed), pids: Math.max(now.pids, this.#limitsSeen.pids), disk_full: 0 };
    return this.#limitsSeen;
  }

  protected alive(): void {
    if (this.#end !== null || this.#ending !== null) throw this.#gone();
  }

  #gone(): MwError {
    const reason = this.#end?.reason ?? this.#ending ?? "gone";
    return new MwError("sandbox_gone", `The sandbox ${this.id} is over: ${reason}`, { facts: { sandbox: this.id, reason } });
  }

  #freezable(): void {
    this.alive();
    if (!this.#context.capabilities.freeze) this.refuse("freeze");
  }
}

/** What the runtime said on its way down. */
function logged(path: string): string {
  try {
    return readFileSync(path, "utf8").trim().slice(0, 2000);
  } catch {
    return "";
  }
}

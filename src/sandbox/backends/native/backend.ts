/**
 * The native backend: machines made by the spawner of one data directory, leases renewed while this process lives.
 *
 * When the spawner dies, its machines are lost and every request that waits on it fails; the next creation starts a new spawner, which sweeps what the old
 * one left before it says hello.
 */
import { mkdirSync } from "node:fs";
import { MwError } from "../../../core/errors.ts";
import { newId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { systemRuntime, type Runtime } from "../../../core/runtime.ts";
import { checkSpec } from "../../check-spec.ts";
import type { Capabilities, Sandbox, SandboxBackend, SandboxSpec } from "../../sandbox.ts";
import { layeredParts } from "./layered-parts.ts";
import { BlankConnections } from "./blank-connections.ts";
import { NativeMachine, workdirOf } from "./machine.ts";
import { prepareWorkdir } from "./workdir.ts";
import { startSpawner } from "./start-spawner.ts";
import type { Spawner } from "./spawner.ts";
import type { CreateMachine } from "./spawner-protocol.ts";

export interface NativeBackendOptions {
  /** The data directory: locked by this backend's spawner, made when missing. */
  readonly home: string;
  /** How long machines outlive this process, so that another controller could take over. Default 0. */
  readonly graceMs?: number;
  readonly runtime?: Runtime;
  /** Lines that the spawner writes. Default: this process's stderr. */
  readonly log?: (line: string) => void;
}

/** Rejects `busy` when another controller holds the data directory, `environment` when this host cannot make machines. */
export async function openNativeBackend(options: NativeBackendOptions): Promise<NativeBackend> {
  mkdirSync(options.home, { recursive: true, mode: 0o700 });
  const spawner = await startSpawner(options.home, spawnerOptions(options));
  return new NativeBackend(options, spawner);
}

export class NativeBackend implements SandboxBackend {
  readonly name = "native";
  readonly #options: NativeBackendOptions;
  readonly #runtime: Runtime;
  readonly #machines = new Map<SandboxId, NativeMachine>();
  readonly #keys = new Map<string, Promise<NativeMachine>>();
  #spawner: Promise<Spawner> | null = null;
  #blanks: BlankConnections | null = null;
  #capabilities: Capabilities;
  #renewing: NodeJS.Timeout | null = null;
  #closed = false;

  constructor(options: NativeBackendOptions, spawner: Spawner) {
    this.#options = options;
    this.#runtime = options.runtime ?? systemRuntime;
    this.#capabilities = capabilitiesOf(spawner);
    this.#adopt(spawner);
  }

  get capabilities(): Capabilities {
    return this.#capabilities;
  }

  /** Raised by one with every spawner of this data directory; what an older one recorded is void. */
  get epoch(): Promise<number> {
    return this.#ready().then((spawner) => spawner.hello.epoch);
  }

  async create(spec: SandboxSpec): Promise<Sandbox> {
    checkSpec(spec, this.#capabilities);
    if (spec.key === undefined) return this.#make(spec);
    const { key } = spec;
    const known = this.#keys.get(key);
    if (known !== undefined) return known;
    const making = this.#make(spec);
    this.#keys.set(key, making);
    const forget = (): void => {
      if (this.#keys.get(key) === making) this.#keys.delete(key);
    };
    making.then((machine) => machine.ended.then(forget), forget);
    return making;
  }

  async list(): Promise<readonly { readonly id: SandboxId; readonly labels: Readonly<Record<string, string>>; readonly createdAt: number }[]> {
    return [...this.#machines.values()].map(({ id, spec, createdAt }) => ({ id, labels: spec.labels ?? {}, createdAt }));
  }

  get(id: SandboxId): Sandbox | null {
    return this.#machines.get(id) ?? null;
  }

  async close(): Promise<void> {
    this.#closed = true;
    if (this.#renewing !== null) clearInterval(this.#renewing);
    this.#renewing = null;
    const spawner = await this.#spawner?.catch(() => null);
    this.#spawner = null;
    await spawner?.close();
  }

  async #make(spec: SandboxSpec): Promise<NativeMachine> {
    if (this.#machines.size >= LIMITS.sandboxesPerHost) throw new MwError("host_exhausted", `There are ${this.#machines.size} sandboxes already, which is this host's limit`);
    const spawner = await this.#ready();
    const id = newId("sbx", this.#runtime);
    const leaseMs = spec.ttlMs ?? LIMITS.leaseDefaultMs;
    const machine = new NativeMachine({ spawner, runtime: this.#runtime, capabilities: this.#capabilities }, id, spec, leaseMs);
    // Known before it is made: its end may be reported right behind the answer.
    this.#machines.set(id, machine);
    try {
      const { blank } = await spawner.create(requestOf(id, spec, this.#capabilities.isolation.profile, leaseMs));
      const connection = this.#blanks?.take(blank) ?? null;
      if (connection !== null) machine.adopt(connection);
    } catch (error) {
      this.#machines.delete(id);
      throw creationError(error, spec);
    }
    this.#renewFrom(leaseMs);
    try {
      await prepareWorkdir(machine, workdirOf(spec), spec);
      return machine;
    } catch (error) {
      await machine.kill();
      throw error;
    }
  }

  /** The spawner that lives, or a new one. */
  #ready(): Promise<Spawner> {
    if (this.#closed) return Promise.reject(new MwError("sandbox_gone", "The sandbox backend is closed"));
    if (this.#spawner !== null) return this.#spawner;
    const starting = startSpawner(this.#options.home, spawnerOptions(this.#options));
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
    this.#capabilities = capabilitiesOf(spawner);
    this.#blanks = new BlankConnections(spawner);
    spawner.onEnded(({ id, ...end }) => {
      // An id that came back from the spawner is one that we gave it.
      const machine = this.#machines.get(id as SandboxId);
      this.#machines.delete(id as SandboxId);
      machine?.end(end);
    });
    void spawner.exited.then(() => {
      if (this.#spawner === current) this.#spawner = null;
      for (const [id, machine] of this.#machines) {
        if (!machine.belongsTo(spawner)) continue;
        this.#machines.delete(id);
        machine.end({ reason: this.#closed ? "killed" : "lost", limits: { oom_killed: 0, pids: 0, disk_full: 0 }, kept: false });
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
    for (const { id, leaseMs } of this.#machines.values()) {
      if (leaseMs === null) continue;
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
    for (const [leaseMs, ids] of byLease) await spawner?.renew(ids, leaseMs).catch(() => undefined);
  }
}

function spawnerOptions({ graceMs, log }: NativeBackendOptions): { readonly graceMs?: number; readonly log?: (line: string) => void } {
  return { ...(graceMs === undefined ? {} : { graceMs }), ...(log === undefined ? {} : { log }) };
}

/** The spawner speaks of directories; here it is known what they were for. */
function creationError(error: unknown, spec: SandboxSpec): unknown {
  if (!(error instanceof MwError)) return error;
  const { facts, message } = error;
  if (spec.workspace !== undefined && message.includes(spec.workspace.id)) return new MwError("sandbox_gone", `There is no sealed workspace ${spec.workspace.id}: it was released, or its keeper died`, { cause: error, facts });
  if (["ENOENT", "ENOTDIR", "EACCES", "ELOOP"].includes(String(facts["native"]))) return new MwError("invalid_image", message, { cause: error, facts });
  return error;
}

function requestOf(id: SandboxId, spec: SandboxSpec, profile: "userns" | "namespaces", ttlMs: number): CreateMachine {
  const { root, cpus, memoryBytes, diskBytes, pids, network, services, hostname, workspace } = spec;
  const layers = spec.layers ?? [];
  return {
    id,
    profile,
    layers: [...layers.map((layer) => layer.path), ...root.layers],
    parts: layeredParts(layers, root.parts),
    ttlMs: Math.round(ttlMs),
    ...(workspace === undefined ? {} : { workspace: workspace.id }),
    ...(cpus === undefined ? {} : { cpus }),
    ...(memoryBytes === undefined ? {} : { memoryBytes }),
    ...(diskBytes === undefined ? {} : { diskBytes }),
    ...(pids === undefined ? {} : { pids }),
    ...(network === undefined ? {} : { network }),
    ...(services === undefined ? {} : { services }),
    ...(hostname === undefined ? {} : { hostname }),
  };
}

function capabilitiesOf({ hello }: Spawner): Capabilities {
  return {
    isolation: {
      backend: "native",
      profile: hello.userns ? "userns" : "namespaces",
      privileged: hello.privileged,
      enforced: { ...hello.enforced, disk: true },
    },
    networks: hello.publicNetwork ? ["none", "public"] : ["none"],
    users: hello.users,
    freeze: hello.freeze,
    seal: true,
    memorySnapshot: false,
    missing: { ...hello.missing, memorySnapshot: "this backend keeps files only" },
  };
}

/**
 * Machines of an E2B-compatible service: E2B itself, another Manyworlds, or anything else that speaks the protocol.
 *
 * Little is asked of the service: sandboxes from templates, with a lease and with or without the internet; snapshots of their files; and one process in each, whose input and output
 * are carried. In that process our own init runs, so commands and files do here what they do in a machine of this host.
 */
import { MwError } from "../../../core/errors.ts";
import { newId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { systemRuntime, type Runtime } from "../../../core/runtime.ts";
import { checkSpec } from "../../check-spec.ts";
import type { Capabilities, RootFilesystem, Sandbox, SandboxBackend, SandboxSpec, SnapshotStore, Workspace } from "../../sandbox.ts";
import { KeyedCreation } from "../keyed-creation.ts";
import { NO_SNAPSHOTS } from "../no-snapshots.ts";
import { prepareWorkdir } from "../native/workdir.ts";
import { ControlPlane, type RemoteSandbox } from "./control-plane.ts";
import { guestPrograms, type GuestPrograms } from "./guest-programs.ts";
import { RemoteHttp } from "./http.ts";
import { RemoteMachine, type RemoteMachineContext } from "./machine.ts";
import type { Scan } from "./scan.ts";
import { RemoteTemplates, SCRATCH } from "./templates.ts";
import { RemoteWorkspace } from "./workspace.ts";

export interface RemoteBackendOptions {
  /** Of the service's control plane. */
  readonly url: URL;
  /** Goes to the control plane and nowhere else. */
  readonly key: string;
  /** Of its data plane. Default: the control plane's, with `sandbox.` in place of a leading `api.`. */
  readonly sandboxUrl?: URL;
  /** What the service builds the first template from. Default: nothing, and images are sent. */
  readonly from?: string;
  readonly runtime?: Runtime;
  readonly log?: (line: string) => void;
}

/** Rejects when the service cannot be reached, or does not take the key. */
export async function openRemoteBackend(options: RemoteBackendOptions): Promise<RemoteBackend> {
  const backend = new RemoteBackend(options, guestPrograms());
  try {
    await backend.check();
    return backend;
  } catch (error) {
    await backend.close();
    if (error instanceof MwError && error.facts["unreached"] === true) throw new MwError("environment", `The sandbox service at ${options.url.origin} cannot be reached: ${error.message}`, { fix: "start it, or name another address with --backend remote:URL", cause: error });
    throw error;
  }
}

export class RemoteBackend implements SandboxBackend {
  readonly name = "remote";
  readonly capabilities: Capabilities;
  readonly snapshots: SnapshotStore = NO_SNAPSHOTS;
  readonly #runtime: Runtime;
  readonly #http: RemoteHttp;
  readonly #control: ControlPlane;
  readonly #templates: RemoteTemplates;
  readonly #context: RemoteMachineContext;
  readonly #machines = new Map<SandboxId, RemoteMachine>();
  /** Machines of our own, for looking at files; nobody else knows them. */
  readonly #helpers = new Map<SandboxId, RemoteMachine>();
  readonly #workspaces = new Map<SandboxId, RemoteWorkspace>();
  readonly #byKey = new KeyedCreation<RemoteMachine>();
  readonly #renewing: NodeJS.Timeout;
  #closed = false;

  constructor(options: RemoteBackendOptions, programs: GuestPrograms) {
    const runtime = options.runtime ?? systemRuntime;
    const log = options.log ?? ((line: string): void => void process.stderr.write(`${line}\n`));
    const data = options.sandboxUrl ?? dataPlaneOf(options.url);
    this.#runtime = runtime;
    this.capabilities = capabilitiesOf(options.url);
    this.#http = new RemoteHttp(runtime, options.key);
    this.#control = new ControlPlane(this.#http, options.url, options.key, runtime);
    this.#context = {
      control: this.#control,
      agent: (sandbox: RemoteSandbox) => ({ http: this.#http, base: data, ...sandbox }),
      programs,
      scanKey: runtime.randomBytes(16),
      runtime,
      capabilities: this.capabilities,
      forget: (id) => void (this.#machines.delete(id) || this.#helpers.delete(id)),
      seal: (machine) => this.#seal(machine),
    };
    this.#templates = new RemoteTemplates({
      control: this.#control,
      programs,
      from: options.from ?? SCRATCH,
      log,
      open: async (template) => {
        const machine = await this.#helper(template, false);
        return { sandboxID: machine.remote.sandboxID, applyLayer: (archive) => machine.applyWhole(archive, KERNELS), scan: () => machine.scan(), kill: () => machine.kill() };
      },
    });
    this.#renewing = setInterval(() => this.#renewAll(), RENEW_EVERY_MS).unref();
  }

  check(): Promise<void> {
    return this.#control.check();
  }

  async create(spec: SandboxSpec): Promise<Sandbox> {
    checkSpec(spec, this.capabilities);
    return this.#byKey.of(spec.key, () => this.#make(spec));
  }

  async bringImage(root: RootFilesystem): Promise<void> {
    await this.#templates.of(root);
  }

  async list(): ReturnType<SandboxBackend["list"]> {
    return [...this.#machines.values()].map(({ id, spec, createdAt, state }) => ({ id, labels: spec.labels ?? {}, createdAt, state }));
  }

  get(id: SandboxId): Sandbox | null {
    return this.#machines.get(id) ?? null;
  }

  async adoptPaused(id: SandboxId): Promise<Sandbox> {
    throw new MwError("not_found", `There is no paused sandbox ${id}`);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearInterval(this.#renewing);
    await Promise.all([...this.#workspaces.values()].map((workspace) => workspace.release()));
    const ends = [...this.#machines.values(), ...this.#helpers.values()].map((machine) => machine.kill().catch(() => machine.finish("lost")));
    await Promise.all(ends);
    await this.#http.close();
  }

  async #make(spec: SandboxSpec): Promise<RemoteMachine> {
    if (this.#machines.size >= LIMITS.sandboxesPerHost) throw new MwError("host_exhausted", `There are ${this.#machines.size} sandboxes already, which is the limit`);
    const machine = await this.#place(spec);
    try {
      await machine.begin(spec.workspace !== undefined);
      await prepareWorkdir(machine, machine.workdir, spec);
      return machine;
    } catch (error) {
      await machine.kill();
      throw error;
    }
  }

  async #place(spec: SandboxSpec): Promise<RemoteMachine> {
    if (spec.workspace !== undefined) {
      const workspace = this.#workspaces.get(spec.workspace.id);
      if (workspace === undefined) throw new MwError("sandbox_gone", `There is no sealed workspace ${spec.workspace.id}: it was released, or its keeper died`);
      const { template, scan } = await workspace.template();
      return this.#launch(spec, template, async () => scan, this.#machines);
    }
    const template = await this.#templates.of(spec.root);
    const base = (): Promise<Scan> => this.#templates.scan(template);
    try {
      return await this.#launch(spec, template, base, this.#machines);
    } catch (error) {
      if (!(error instanceof MwError) || error.code !== "not_found") throw error;
      // Somebody has removed it there.
      this.#templates.forget(spec.root);
      return this.#launch(spec, await this.#templates.of(spec.root), base, this.#machines);
    }
  }

  async #launch(spec: SandboxSpec, template: string, base: () => Promise<Scan>, into: Map<SandboxId, RemoteMachine>): Promise<RemoteMachine> {
    if (this.#closed) throw new MwError("sandbox_gone", "The sandbox backend is closed");
    const id = newId("sbx", this.#runtime);
    const sandbox = await this.#control.create({ template, ttlMs: spec.ttlMs ?? LIMITS.leaseDefaultMs, internet: spec.network === "public", metadata: spec.labels ?? {}, mark: id });
    const machine = new RemoteMachine(this.#context, id, spec, sandbox, template, base);
    into.set(id, machine);
    if (this.#closed) await machine.kill();
    return machine;
  }

  /** A machine of our own, without an image of its own. */
  async #helper(template: string, fresh: boolean): Promise<RemoteMachine> {
    const machine = await this.#launch({ root: BARE }, template, async () => new Map(), this.#helpers);
    try {
      await machine.begin(fresh);
      return machine;
    } catch (error) {
      await machine.kill();
      throw error;
    }
  }

  async #seal(machine: RemoteMachine): Promise<Workspace> {
    const base = machine.base();
    base.catch(() => undefined);
    // A process that is left could be in the snapshot, where the service keeps processes too.
    await machine.killProcesses();
    const snapshot = await this.#control.snapshot(machine.remote.sandboxID);
    await this.#control.kill(machine.remote.sandboxID);
    machine.finish("sealed");
    const workspace = await RemoteWorkspace.of(machine.id, {
      control: this.#control,
      snapshot,
      base: await base,
      open: (template, fresh) => this.#helper(template, fresh),
      baseTemplate: async () => machine.template,
      forget: (id) => this.#workspaces.delete(id),
    });
    this.#workspaces.set(machine.id, workspace);
    return workspace;
  }

  #renewAll(): void {
    for (const machine of [...this.#machines.values(), ...this.#helpers.values()]) {
      if (machine.needsRenewal) void machine.renewByItself().catch(() => undefined);
    }
  }
}

/** What a machine shows there is its kernel's, whatever the image has. */
const KERNELS: readonly string[] = ["proc", "sys", "dev"];

/** How often it is looked which leases are to be renewed. */
const RENEW_EVERY_MS = 500;

const BARE: RootFilesystem = { digest: "", layers: ["/"], parts: [], env: {}, workdir: "/", user: "", entrypoint: [], cmd: [] };

function dataPlaneOf(url: URL): URL {
  const data = new URL(url.href);
  if (data.hostname.startsWith("api.")) data.hostname = `sandbox.${data.hostname.slice("api.".length)}`;
  return data;
}

function capabilitiesOf(url: URL): Capabilities {
  const template = "the service's template decides, and says nothing of it";
  return {
    isolation: { backend: `remote:${url.host}`, profile: "remote", privileged: false, enforced: { cpu: false, memory: false, pids: false, disk: false } },
    networks: ["none", "public"],
    users: true,
    freeze: false,
    seal: true,
    export: false,
    snapshot: false,
    memorySnapshot: false,
    fork: false,
    pause: false,
    services: false,
    layers: false,
    hostname: false,
    guarded: false,
    missing: {
      cpu: template,
      memory: template,
      pids: template,
      disk: template,
      allowlist: "the proxy for it would have to be reached from inside, and nothing there leads back to this controller",
      freeze: "the protocol has no way to stop a machine in place",
      export: "attributes and whiteouts of its files cannot be had exactly through the protocol",
      snapshot: "what the service keeps stays with the service; its own clients can make snapshots",
      memorySnapshot: "what the service keeps stays with the service; its own clients can make snapshots",
      fork: "what the service keeps stays with the service; its own clients can fork",
      pause: "what the service keeps stays with the service; its own clients can pause",
      services: "nothing in a remote machine leads back to this controller",
      layers: "the protocol has no layers over a template",
      hostname: "the service gives the host name",
      guarded: "our init runs beside the agent's processes in a machine of the service's: root inside can end it",
    },
  };
}

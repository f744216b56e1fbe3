/**
 * Machines of an OCI runtime on this host: runc, crun, or another program with runc's command line.
 *
 * A controller has two directories named by its token: one in the data directory with the bundles, and one in the run directory with sockets and the runtime's state. Those of
 * controllers that have died are taken away by the next that opens the data directory.
 */
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, realpathSync, rmdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { promisify } from "node:util";
import { MwError } from "../../../core/errors.ts";
import { makeDataDirectory } from "../../../core/home.ts";
import { newId, type SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { systemRuntime, type Runtime } from "../../../core/runtime.ts";
import { holderLives, ownName } from "../../../image/holder.ts";
import { checkSpec } from "../../check-spec.ts";
import { type EgressProxy, openEgressProxy } from "../../egress/egress-proxy.ts";
import { EGRESS_PORT } from "../../exec-environment.ts";
import type { Capabilities, Sandbox, SandboxBackend, SandboxSpec, SnapshotStore } from "../../sandbox.ts";
import { KeyedCreation } from "../keyed-creation.ts";
import { NO_SNAPSHOTS } from "../no-snapshots.ts";
import { runDirectory } from "../native/run-directory.ts";
import { prepareWorkdir } from "../native/workdir.ts";
import { layersOf, makeBundle, makeCommonParts, type CommonParts } from "./bundle.ts";
import { groupsNamed, groupsOccupied, heldByGroups } from "./control-groups.ts";
import { OciMachine, type OciMachineContext } from "./machine.ts";
import { askRuntime, findRuntime, type OciRuntime } from "./runtime.ts";
import { OciWorkspaces, uppersFrom, type Kept } from "./workspaces.ts";

export interface OciBackendOptions {
  /** The data directory, made when missing; machines write below it. Several backends may use it at once. */
  readonly home: string;
  /** The runtime's name on PATH, or its absolute path. Default: runc, else crun. */
  readonly program?: string;
  readonly runtime?: Runtime;
}

/** Rejects `environment` when this host, or this user, cannot make machines in this way. */
export async function openOciBackend(options: OciBackendOptions): Promise<OciBackend> {
  if (process.platform !== "linux" || process.getuid?.() !== 0) throw new MwError("environment", "Machines of an OCI runtime are made by root on Linux alone", { fix: "run mw as root, or leave --backend out: the native backend works for ordinary users" });
  const oci = await findRuntime(options.program ?? null);
  if (groupsOccupied()) {
    throw new MwError("environment", "The group at the top of /sys/fs/cgroup, as seen from here, holds processes, as in most containers: a runtime cannot make groups for machines in it", {
      fix: "mkdir /sys/fs/cgroup/init; for p in $(cat /sys/fs/cgroup/cgroup.procs); do echo $p > /sys/fs/cgroup/init/cgroup.procs; done",
    });
  }
  makeDataDirectory(options.home);
  const run = `${runDirectory(options.home)}.oci`;
  await sweep(options.home, run);
  return new OciBackend(options, oci, run);
}

export class OciBackend implements SandboxBackend {
  readonly name = "oci";
  readonly capabilities: Capabilities;
  readonly snapshots: SnapshotStore = NO_SNAPSHOTS;
  readonly #runtime: Runtime;
  readonly #run: string;
  readonly #own: { readonly disk: string; readonly run: string };
  readonly #group: string;
  readonly #common: CommonParts;
  readonly #context: OciMachineContext;
  readonly #workspaces: OciWorkspaces;
  readonly #machines = new Map<SandboxId, OciMachine>();
  readonly #byKey = new KeyedCreation<OciMachine>();
  #egress: Promise<EgressProxy> | null = null;
  #closed = false;

  constructor({ home, runtime = systemRuntime }: OciBackendOptions, oci: OciRuntime, run: string) {
    const token = ownName();
    this.#runtime = runtime;
    this.#run = run;
    // A layer of an overlay is named by where it really is.
    this.#own = { disk: join(realpathSync(home), "oci", token), run: join(run, token) };
    this.#group = groupOf(run);
    mkdirSync(join(this.#own.run, "state"), { recursive: true, mode: 0o700 });
    // Beside a machine's files, for whoever has to take them away.
    writeFileSync(join(this.#own.run, "runtime"), oci.path);
    mkdirSync(this.#own.disk, { recursive: true, mode: 0o700 });
    this.#common = makeCommonParts(this.#own.disk);
    this.#workspaces = new OciWorkspaces(this.#own.run, remove);
    this.capabilities = capabilitiesOf(oci);
    this.#context = {
      runtime,
      oci,
      state: join(this.#own.run, "state"),
      sockets: this.#own.run,
      group: this.#group,
      capabilities: this.capabilities,
      workspaces: this.#workspaces,
      remove,
      forget: (machine) => {
        this.#machines.delete(machine.id);
        void this.#egress?.then((proxy) => proxy.forget(machine.id), () => undefined);
      },
    };
  }

  async create(spec: SandboxSpec): Promise<Sandbox> {
    checkSpec(spec, this.capabilities);
    return this.#byKey.of(spec.key, () => this.#make(spec));
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
    await Promise.all([...this.#machines.values()].map((machine) => machine.kill()));
    await this.#workspaces.close();
    await (await this.#egress?.catch(() => null))?.close();
    await remove(this.#own.disk);
    await remove(this.#own.run);
    removeEmpty(this.#run);
  }

  async #make(spec: SandboxSpec): Promise<OciMachine> {
    if (this.#closed) throw new MwError("sandbox_gone", "The sandbox backend is closed");
    if (this.#machines.size >= LIMITS.sandboxesPerHost) throw new MwError("host_exhausted", `There are ${this.#machines.size} sandboxes already, which is this host's limit`);
    const machine = await this.#launch(spec);
    try {
      await prepareWorkdir(machine, machine.workdir, spec);
      return machine;
    } catch (error) {
      await machine.kill();
      throw error;
    }
  }

  async #launch(spec: SandboxSpec): Promise<OciMachine> {
    const id = newId("sbx", this.#runtime);
    const directory = join(this.#own.disk, id);
    const proxy = spec.network === "allowlist" ? await this.#openEgress() : null;
    const services = [...(spec.services ?? []), ...(proxy === null ? [] : [{ port: EGRESS_PORT, target: proxy.socketPath }])];
    const base = spec.workspace === undefined ? null : this.#workspaces.use(spec.workspace.id);
    const kept: Kept = { id, directory, base, layers: layersOf(spec) };
    let setup: readonly string[];
    try {
      mkdirSync(directory, { mode: 0o700 });
      setup = makeBundle(directory, id, spec, { workspaces: uppersFrom(base), common: this.#common, group: this.#group, services });
    } catch (error) {
      await remove(directory);
      await this.#workspaces.leave(base);
      throw error;
    }
    // Known to the proxy, with its list, before it can ask.
    const machine = new OciMachine(this.#context, kept, spec, proxy?.admit(id, spec.allow ?? []));
    this.#machines.set(id, machine);
    await machine.launch(setup);
    if (this.#closed) await machine.kill();
    return machine;
  }

  /** Opened with the first machine that needs it; one that failed is tried again. */
  #openEgress(): Promise<EgressProxy> {
    const opening = this.#egress ?? openEgressProxy({ socketPath: join(this.#own.run, "egress.sock"), runtime: this.#runtime });
    this.#egress = opening;
    opening.catch(() => (this.#egress = null));
    return opening;
  }
}

/** What agents wrote may be deeper than a path is long, which this program does not mind. */
async function remove(path: string): Promise<void> {
  await promisify(execFile)("rm", ["-rf", "--", path]);
}

/** Control groups of a data directory's machines. */
function groupOf(run: string): string {
  return `manyworlds-oci-${basename(run, ".oci")}`;
}

/** Ends what machines of controllers that have died are left, and takes their files away. */
async function sweep(home: string, run: string): Promise<void> {
  const disk = join(home, "oci");
  const dead = [...new Set([...names(disk), ...names(run)])].filter((token) => !holderLives(token));
  for (const token of dead) {
    const own = join(run, token);
    const path = existsSync(join(own, "runtime")) ? readFileSync(join(own, "runtime"), "utf8") : null;
    for (const id of path === null ? [] : names(join(own, "state"))) {
      // One whose runtime is about to take it away is gone meanwhile.
      await askRuntime({ name: basename(path ?? ""), path: path ?? "", version: "" }, join(own, "state"), ["delete", "--force", id]).catch(() => undefined);
    }
    await remove(join(disk, token));
    await remove(own);
  }
  removeEmpty(run);
}

/** Directories and groups that no controller uses. */
function removeEmpty(run: string): void {
  for (const path of [run, ...groupsNamed(groupOf(run))]) {
    try {
      rmdirSync(path);
    } catch {
      // Somebody else's machines are in it.
    }
  }
}

function names(directory: string): readonly string[] {
  return existsSync(directory) ? readdirSync(directory) : [];
}

function capabilitiesOf(oci: OciRuntime): Capabilities {
  const { cpu, memory, pids, freeze } = heldByGroups();
  const groups = "this host has no control groups for it";
  const kept = "the native backend keeps machines; here only sealed workspaces are kept";
  return {
    isolation: { backend: `oci:${oci.name}`, profile: "namespaces", privileged: true, enforced: { cpu, memory, pids, disk: false } },
    networks: ["none", "allowlist"],
    users: true,
    freeze,
    seal: true,
    export: true,
    snapshot: false,
    memorySnapshot: false,
    fork: false,
    pause: false,
    services: true,
    layers: true,
    hostname: true,
    guarded: true,
    missing: {
      ...(cpu ? {} : { cpu: groups }),
      ...(memory ? {} : { memory: groups }),
      ...(pids ? {} : { pids: groups }),
      disk: "machines write into directories of this host, which have no size of their own",
      public: "no way out is made for these machines",
      ...(freeze ? {} : { freeze: groups }),
      snapshot: kept,
      memorySnapshot: kept,
      fork: kept,
      pause: kept,
      userns: "the runtime gives these machines no user ids of their own",
    },
  };
}

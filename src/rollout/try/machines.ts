/** The machines of one try: made as its task asks, and gone with it. */
import { withDeadline } from "../../core/deadline.ts";
import { MwError, toMwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { defaultLimits } from "../../sandbox/default-limits.ts";
import type { LayerMount, RootFilesystem, Sandbox, SandboxSpec, Workspace } from "../../sandbox/sandbox.ts";
import { machineNetwork, networkSpec, phasesFrom, type PhaseNetwork } from "../../task/network.ts";
import { CheckpointLost, type Restored } from "../checkpoint/restore.ts";
import { keepsCheckpoints, type TryRequest, type TryServices } from "./request.ts";

/** Of a machine that cannot be made now, but may be in a moment. */
const PASSING: ReadonlySet<string> = new Set(["cancelled", "host_exhausted", "timeout", "busy", "sandbox_gone"]);

export class TryMachines {
  /** Of the harness, over the task's image; set before the first machine is made. */
  layers: readonly LayerMount[] = [];
  readonly #services: TryServices;
  readonly #request: TryRequest;
  readonly #sandboxes: Sandbox[] = [];
  readonly #workspaces: Workspace[] = [];

  constructor(services: TryServices, request: TryRequest) {
    this.#services = services;
    this.#request = request;
  }

  /** `step`: the first that the machine is for. */
  async create(root: RootFilesystem, workspace: Workspace | null, step = 0, from: Pick<SandboxSpec, "snapshot" | "snapshotFilesOnly"> = {}): Promise<Sandbox> {
    const { runtime, backend } = this.#services;
    const { signal } = this.#request;
    signal.throwIfAborted();
    const creating = backend.create({ ...this.#spec(root, workspace, step), ...from });
    try {
      const sandbox = await withDeadline(runtime, LIMITS.leaseTimeoutMs, "making the machine", signal, () => creating);
      this.#sandboxes.push(sandbox);
      return sandbox;
    } catch (error) {
      // One that comes too late is ended, not forgotten.
      creating.then((late) => late.kill()).catch(() => undefined);
      throw error;
    }
  }

  /** One that an earlier controller made. */
  adopt(sandbox: Sandbox): void {
    this.#sandboxes.push(sandbox);
  }

  /** The machine as its checkpoint has it. What is wrong with the checkpoint itself is told from what only the host lacks now. */
  async restore(root: RootFilesystem, { checkpoint: { turn, image, snapshot, memory } }: Restored): Promise<Sandbox> {
    if (root.digest !== image) throw new CheckpointLost(turn, `its machine stood on the image ${image}, which is ${root.digest} now`);
    try {
      return await this.create(root, null, 0, { snapshot, snapshotFilesOnly: !memory });
    } catch (error) {
      const { code, message } = toMwError(error);
      throw PASSING.has(code) ? error : new CheckpointLost(turn, `its machine cannot be made again: ${message}`, error);
    }
  }

  /** Released with the try. */
  keep(workspace: Workspace): void {
    this.#workspaces.push(workspace);
  }

  async end(): Promise<void> {
    // A machine that will not die is the reaper's; the rollout's end does not wait for it for ever.
    await withDeadline(this.#services.runtime, LIMITS.killProcessesTimeoutMs, "ending the machine", undefined, async () => {
      await Promise.all(this.#sandboxes.map((sandbox) => sandbox.kill()));
      await Promise.all(this.#workspaces.map((workspace) => workspace.release()));
    }).catch(() => undefined);
  }

  #spec(root: RootFilesystem, workspace: Workspace | null, step: number): SandboxSpec {
    const { task, run, rollout, harness } = this.#request;
    const { model } = this.#services;
    const { environment } = task;
    return {
      root,
      layers: this.layers,
      services: harness.callsFromMachine === true && model !== null ? [model.service] : [],
      ...(workspace === null ? {} : { workspace }),
      ...(keepsCheckpoints(this.#services, this.#request) && this.#services.backend.capabilities.memorySnapshot ? { checkpointable: true } : {}),
      ...(environment.cpus === null ? {} : { cpus: environment.cpus }),
      ...(environment.memoryBytes === null ? {} : { memoryBytes: environment.memoryBytes }),
      ...(environment.diskBytes === null ? {} : { diskBytes: environment.diskBytes }),
      ...defaultLimits(this.#services.backend.capabilities),
      ...networkSpec(this.#machineNetwork(step)),
      env: this.#services.expandEnv(environment.env, "[environment.env]"),
      ...(environment.workdir === null ? {} : { workdir: environment.workdir }),
      labels: { run, rollout },
      key: `${rollout}-${this.#request.try}-${this.#sandboxes.length}`,
    };
  }

  #machineNetwork(step: number): PhaseNetwork {
    const { task } = this.#request;
    const network = machineNetwork(phasesFrom(task, step, this.#services.networkOverride));
    // Asked before anything of the rollout started.
    if (network === null) throw new MwError("unsupported", `no machine can have all the networks that the task ${task.name} asks for`);
    return network;
  }
}

/**
 * One try at one rollout, from its machine to its verdict. Each event is durable before the step that follows it starts. What fails is attributed to the phase in which it
 * failed; what the agent did to itself (used up its memory, filled its disk, killed its own processes) is no failure and is verified like any other work.
 */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { startDeadline, withDeadline } from "../core/deadline.ts";
import { MwError, toMwError } from "../core/errors.ts";
import type { RolloutId, RunId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Outcome, StopReason } from "../core/outcome.ts";
import type { Runtime } from "../core/runtime.ts";
import { AGENT_CAN_CAUSE } from "../harness/command.ts";
import type { Budgets, Harness, HarnessEnd } from "../harness/harness.ts";
import { diedOfMemory } from "../sandbox/died.ts";
import type { LayerMount, RootFilesystem, Sandbox, SandboxBackend, SandboxSpec, Workspace } from "../sandbox/sandbox.ts";
import type { Task, Verdict } from "../task/task.ts";
import type { Verifier, VerifyRequest, VerifyResult } from "../task/verify/verify.ts";
import { collectArtifacts } from "./artifacts.ts";
import { attribute, type WorkPhase } from "./attribution.ts";
import type { RunEvent } from "./events.ts";
import { waitHealthy } from "./health-check.ts";
import type { AgentSession, ModelAccess } from "./model-access.ts";
import { PauseOnThink } from "./pause-on-think.ts";
import { machineNetwork } from "./preflight.ts";
import type { RolloutRecorder } from "./recorder.ts";
import { stepsOf, stepReward, type StepWork } from "./steps.ts";
import type { TaskImages } from "./task-images.ts";

export interface TryServices {
  readonly runtime: Runtime;
  readonly backend: SandboxBackend;
  readonly images: TaskImages;
  readonly verifier: Verifier;
  /** By name of the harness: what its machines have over the task's image. */
  readonly harnessLayers: ReadonlyMap<string, readonly LayerMount[]>;
  readonly model: ModelAccess | null;
  readonly budgets: Omit<Budgets, "timeMs">;
  readonly networkOverride: "none" | "public" | null;
  readonly timeoutMultiplier: number;
  readonly keepWorkspace: boolean;
  readonly pauseOnThink: boolean;
  /** Resolves `${VAR}` of a task's environment table. */
  readonly expandEnv: (env: Readonly<Record<string, string>>, where: string) => Readonly<Record<string, string>>;
}

export interface TryRequest {
  readonly run: RunId;
  readonly rollout: RolloutId;
  readonly try: number;
  readonly task: Task;
  readonly harness: Harness;
  readonly seed: string;
  readonly recorder: RolloutRecorder;
  readonly emit: (event: RunEvent) => Promise<void>;
  readonly signal: AbortSignal;
}

export interface TryResult {
  readonly outcome: Outcome;
  readonly reward: number | null;
  readonly rewards: Readonly<Record<string, number>>;
  readonly stopReason: StopReason | null;
  readonly error: MwError | null;
}

/** Never rejects for what can happen to a rollout; rejects when the log or the rollout's directory cannot be written. */
export async function runTry(services: TryServices, request: TryRequest): Promise<TryResult> {
  const work = new Try(services, request);
  try {
    return await work.run();
  } catch (error) {
    if (error instanceof LogFailure) throw error.cause;
    return { outcome: attribute(work.phase, error), reward: null, rewards: {}, stopReason: work.stopReason, error: toMwError(error) };
  } finally {
    await work.cleanUp();
  }
}

/** What the agent left: the files are the workspace's where that is there, else still in the machine. */
type Remains = Pick<VerifyRequest, "sandbox" | "workspace">;

/** Keeps a failure of the log apart from those of the rollout. */
class LogFailure extends Error {}

class Try {
  phase: WorkPhase = "image";
  stopReason: StopReason | null = null;
  readonly #services: TryServices;
  readonly #request: TryRequest;
  readonly #machines: Sandbox[] = [];
  readonly #workspaces: Workspace[] = [];

  constructor(services: TryServices, request: TryRequest) {
    this.#services = services;
    this.#request = request;
  }

  async run(): Promise<TryResult> {
    const { task, recorder } = this.#request;
    if (task.steps.length === 0) await recorder.write("instruction.md", task.instruction);
    for (const step of task.steps) await recorder.write(`instruction-${step.name}.md`, step.instruction);
    const root = await this.#services.images.root(task.environment);
    const steps = stepsOf(task);
    const verdicts: Verdict[] = [];
    let sandbox = await this.#create(root, null);
    await this.#emit({ type: "rollout_leased", sandbox: sandbox.id, image: root.digest, isolation: sandbox.isolation, network: sandbox.spec.network ?? "none" });
    await this.#prepare(sandbox, root);
    await this.#emit({ type: "rollout_prepared" });
    for (const [index, step] of steps.entries()) {
      const broken = await this.#prepareStep(sandbox, root, index);
      await this.#agent(sandbox, step, broken, index > 0);
      const left = await this.#remains(sandbox, step, root);
      ({ sandbox } = left);
      const last = index === steps.length - 1;
      const { verdict, workspace } = await this.#verify(left, step, root, !last);
      if (workspace !== null) this.#workspaces.push(workspace);
      verdicts.push(verdict);
      if (verdict.status !== "scored") return this.#verifierFailed(verdict);
      if (last || !step.passes(verdict)) break;
      // A machine that was sealed for grading goes on as a new one with the same files.
      if (workspace !== null) sandbox = await this.#create(root, workspace);
    }
    const { reward, rewards } = stepReward(task, verdicts, steps.length);
    return { outcome: "scored", reward, rewards, stopReason: this.stopReason, error: null };
  }

  async cleanUp(): Promise<void> {
    // A machine that will not die is the reaper's; the rollout's end does not wait for it for ever.
    await withDeadline(this.#services.runtime, LIMITS.killProcessesTimeoutMs, "ending the machine", undefined, async () => {
      await Promise.all(this.#machines.map((sandbox) => sandbox.kill()));
      await Promise.all(this.#workspaces.map((workspace) => workspace.release()));
    }).catch(() => undefined);
  }

  async #create(root: RootFilesystem, workspace: Workspace | null): Promise<Sandbox> {
    this.phase = "lease";
    const { runtime, backend } = this.#services;
    const { signal } = this.#request;
    signal.throwIfAborted();
    const creating = backend.create(this.#spec(root, workspace));
    try {
      const sandbox = await withDeadline(runtime, LIMITS.leaseTimeoutMs, "making the machine", signal, () => creating);
      this.#machines.push(sandbox);
      return sandbox;
    } catch (error) {
      // One that comes too late is ended, not forgotten.
      creating.then((late) => late.kill()).catch(() => undefined);
      throw error;
    }
  }

  #spec(root: RootFilesystem, workspace: Workspace | null): SandboxSpec {
    const { task, run, rollout, harness } = this.#request;
    const { model } = this.#services;
    const { environment } = task;
    return {
      root,
      layers: this.#services.harnessLayers.get(harness.name) ?? [],
      services: harness.callsFromMachine === true && model !== null ? [model.service] : [],
      ...(workspace === null ? {} : { workspace }),
      ...(environment.cpus === null ? {} : { cpus: environment.cpus }),
      ...(environment.memoryBytes === null ? {} : { memoryBytes: environment.memoryBytes }),
      ...(environment.diskBytes === null ? {} : { diskBytes: environment.diskBytes }),
      pids: LIMITS.sandboxPids,
      network: machineNetwork(task, this.#services.networkOverride),
      env: this.#services.expandEnv(environment.env, "[environment.env]"),
      ...(environment.workdir === null ? {} : { workdir: environment.workdir }),
      labels: { run, rollout },
      key: `${rollout}-${this.#request.try}-${this.#machines.length}`,
    };
  }

  async #prepare(sandbox: Sandbox, root: RootFilesystem): Promise<void> {
    this.phase = "prepare";
    const { task, signal } = this.#request;
    const { environment } = task;
    await withDeadline(this.#services.runtime, LIMITS.prepareTimeoutMs, "preparing the machine", signal, async (inner) => {
      if (environment.dockerfile === null && (await hasFiles(environment.context))) {
        await upload(sandbox, environment.context, environment.workdir ?? root.workdir, "environment/", inner);
      }
      if (environment.healthcheck !== null) await waitHealthy(sandbox, environment.healthcheck, this.#services.runtime, inner);
    });
  }

  /**
   * Files and health check that a step of its own brings. What fails where the agent of an earlier step was, but not in a pristine machine, that agent has broken: it is returned in
   * words, and what is there will be graded.
   */
  async #prepareStep(sandbox: Sandbox, root: RootFilesystem, index: number): Promise<string | null> {
    this.phase = "prepare";
    const steps = stepsOf(this.#request.task).slice(0, index + 1);
    try {
      for (const step of steps.slice(-1)) await this.#setUp(sandbox, step);
      return null;
    } catch (error) {
      if (index === 0 || attribute("prepare", error) !== "task_error") throw error;
      const pristine = await this.#create(root, null);
      await this.#prepare(pristine, root);
      for (const step of steps) await this.#setUp(pristine, step);
      await pristine.kill();
      return `The step could not be set up on what earlier ones left: ${toMwError(error).message}`;
    }
  }

  async #setUp(sandbox: Sandbox, step: StepWork): Promise<void> {
    const { runtime } = this.#services;
    await withDeadline(runtime, LIMITS.prepareTimeoutMs, `preparing the step ${step.name ?? ""}`, this.#request.signal, async (signal) => {
      if (step.files !== null) {
        const workdir = this.#request.task.environment.workdir ?? sandbox.spec.root.workdir;
        await upload(sandbox, step.files, workdir, `steps/${step.name}/workdir/`, signal);
        const setup = join("/", workdir, "setup.sh");
        if ((await sandbox.files.stat(setup)) !== null) {
          const { code, stderr } = await sandbox.run({ command: ["/bin/sh", setup], signal });
          if (code !== 0) throw new MwError("invalid_task", `steps/${step.name}/workdir/setup.sh exited with ${code}: ${new TextDecoder().decode(stderr).slice(-500)}`);
        }
      }
      if (step.healthcheck !== null) await waitHealthy(sandbox, step.healthcheck, runtime, signal);
    });
  }

  /** `broken`: why the agent cannot even begin. `agentWasHere`: an earlier step's has worked in this machine, or on its files. */
  async #agent(sandbox: Sandbox, step: StepWork, broken: string | null, agentWasHere: boolean): Promise<void> {
    this.phase = "agent";
    // Nothing starts in a rollout that is over: a harness that is only told of an abort would never hear of one that came before it.
    this.#request.signal.throwIfAborted();
    await this.#emit({ type: "rollout_running", step: step.name });
    if (broken !== null) {
      this.stopReason = "crashed";
      await this.#emit({ type: "rollout_ended", step: step.name, stopReason: "crashed", detail: broken, ...NO_WORK, cpuMs: null, frozenMs: 0 });
      return;
    }
    const agent = await this.#openSession(sandbox);
    const { runtime, pauseOnThink } = this.#services;
    const pause = pauseOnThink && agent !== null ? new PauseOnThink(sandbox, agent.session, runtime) : null;
    const cpuBefore = await cpuMsOf(sandbox);
    let end;
    let frozenMs = 0;
    try {
      end = await this.#drive(sandbox, step, agent, pause, agentWasHere);
    } finally {
      frozenMs = (await pause?.stop()) ?? 0;
      // Before anything of the agent's is collected.
      await agent?.close();
    }
    const cpuAfter = await cpuMsOf(sandbox);
    this.stopReason = end.stopReason;
    // An interrupted rollout is not graded half done: it is tried again.
    this.#request.signal.throwIfAborted();
    await this.#emit({ type: "rollout_ended", step: step.name, ...end, cpuMs: cpuBefore === null || cpuAfter === null ? null : cpuAfter - cpuBefore, frozenMs });
  }

  async #openSession(sandbox: Sandbox): Promise<AgentSession | null> {
    const { model, budgets } = this.#services;
    const { harness, recorder, rollout, seed } = this.#request;
    if (model === null || !harness.needsModel) return null;
    return await model.session({
      label: rollout,
      seed,
      sandbox: sandbox.id,
      // The agent's time is watched here.
      budgets: { calls: budgets.turns, tokens: budgets.tokens, timeMs: null },
      log: recorder.calls,
    });
  }

  async #drive(sandbox: Sandbox, step: StepWork, agent: AgentSession | null, pause: PauseOnThink | null, agentWasHere: boolean): Promise<HarnessEnd> {
    const { runtime, budgets, timeoutMultiplier } = this.#services;
    const { harness, recorder, seed, signal, task } = this.#request;
    const timeMs = step.agentTimeoutMs === null ? LIMITS.agentTimeoutMs : step.agentTimeoutMs * timeoutMultiplier;
    const startedAt = runtime.monotonic();
    const agentTime = startDeadline(runtime, timeMs, "the agent", signal);
    // A machine that stands still can end nothing.
    agentTime.signal.addEventListener("abort", () => void pause?.stop(), { once: true });
    try {
      const running = harness.run({
        sandbox,
        instruction: step.instruction,
        solution: harness.usesSolution === true ? { ...step.solution, env: this.#services.expandEnv(step.solution.env, "[solution.env]") } : { directory: null, env: {} },
        user: step.agentUser,
        workdir: task.environment.workdir,
        session: agent?.session ?? null,
        endpoint: agent?.endpoint ?? null,
        budgets: { ...budgets, timeMs },
        seed,
        recorder,
        runtime,
        signal: agentTime.signal,
      });
      return await withDeadline(runtime, timeMs + LIMITS.harnessGraceMs, `the harness ${harness.name}, after being told to stop,`, undefined, () => running);
    } catch (error) {
      const ownFault = (await this.#agentFault(sandbox, error)) ?? (agentWasHere ? faultOfEarlierStep(error) : null);
      if (ownFault !== null) return { ...ownFault, ...NO_WORK, toolMs: Math.round(runtime.monotonic() - startedAt) };
      throw error;
    } finally {
      agentTime.clear();
    }
  }

  /** Whether the agent brought the failure about itself, by using up what its machine had: then its work is graded as it is. */
  async #agentFault(sandbox: Sandbox, error: unknown): Promise<Pick<HarnessEnd, "stopReason" | "detail"> | null> {
    const { code, message } = toMwError(error);
    if (code === "host_exhausted" || code === "upstream_failed" || code === "cancelled") return null;
    const metrics = await sandbox.metrics().catch(() => null);
    if (metrics === null) return (await diedOfMemory(sandbox, this.#services.runtime)) ? { stopReason: "oom_killed", detail: `The machine died of the memory that was used up in it: ${message}` } : null;
    if (metrics.limits.oom_killed > 0) return { stopReason: "oom_killed", detail: `The machine's memory was used up: ${message}` };
    if (metrics.limits.disk_full > 0) return { stopReason: "crashed", detail: `The machine's disk was full: ${message}` };
    if (metrics.limits.pids > 0) return { stopReason: "crashed", detail: `The machine's processes were used up: ${message}` };
    return null;
  }

  /** Collects from the agent's machine or, where that died as a whole of the memory that was used up in it, from another one on the files that it left. */
  async #remains(sandbox: Sandbox, step: StepWork, root: RootFilesystem): Promise<Remains> {
    try {
      await this.#collect(sandbox, step, root);
      return { sandbox };
    } catch (error) {
      if (!isGone(error) || !(await diedOfMemory(sandbox, this.#services.runtime))) throw error;
    }
    const workspace = await sandbox.seal();
    this.#workspaces.push(workspace);
    await this.#request.recorder.note("the machine died of the memory that was used up in it; what it left is verified, its processes and what collect commands would have said are lost");
    const reader = await this.#create(root, workspace);
    await this.#collect(reader, { ...step, collect: [] }, root);
    return { sandbox: reader, workspace };
  }

  async #collect(sandbox: Sandbox, step: StepWork, root: RootFilesystem): Promise<void> {
    this.phase = "collect";
    const { runtime } = this.#services;
    const { recorder, signal, task } = this.#request;
    await this.#runHooks(sandbox, step);
    if (!step.keepsProcesses) await withDeadline(runtime, LIMITS.killProcessesTimeoutMs, "ending the agent's processes", signal, () => sandbox.killProcesses());
    const directory = step.name === null ? recorder.directory : join(recorder.directory, "steps", step.name);
    const workdir = task.environment.workdir ?? root.workdir;
    const entries = await this.#artifacts(sandbox, step, workdir, directory);
    if (entries.length > 0) await recorder.write(step.name === null ? "artifacts.json" : `artifacts-${step.name}.json`, `${JSON.stringify(entries, null, 2)}\n`);
    await this.#emit({
      type: "rollout_collected",
      step: step.name,
      artifacts: entries.reduce((sum, entry) => sum + entry.entries, 0),
      artifactBytes: entries.reduce((sum, entry) => sum + entry.bytes, 0),
      refused: entries.reduce((sum, entry) => sum + entry.refused.length, 0),
    });
  }

  /** What takes longer than all of them may is not collected: the agent can leave as much as it likes. Only work that does not end on its signal is a failure of ours. */
  async #artifacts(sandbox: Sandbox, step: StepWork, workdir: string, directory: string): Promise<Awaited<ReturnType<typeof collectArtifacts>>> {
    const { runtime } = this.#services;
    const { signal } = this.#request;
    return await withDeadline(runtime, LIMITS.collectTimeoutMs + LIMITS.harnessGraceMs, "collecting artifacts", signal, async (outer) => {
      const deadline = startDeadline(runtime, LIMITS.collectTimeoutMs, "collecting the artifacts", outer);
      try {
        return await collectArtifacts(sandbox, step.artifacts, workdir, directory, deadline.signal);
      } finally {
        deadline.clear();
      }
    });
  }

  /** Commands that write living state to files, before the processes end. Best effort: the verdict shows what is missing. */
  async #runHooks(sandbox: Sandbox, step: StepWork): Promise<void> {
    const { recorder, signal } = this.#request;
    for (const { command, timeoutMs, user } of step.collect) {
      const options = { command, timeoutMs: timeoutMs * this.#services.timeoutMultiplier, ...(user === null ? {} : { user }), maxOutputBytes: LIMITS.healthcheckOutputBytes, signal };
      const { code, ended } = await sandbox.run(options).catch((error: unknown) => {
        // The agent may have taken away its directory or its user, or all processes: then the command failed like any other.
        if (error instanceof MwError && AGENT_CAN_CAUSE.has(error.code)) return { code: 126, ended: "exited" } as const;
        throw error;
      });
      signal.throwIfAborted();
      if (ended !== "exited" || code !== 0) await recorder.note(`the collect command ${JSON.stringify(command)} ${ended === "exited" ? `exited with ${code}` : `was ${ended}`}`);
    }
  }

  async #verify(left: Remains, step: StepWork, root: RootFilesystem, keepWorkspace: boolean): Promise<VerifyResult> {
    this.phase = "verify";
    const { runtime, verifier, timeoutMultiplier, networkOverride } = this.#services;
    const { recorder, signal, task } = this.#request;
    // On the agent's workspace, perhaps again on a pristine one, and what surrounds them.
    const limitMs = 2 * step.verifierTimeoutMs * timeoutMultiplier + LIMITS.verifyOverheadMs;
    const directory = step.name === null ? recorder.directory : join(recorder.directory, "steps", step.name);
    const network = task.verifier.network === "public" || task.verifier.network === "none" ? task.verifier.network : machineNetwork(task, networkOverride);
    const archive = this.#services.keepWorkspace ? { workspaceArchive: join(directory, "workspace.tar") } : {};
    const result = await withDeadline(runtime, limitMs, "verification", signal, (inner) =>
      verifier.verify({ task, step: step.name, ...left, root, directory, network: networkOverride ?? network, timeoutMultiplier, signal: inner, keepWorkspace, ...archive }),
    );
    const { verdict } = result;
    await recorder.write(step.name === null ? "verdict.json" : `verdict-${step.name}.json`, `${JSON.stringify(verdict, null, 2)}\n`);
    await this.#emit({ type: "rollout_verified", step: step.name, status: verdict.status, reward: verdict.reward, verifierDigest: verdict.verifierDigest });
    return result;
  }

  #verifierFailed(verdict: Verdict): TryResult {
    const message = `the verifier gave no usable reward: ${verdict.error?.message ?? verdict.error?.kind ?? "unknown"}`;
    return { outcome: "verifier_error", reward: null, rewards: {}, stopReason: this.stopReason, error: new MwError("invalid_task", message, { fix: "see verifier/ in the rollout's directory; mw task check DIR tries the task's verifier" }) };
  }

  async #emit(event: DistributiveOmit<Extract<RunEvent, { readonly rollout: RolloutId }>, "rollout" | "try">): Promise<void> {
    const { emit, rollout } = this.#request;
    try {
      // Every member of the union takes the two fields that are added.
      await emit({ ...event, rollout, try: this.#request.try });
    } catch (error) {
      throw new LogFailure("the log", { cause: error });
    }
  }
}

const NO_WORK = { turns: 0, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0 } as const;

/** What keeps a harness that has worked before in this rollout from starting again is what it did there, unless the task's new words are the matter. */
function faultOfEarlierStep(error: unknown): Pick<HarnessEnd, "stopReason" | "detail"> | null {
  const { code, message } = toMwError(error);
  return code === "environment" || AGENT_CAN_CAUSE.has(code) ? { stopReason: "crashed", detail: `What an earlier step left keeps the agent from working: ${message}` } : null;
}

/** Whether the failure may be the end of the machine. */
function isGone(error: unknown): boolean {
  return error instanceof MwError && (error.code === "sandbox_gone" || error.code === "sandbox_failed");
}

/** Null where nobody counts, or the machine is gone. */
async function cpuMsOf(sandbox: Sandbox): Promise<number | null> {
  return await sandbox.metrics().then(
    ({ cpuMs }) => cpuMs,
    () => null,
  );
}

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

async function upload(sandbox: Sandbox, from: string, to: string, what: string, signal: AbortSignal): Promise<void> {
  const report = await sandbox.files.upload(from, to, { signal });
  const [first] = report.refused;
  if (first !== undefined) throw new MwError("invalid_task", `${what} cannot be uploaded: ${first.path}: ${first.reason}`, { fix: "take it out of the task" });
}

async function hasFiles(directory: string): Promise<boolean> {
  const names = await readdir(directory).catch(() => []);
  return names.length > 0;
}

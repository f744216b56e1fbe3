/**
 * One try at one rollout, from its machine to its verdict. Each event is durable before the step that follows it starts. What fails is attributed to the phase in which it
 * failed; what the agent did to itself (used up its memory, filled its disk, killed its own processes) is no failure and is verified like any other work.
 */
import { join } from "node:path";
import { startDeadline, withDeadline } from "../../core/deadline.ts";
import { MwError, toMwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { StopReason } from "../../core/outcome.ts";
import { HandoverLost } from "../../harness/handover.ts";
import type { HarnessEnd } from "../../harness/harness.ts";
import { diedOfMemory } from "../../sandbox/died.ts";
import type { RootFilesystem, Sandbox, Workspace } from "../../sandbox/sandbox.ts";
import { agentNetwork, changeNetwork, setupNetwork, verifierNetwork } from "../../task/network.ts";
import type { Verdict } from "../../task/task.ts";
import type { VerifyRequest, VerifyResult } from "../../task/verify/verify.ts";
import { attribute, type WorkPhase } from "../attribution.ts";
import { CheckpointLost } from "../checkpoint/restore.ts";
import type { AgentSession } from "../model-access.ts";
import { PauseOnThink } from "../pause-on-think.ts";
import { stepsOf, stepReward, type StepWork } from "../steps.ts";
import { cleanJournal } from "../take-over/clean-record.ts";
import { checkGoesOn, clearHalfDone, leftIn } from "../take-over/go-on.ts";
import type { Survivor } from "../take-over/survivors.ts";
import { agentFault, faultOfEarlierStep, isGone } from "./agent-fault.ts";
import { collectInTime, runHooks } from "./collect.ts";
import { keepGoing, keptOver, type KeptGoing, type OwnEvent } from "./keep-going.ts";
import { TryMachines } from "./machines.ts";
import { describeNetwork, egressFacts, networkFacts } from "./network-facts.ts";
import { prepareMachine, setUpStep } from "./prepare.ts";
import type { TryRequest, TryResult, TryServices } from "./request.ts";

/** Never rejects for what can happen to a rollout; rejects when the log or the rollout's directory cannot be written. */
export async function runTry(services: TryServices, request: TryRequest): Promise<TryResult> {
  const work = new Try(services, request);
  try {
    return await work.run();
  } catch (error) {
    if (error instanceof LogFailure) throw error.cause;
    return failedTry(work.phase, error, work.stopReason);
  } finally {
    await work.cleanUp();
  }
}

export function failedTry(phase: WorkPhase, error: unknown, stopReason: StopReason | null = null): TryResult {
  const failed = { reward: null, rewards: {}, stopReason, error: toMwError(error) };
  if (error instanceof CheckpointLost) return { ...failed, outcome: "sandbox_error", lost: "checkpoint_lost" };
  if (error instanceof HandoverLost) return { ...failed, outcome: "sandbox_error", lost: "controller_lost" };
  return { ...failed, outcome: attribute(phase, error) };
}

/** What the agent left: the files are the workspace's where that is there, else still in the machine. */
type Remains = Pick<VerifyRequest, "sandbox" | "workspace">;

/** Of an agent at work. */
interface Driving {
  readonly agent: AgentSession | null;
  readonly pause: PauseOnThink | null;
  /** Of the machine, when the agent began. */
  readonly cpuBefore: number | null;
  /** An earlier step's has worked in this machine, or on its files. */
  readonly agentWasHere: boolean;
}

/** Keeps a failure of the log apart from those of the rollout. */
class LogFailure extends Error {}

class Try {
  phase: WorkPhase = "image";
  stopReason: StopReason | null = null;
  readonly #services: TryServices;
  readonly #request: TryRequest;
  readonly #startedAt: number;
  readonly #machines: TryMachines;
  #keeping: KeptGoing | null = null;

  constructor(services: TryServices, request: TryRequest) {
    this.#services = services;
    this.#request = request;
    this.#machines = new TryMachines(services, request);
    this.#startedAt = services.runtime.monotonic();
  }

  async run(): Promise<TryResult> {
    const { task, recorder, harness } = this.#request;
    this.#machines.layers = await this.#services.layers(harness);
    if (task.steps.length === 0) await recorder.write("instruction.md", task.instruction);
    for (const step of task.steps) await recorder.write(`instruction-${step.name}.md`, step.instruction);
    const root = await this.#services.images.root(task.environment);
    await this.#services.backend.bringImage?.(root);
    const steps = stepsOf(task);
    const verdicts: Verdict[] = [];
    const { restored, survivor } = this.#request;
    this.phase = "lease";
    let sandbox = survivor === null ? await this.#prepared(root, restored) : await this.#takeOver(root, survivor);
    for (const [index, step] of steps.entries()) {
      if (survivor === null || survivor.phase === "running") {
        const broken = restored === null && survivor === null ? await this.#prepareStep(sandbox, root, index) : null;
        await this.#agent(sandbox, step, broken, index > 0);
      }
      const left = survivor?.phase === "collected" ? await leftIn(survivor) : await this.#remains(sandbox, step, root);
      ({ sandbox } = left);
      const last = index === steps.length - 1;
      // What a later controller may have to verify again goes when there is nothing more to do.
      const { verdict, workspace } = await this.#verify(left, step, root, !last || this.#keeping?.isHandedOver === true);
      if (workspace !== null) this.#machines.keep(workspace);
      verdicts.push(verdict);
      if (verdict.status !== "scored") return this.#verifierFailed(verdict);
      if (last || !step.passes(verdict)) break;
      // A machine that was sealed for grading goes on as a new one with the same files.
      if (workspace !== null) sandbox = await this.#create(root, workspace, index + 1);
    }
    const { reward, rewards } = stepReward(task, verdicts, steps.length);
    return { outcome: "scored", reward, rewards, stopReason: this.stopReason, error: null };
  }

  /** The first machine, ready for the agent. */
  async #prepared(root: RootFilesystem, restored: TryRequest["restored"]): Promise<Sandbox> {
    const sandbox = restored === null ? await this.#machines.create(root, null) : await this.#machines.restore(root, restored);
    await this.#emit({ type: "rollout_leased", sandbox: sandbox.id, image: root.digest, isolation: sandbox.isolation, ...networkFacts(sandbox, this.#request.task, this.#services.networkOverride) });
    this.phase = "prepare";
    if (restored === null) await prepareMachine(this.#services, this.#request, sandbox, root);
    else await this.#emit({ type: "rollout_restored", turn: restored.checkpoint.turn, parent: restored.parent, calls: restored.checkpoint.calls, answered: restored.answered !== null, ...this.#request.recorder.asked });
    await this.#emit({ type: "rollout_prepared" });
    return sandbox;
  }

  /** The machine of an earlier controller, in which the agent is at work, or was. */
  async #takeOver(root: RootFilesystem, survivor: Survivor): Promise<Sandbox> {
    const { sandbox, phase, stopReason } = survivor;
    const { task, recorder, handoverDirectory } = this.#request;
    this.#machines.adopt(sandbox);
    checkGoesOn(survivor, root, task);
    if (phase !== "running") {
      this.stopReason = stopReason;
      this.#keeping = keptOver(handoverDirectory);
      await clearHalfDone(recorder.directory, phase, (await cleanJournal(handoverDirectory)).earlier !== null);
    }
    // It may have been waiting for an answer.
    if (this.#services.pauseOnThink && !survivor.isSealed) await sandbox.thaw();
    await this.#emit({ type: "rollout_taken_over", sandbox: sandbox.id });
    return sandbox;
  }

  /** Another machine than the first; `step`: the first that it is for. */
  async #create(root: RootFilesystem, workspace: Workspace | null, step = 0): Promise<Sandbox> {
    this.phase = "lease";
    return await this.#machines.create(root, workspace, step);
  }

  async cleanUp(): Promise<void> {
    await this.#machines.end();
    await this.#keeping?.over();
  }

  /**
   * Files and health check that a step of its own brings. What fails where the agent of an earlier step was, but not in a pristine machine, that agent has broken: it is returned in
   * words, and what is there will be graded.
   */
  async #prepareStep(sandbox: Sandbox, root: RootFilesystem, index: number): Promise<string | null> {
    this.phase = "prepare";
    const steps = stepsOf(this.#request.task).slice(0, index + 1);
    try {
      for (const step of steps.slice(-1)) {
        if (index > 0) changeNetwork(sandbox, setupNetwork(this.#request.task, step.step, this.#services.networkOverride));
        await setUpStep(this.#services, this.#request, sandbox, step);
      }
      return null;
    } catch (error) {
      if (index === 0 || attribute("prepare", error) !== "task_error") throw error;
      const pristine = await this.#create(root, null);
      await prepareMachine(this.#services, this.#request, pristine, root);
      for (const step of steps) await setUpStep(this.#services, this.#request, pristine, step);
      await pristine.kill();
      return `The step could not be set up on what earlier ones left: ${toMwError(error).message}`;
    }
  }

  /** `broken`: why the agent cannot even begin. `agentWasHere`: an earlier step's has worked in this machine, or on its files. */
  async #agent(sandbox: Sandbox, step: StepWork, broken: string | null, agentWasHere: boolean): Promise<void> {
    this.phase = "agent";
    // Nothing starts in a rollout that is over: a harness that is only told of an abort would never hear of one that came before it.
    this.#request.signal.throwIfAborted();
    if (this.#request.survivor === null) {
      const network = agentNetwork(this.#request.task, step.step, this.#services.networkOverride);
      await this.#emit({ type: "rollout_running", step: step.name, ...(sandbox.egress === undefined ? {} : { allow: network.allow }) });
      changeNetwork(sandbox, network);
    }
    if (broken !== null) {
      this.stopReason = "crashed";
      await this.#emit({ type: "rollout_ended", step: step.name, stopReason: "crashed", detail: broken, ...NO_WORK, cpuMs: null, frozenMs: 0 });
      return;
    }
    const agent = await this.#openSession(sandbox);
    const { runtime, pauseOnThink } = this.#services;
    const pause = pauseOnThink && agent !== null ? new PauseOnThink(sandbox, agent.session, runtime) : null;
    const cpuBefore = this.#request.survivor === null ? await cpuMsOf(sandbox) : this.#request.survivor.facts.cpuMs;
    // What a rollout from which this one branched has asked is paid for there.
    const cachedBefore = (this.#request.restored?.parent ?? null) === null ? 0 : (agent?.session.totals().cachedTokens ?? 0);
    let end;
    let frozenMs = 0;
    try {
      end = await this.#drive(sandbox, step, { agent, pause, cpuBefore, agentWasHere });
    } finally {
      frozenMs = (await pause?.stop()) ?? 0;
      // Before anything of the agent's is collected.
      await agent?.close();
    }
    const cpuAfter = await cpuMsOf(sandbox);
    this.stopReason = end.stopReason;
    // An interrupted rollout is not graded half done: it is tried again.
    this.#request.signal.throwIfAborted();
    const { policyVersions = [], cachedTokens = 0 } = agent?.session.totals() ?? {};
    const cached = Math.min(end.promptTokens, cachedTokens - cachedBefore);
    await this.#emit({ type: "rollout_ended", step: step.name, ...end, ...egressFacts(sandbox), cpuMs: cpuBefore === null || cpuAfter === null ? null : cpuAfter - cpuBefore, frozenMs, ...(cached === 0 ? {} : { cachedTokens: cached }), ...(policyVersions.length === 0 ? {} : { policyVersions }) });
  }

  async #openSession(sandbox: Sandbox): Promise<AgentSession | null> {
    const { model, budgets } = this.#services;
    const { harness, recorder, rollout, seed, sampling, restored, survivor } = this.#request;
    if (model === null || !harness.needsModel) return null;
    return await model.session({
      label: rollout,
      seed,
      sampling,
      sandbox: sandbox.id,
      // The agent's time is watched here.
      budgets: { calls: budgets.turns, tokens: budgets.tokens, timeMs: null },
      log: recorder.calls,
      ...(survivor === null ? {} : { token: survivor.facts.token }),
      earlier: survivor?.earlier ?? (restored === null ? [] : [...restored.calls, ...(restored.answered === null ? [] : [restored.answered])]),
    });
  }

  async #drive(sandbox: Sandbox, step: StepWork, { agent, pause, cpuBefore, agentWasHere }: Driving): Promise<HarnessEnd> {
    const { runtime, budgets, model, timeoutMultiplier } = this.#services;
    const { harness, recorder, setupSeed, signal, task, deadlineMs, restored, survivor } = this.#request;
    // While new weights are on their way the agent can do nothing for the time that passes.
    const heldMs = model?.heldMs ?? null;
    const notCountedMs = heldMs ?? ((): number => 0);
    const startedAt = runtime.monotonic();
    const spentMs = survivor === null ? (restored?.checkpoint.agentMs ?? 0) : Math.max(0, runtime.now() - survivor.facts.at);
    const ownMs = (step.agentTimeoutMs === null ? LIMITS.agentTimeoutMs : step.agentTimeoutMs * timeoutMultiplier) - spentMs;
    const leftMs = deadlineMs === null ? ownMs : Math.min(ownMs, deadlineMs - (startedAt - this.#startedAt));
    // It goes on while nobody listens.
    const timeMs = Math.max(1, survivor === null ? leftMs : survivor.facts.endsAt - runtime.now());
    const agentTime = startDeadline(runtime, timeMs, "the agent", signal, notCountedMs);
    // A machine that stands still can end nothing.
    agentTime.signal.addEventListener("abort", () => void pause?.stop(), { once: true });
    try {
      const agentMs = (): number => spentMs + runtime.monotonic() - startedAt;
      const emit = (event: OwnEvent): Promise<void> => this.#emit(event);
      const keeping = await keepGoing(this.#services, this.#request, { sandbox, token: agent?.session.token ?? null, cpuBefore, timeMs, agentMs, signal: agentTime.signal, emit });
      this.#keeping = keeping;
      const running = harness.run({
        sandbox,
        instruction: step.instruction,
        solution: harness.usesSolution === true ? { ...step.solution, env: this.#services.expandEnv(step.solution.env, "[solution.env]") } : { directory: null, env: {} },
        user: step.agentUser,
        workdir: task.environment.workdir,
        session: agent?.session ?? null,
        endpoint: agent?.endpoint ?? null,
        // What may be held has its end here alone.
        budgets: { ...budgets, timeMs: heldMs === null ? timeMs : null },
        seed: setupSeed,
        recorder,
        runtime,
        signal: agentTime.signal,
        ...keeping.context,
      });
      return await withDeadline(runtime, timeMs + LIMITS.harnessGraceMs, `the harness ${harness.name}, after being told to stop,`, undefined, () => running, notCountedMs);
    } catch (error) {
      if (error instanceof LogFailure || error instanceof HandoverLost) throw error;
      const ownFault = (await agentFault(sandbox, error, runtime)) ?? (agentWasHere ? faultOfEarlierStep(error) : null);
      if (ownFault !== null) return { ...ownFault, ...NO_WORK, toolMs: Math.round(runtime.monotonic() - startedAt) };
      throw error;
    } finally {
      agentTime.clear();
    }
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
    this.#machines.keep(workspace);
    await this.#request.recorder.note("the machine died of the memory that was used up in it; what it left is verified, its processes and what collect commands would have said are lost");
    const reader = await this.#create(root, workspace);
    await this.#collect(reader, { ...step, collect: [] }, root);
    return { sandbox: reader, workspace };
  }

  async #collect(sandbox: Sandbox, step: StepWork, root: RootFilesystem): Promise<void> {
    this.phase = "collect";
    const { runtime } = this.#services;
    const { recorder, signal, task } = this.#request;
    await runHooks(this.#services, this.#request, sandbox, step);
    if (!step.keepsProcesses) await withDeadline(runtime, LIMITS.killProcessesTimeoutMs, "ending the agent's processes", signal, () => sandbox.killProcesses());
    const directory = step.name === null ? recorder.directory : join(recorder.directory, "steps", step.name);
    const workdir = task.environment.workdir ?? root.workdir;
    const entries = await collectInTime(this.#services, this.#request, sandbox, step, workdir, directory);
    if (entries.length > 0) await recorder.write(step.name === null ? "artifacts.json" : `artifacts-${step.name}.json`, `${JSON.stringify(entries, null, 2)}\n`);
    await this.#emit({
      type: "rollout_collected",
      step: step.name,
      artifacts: entries.reduce((sum, entry) => sum + entry.entries, 0),
      artifactBytes: entries.reduce((sum, entry) => sum + entry.bytes, 0),
      refused: entries.reduce((sum, entry) => sum + entry.refused.length, 0),
    });
  }

  async #verify(left: Remains, step: StepWork, root: RootFilesystem, keepWorkspace: boolean): Promise<VerifyResult> {
    this.phase = "verify";
    const { runtime, verifier, timeoutMultiplier, networkOverride } = this.#services;
    const { recorder, signal, task } = this.#request;
    const network = verifierNetwork(task, step.step, networkOverride);
    // On the agent's workspace, perhaps again on a pristine one, and what surrounds them.
    const limitMs = 2 * step.verifierTimeoutMs * timeoutMultiplier + LIMITS.verifyOverheadMs;
    const directory = step.name === null ? recorder.directory : join(recorder.directory, "steps", step.name);
    const archive = this.#services.keepWorkspace ? { workspaceArchive: join(directory, "workspace.tar") } : {};
    const journal = this.#keeping?.isHandedOver === true ? await cleanJournal(this.#request.handoverDirectory) : undefined;
    const result = await withDeadline(runtime, limitMs, "verification", signal, (inner) =>
      verifier.verify({ task, step: step.name, ...left, root, directory, network, timeoutMultiplier, signal: inner, keepWorkspace, journal, ...archive }),
    );
    const { verdict } = result;
    await recorder.write(step.name === null ? "verdict.json" : `verdict-${step.name}.json`, `${JSON.stringify(verdict, null, 2)}\n`);
    await this.#emit({ type: "rollout_verified", step: step.name, status: verdict.status, reward: verdict.reward, verifierDigest: verdict.verifierDigest, ...(network === null ? {} : { network: describeNetwork(network) }) });
    return result;
  }

  #verifierFailed(verdict: Verdict): TryResult {
    const message = `the verifier gave no usable reward: ${verdict.error?.message ?? verdict.error?.kind ?? "unknown"}`;
    return { outcome: "verifier_error", reward: null, rewards: {}, stopReason: this.stopReason, error: new MwError("invalid_task", message, { fix: "see verifier/ in the rollout's directory; mw task check DIR tries the task's verifier" }) };
  }

  async #emit(event: OwnEvent): Promise<void> {
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

/** Null where nobody counts, or the machine is gone. */
async function cpuMsOf(sandbox: Sandbox): Promise<number | null> {
  return await sandbox.metrics().then(
    ({ cpuMs }) => cpuMs,
    () => null,
  );
}

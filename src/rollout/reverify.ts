/**
 * Runs a changed verifier over what agents left: each kept workspace is put into a fresh machine on the image that its agent had, sealed there, and verified as the first time, with
 * the same care. What was recorded stays as it is; new verdicts stand beside the old ones:
 *
 *     rollouts/<id>/reverified/<n>/    verdict.json, verifier/ (of a task of several steps: in steps/<name>/), result.json
 */
import { mkdir, readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { withDeadline } from "../core/deadline.ts";
import { MwError, toMwError } from "../core/errors.ts";
import type { RolloutId, RunId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { Semaphore } from "../core/semaphore.ts";
import { defaultLimits } from "../sandbox/default-limits.ts";
import type { RootFilesystem, SandboxBackend, TreeReport } from "../sandbox/sandbox.ts";
import { writeDurably } from "../store/durable.ts";
import { rolloutDirectory } from "../store/run-directory.ts";
import { verifierNetwork } from "../task/network.ts";
import type { Task, Verdict } from "../task/task.ts";
import { toFailure, type Failure } from "./events.ts";
import type { RolloutState } from "./rollout-state.ts";
import { networkOverrideOf, type RunConfig } from "./run-config.ts";
import type { RunState } from "./run-state.ts";
import { stepReward, stepsOf, type StepWork } from "./steps.ts";
import type { TaskImages } from "./task-images.ts";
import type { TryServices } from "./try/request.ts";

export interface ReverifyOptions {
  readonly home: string;
  readonly run: RunId;
  readonly config: RunConfig;
  readonly state: RunState;
  /** With the verifier that is to speak now. */
  readonly task: Task;
  readonly services: Pick<TryServices, "backend" | "images" | "verifier" | "runtime" | "expandEnv">;
  /** Machines at the same time. */
  readonly concurrency: number;
  readonly signal: AbortSignal;
  /** Told of each as it is done. */
  readonly done: (one: Reverified) => void;
}

export interface Reverified {
  readonly rollout: RolloutId;
  readonly attempt: number;
  /** Of the record; null where the first verifier gave none. */
  readonly was: number | null;
  /** Null where it gives none, or could not be asked. */
  readonly reward: number | null;
  readonly changed: boolean;
  /** Digest of the verifier that spoke now; null where none did. */
  readonly verifier: string | null;
  /** Why nothing could be said; then the old reward stands. */
  readonly error: Failure | null;
  /** Where the new verdict is. */
  readonly directory: string | null;
}

/**
 * In the order of the plan. Rejects `not_found` when the run has no rollout of that task that was verified, or no workspace of one was kept.
 */
export async function reverify(options: ReverifyOptions): Promise<readonly Reverified[]> {
  const { home, run, state, task } = options;
  const verified = [...state.rollouts.values()].filter((rollout) => isOf(rollout, task) && rollout.phase === "recorded" && (rollout.outcome === "scored" || rollout.outcome === "verifier_error"));
  if (verified.length === 0) throw nothingOf(state, task);
  const kept = await Promise.all(verified.map((rollout) => hasWorkspace(rolloutDirectory(home, run, rollout.rollout))));
  if (!kept.includes(true)) {
    throw new MwError("not_found", `no workspace was kept of the ${verified.length} verified rollouts of ${task.name} in ${run}`, {
      fix: "workspaces are kept by mw run --keep-workspace, and in runs of trainers by keep_workspaces; tasks that are verified in the agent's own machine leave none",
    });
  }
  const slots = new Semaphore(options.concurrency);
  return await Promise.all(
    verified.map((rollout, index) =>
      slots.use(async () => {
        const one = kept[index] === true ? await reverifyOne(options, rollout) : failed(rollout, new MwError("not_found", "its workspace was not kept"));
        options.done(one);
        return one;
      }, options.signal),
    ),
  );
}

async function reverifyOne(options: ReverifyOptions, rollout: RolloutState): Promise<Reverified> {
  const { home, run, task, services, signal } = options;
  try {
    const root = await services.images.root(task.environment);
    if (root.digest !== rollout.image) {
      throw new MwError("conflict", `its agent worked on the image ${rollout.image ?? "none"}, and the task now has ${root.digest}`, { fix: "only the verifier may have changed: give the task the environment that it had" });
    }
    const directory = rolloutDirectory(home, run, rollout.rollout);
    const target = await nextDirectory(directory);
    const verdicts = await verdictsOf(options, { rollout, root, from: directory, target });
    const unscored = verdicts.find(({ status }) => status !== "scored");
    const reward = unscored === undefined ? stepReward(task, verdicts, stepsOf(task).length).reward : null;
    const verifier = verdicts.at(-1)?.verifierDigest ?? null;
    const result = { at: new Date(services.runtime.now()).toISOString(), task: task.directory, taskDigest: task.digest, verifier, reward, was: rollout.reward };
    await writeDurably(join(target, "result.json"), `${JSON.stringify(result, null, 2)}\n`, "process");
    const error = unscored === undefined ? null : new MwError("invalid_task", `the verifier gave no usable reward: ${unscored.error?.message ?? "unknown"}`, { fix: `see ${target}` });
    return { rollout: rollout.rollout, attempt: rollout.attempt, was: rollout.reward, reward, changed: reward !== rollout.reward, verifier, error: error === null ? null : toFailure(error), directory: target };
  } catch (error) {
    signal.throwIfAborted();
    return failed(rollout, toMwError(error));
  }
}

interface Place {
  readonly rollout: RolloutState;
  readonly root: RootFilesystem;
  readonly from: string;
  readonly target: string;
}

/** Step by step, as long as there is a workspace and the step before it lets the next one follow. */
async function verdictsOf(options: ReverifyOptions, place: Place): Promise<readonly Verdict[]> {
  const verdicts: Verdict[] = [];
  const archives: string[] = [];
  for (const step of stepsOf(options.task)) {
    const sub = step.name === null ? "" : join("steps", step.name);
    const archive = join(place.from, sub, "workspace.tar");
    // A step that was never reached, or whose machine was the verifier's too.
    if (!(await exists(archive))) {
      if (verdicts.length > 0) break;
      throw new MwError("not_found", `nothing was kept of the step ${step.name ?? ""}`);
    }
    // Each holds what its step changed of what the one before it left.
    archives.push(archive);
    const verdict = await verifyArchives(options, place, step, archives, join(place.target, sub));
    verdicts.push(verdict);
    if (verdict.status !== "scored" || !step.passes(verdict)) break;
  }
  return verdicts;
}

async function verifyArchives({ run, config, task, services, signal }: ReverifyOptions, { rollout, root }: Place, step: StepWork, archives: readonly string[], directory: string): Promise<Verdict> {
  const { backend, verifier, runtime } = services;
  const limitMs = LIMITS.leaseTimeoutMs + LIMITS.collectTimeoutMs + 2 * step.verifierTimeoutMs * config.timeoutMultiplier + LIMITS.verifyOverheadMs;
  return await withDeadline(runtime, limitMs, "verification", signal, async (inner) => {
    const machine = await machineOf({ run, task, services, root, rollout, backend });
    try {
      const refused: TreeReport["refused"][number][] = [];
      for (const archive of archives) refused.push(...(await machine.files.applyLayer(archive, { signal: inner })).refused);
      const network = verifierNetwork(task, task.steps.find(({ name }) => name === step.name) ?? null, networkOverrideOf(config));
      const request = { task, step: step.name, sandbox: machine, root, directory, network, timeoutMultiplier: config.timeoutMultiplier, signal: inner };
      const { verdict } = await verifier.verify(request);
      const notes = refused.slice(0, 20).map(({ path, reason }) => `/${path} is not as the agent left it: ${reason}`);
      const whole = { ...verdict, evidence: { ...verdict.evidence, notes: [...notes, ...verdict.evidence.notes] } };
      await mkdir(directory, { recursive: true });
      await writeDurably(join(directory, "verdict.json"), `${JSON.stringify(whole, null, 2)}\n`, "process");
      return whole;
    } finally {
      await machine.kill();
    }
  });
}

interface MachineParts extends Pick<ReverifyOptions, "run" | "task"> {
  readonly services: { readonly images: TaskImages; readonly runtime: Runtime; readonly expandEnv: TryServices["expandEnv"] };
  readonly backend: SandboxBackend;
  readonly root: RootFilesystem;
  readonly rollout: RolloutState;
}

/** As the agent's was, without an agent. Nothing in it runs but what puts the files there. */
function machineOf({ run, task, services, root, rollout, backend }: MachineParts): ReturnType<SandboxBackend["create"]> {
  const { environment } = task;
  return backend.create({
    root,
    ...(environment.cpus === null ? {} : { cpus: environment.cpus }),
    ...(environment.memoryBytes === null ? {} : { memoryBytes: environment.memoryBytes }),
    ...(environment.diskBytes === null ? {} : { diskBytes: environment.diskBytes }),
    ...defaultLimits(backend.capabilities),
    // Nothing in it asks for anything.
    network: "none",
    env: services.expandEnv(environment.env, "[environment.env]"),
    ...(environment.workdir === null ? {} : { workdir: environment.workdir }),
    labels: { run, rollout: rollout.rollout, role: "reverify" },
  });
}

const resultSchema = z.object({ at: z.string(), taskDigest: z.string().nullable(), verifier: z.string().nullable(), reward: z.number().nullable(), was: z.number().nullable() });
export type Reverification = z.infer<typeof resultSchema> & { readonly number: number };

/** What later verifiers said of a rollout, oldest first. */
export async function readReverifications(directory: string): Promise<readonly Reverification[]> {
  const found: Reverification[] = [];
  for (const number of await numbersIn(join(directory, "reverified"))) {
    const text = await readFile(join(directory, "reverified", String(number), "result.json"), "utf8").catch(() => null);
    // One that was broken off has none.
    if (text !== null) found.push({ number, ...resultSchema.parse(JSON.parse(text)) });
  }
  return found;
}

async function nextDirectory(directory: string): Promise<string> {
  const parent = join(directory, "reverified");
  await mkdir(parent, { recursive: true });
  const target = join(parent, String(((await numbersIn(parent)).at(-1) ?? 0) + 1));
  await mkdir(target);
  return target;
}

async function numbersIn(directory: string): Promise<readonly number[]> {
  const names = await readdir(directory).catch(() => []);
  return names.map(Number).filter((number) => Number.isSafeInteger(number) && number > 0).sort((a, b) => a - b);
}

function isOf({ task }: RolloutState, { name, family }: Task): boolean {
  return task.name === name && task.family === family;
}

async function hasWorkspace(directory: string): Promise<boolean> {
  if (await exists(join(directory, "workspace.tar"))) return true;
  const steps = await readdir(join(directory, "steps")).catch(() => []);
  for (const step of steps) if (await exists(join(directory, "steps", step, "workspace.tar"))) return true;
  return false;
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}

function failed(rollout: RolloutState, error: MwError): Reverified {
  return { rollout: rollout.rollout, attempt: rollout.attempt, was: rollout.reward, reward: null, changed: false, verifier: null, error: toFailure(error), directory: null };
}

function nothingOf(state: RunState, { name, family }: Task): MwError {
  const tasks = [...new Set(state.groups.map(({ task }) => `${task.family}/${task.name}`))];
  return new MwError("not_found", `the run has no verified rollout of ${family}/${name}`, { fix: `its tasks are ${tasks.slice(0, 20).join(", ")}${tasks.length > 20 ? ", ..." : ""}; --task names the directory of one of them with its changed verifier` });
}

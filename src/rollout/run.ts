/** Starting and resuming a run: what is checked before anything exists, what is made in which order, and that all of it is closed again. */
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { newId, type RunId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { tellWhenSlow } from "../core/tell-when-slow.ts";
import type { ImageBuilder } from "../build/builder.ts";
import type { AgentOptions } from "../harness/agent/agent.ts";
import type { Harness } from "../harness/harness.ts";
import type { LocalImageStore } from "../image/store.ts";
import { withoutUnenforceableLimits } from "../sandbox/lenient-backend.ts";
import type { SandboxBackend, LayerMount } from "../sandbox/sandbox.ts";
import { FileLog } from "../store/file-log.ts";
import { createRunDirectory, eventsFile, runDirectory, sweepRuns } from "../store/run-directory.ts";
import { loadTask } from "../task/load-task.ts";
import type { Task } from "../task/task.ts";
import { createVerifier } from "../task/verify/verify.ts";
import { expandPlaceholders } from "../task/placeholders.ts";
import { RunController, type RunObserver } from "./controller.ts";
import { fromLogEvent, toLogEvent, type RunEvent } from "./events.ts";
import { readInputs } from "./inputs.ts";
import { ModelAccess, sweepModelSocket } from "./model-access.ts";
import { checkItem, planRun, type PlanItem } from "./plan.ts";
import { preflight } from "./preflight.ts";
import { readRunConfig, type RunConfig } from "./run-config.ts";
import { loadRunState, RunState } from "./run-state.ts";
import { TaskImages } from "./task-images.ts";
import type { TryServices } from "./try.ts";

/** What makes machines, open for one controller. */
export interface Machines {
  readonly backend: SandboxBackend;
  readonly images: LocalImageStore;
  readonly builder: ImageBuilder;
  /** Fences what this controller writes from what an earlier one may still write. */
  readonly epoch: number;
  /** Ends every machine and gives the data directory free. */
  close(): Promise<void>;
}

export interface RunDependencies {
  readonly home: string;
  readonly version: string;
  readonly runtime: Runtime;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Rejects `busy` when another controller owns the data directory. */
  readonly openMachines: () => Promise<Machines>;
  /** Makes a harness by name, with those of the run's settings that concern it. */
  readonly makeHarness: (name: string, settings: HarnessSettings) => Harness;
  readonly observer: RunObserver;
  /** Ends what happens before the controller starts: images are prepared, tasks are looked for. */
  readonly signal: AbortSignal;
  /** Gives the controller to whoever may stop it. */
  readonly started: (controller: RunController, run: RunId) => void;
}

export interface HarnessSettings {
  /** Host path of the file that the script harness plays. */
  readonly script: string | null;
  readonly harnessCommand: string | null;
  readonly harnessUser: string | null;
  /** Changes to the setups of the white-box harnesses. */
  readonly agent: AgentOptions;
}

export interface RunEnd {
  readonly run: RunId;
  readonly ended: "finished" | "interrupted";
  readonly state: RunState;
}

export type NewRun = Omit<RunConfig, "format" | "run" | "createdAt" | "version" | "harnesses" | "script"> & {
  readonly harnesses: readonly string[];
  /** Host path. */
  readonly script: string | null;
};

/** Plans what would run, without machines or traces. */
export function planOf(request: Pick<NewRun, "inputs" | "seed" | "attempts" | "harnesses">): AsyncGenerator<PlanItem> {
  return planRun(readInputs(request.inputs), request);
}

/** Rejects before anything exists when nothing that was given can run, or when the host cannot run it. */
export async function startRun(dependencies: RunDependencies, request: NewRun, apiKey: string | null): Promise<RunEnd> {
  const { home, version, runtime } = dependencies;
  const harnesses = request.harnesses.map((name) => dependencies.makeHarness(name, request));
  const readable = await firstGroup(planOf(request), () => undefined);
  const machines = await dependencies.openMachines();
  let model: ModelAccess | null = null;
  try {
    await sweepRuns(home);
    await sweepModelSocket(home);
    const plan = await firstGroup(readable, checker(dependencies, request, harnesses, machines));
    // An image that every task is to use is there before anything starts.
    if (request.image !== null) await machines.images.resolve(request.image, { progress: (message) => dependencies.observer.activity?.(message), signal: dependencies.signal });
    if (harnesses.some((harness) => harness.needsModel)) model = await openModel(dependencies, request, apiKey);
    // Last: making them may take minutes.
    await layersOf(dependencies, harnesses, machines);
    dependencies.signal.throwIfAborted();
    const run = newId("run", runtime);
    const config: RunConfig = {
      ...request,
      upstream: model?.config ?? request.upstream,
      format: 1,
      run,
      createdAt: new Date(runtime.now()).toISOString(),
      version,
      harnesses: harnesses.map(({ name, version: of, settings }) => ({ name, version: of, settings })),
      script: request.script === null ? null : "script",
    };
    await createRunDirectory(home, run, config, request.script === null ? {} : { script: request.script }, config.durability);
    const state = new RunState();
    const log = await openLog(dependencies, config, machines, state);
    return await drive(dependencies, { config, run, machines, log, state, plan, model, fresh: true });
  } finally {
    await model?.close();
    await machines.close();
  }
}

/** Goes on with a run after its controller died or was stopped. A finished run is only read. */
export async function resumeRun(dependencies: RunDependencies, run: RunId, apiKey: (config: RunConfig) => string | null, overrides: { readonly concurrency?: number }): Promise<RunEnd> {
  const config = { ...(await readRunConfig(dependencies.home, run)), ...overrides };
  const seen = await loadRunState(dependencies.home, run);
  if (seen.status === "finished") return { run, ended: "finished", state: seen };
  const machines = await dependencies.openMachines();
  let model: ModelAccess | null = null;
  try {
    await sweepRuns(dependencies.home);
    await sweepModelSocket(dependencies.home);
    const state = new RunState();
    const log = await openLog(dependencies, config, machines, state);
    // Finished between the two looks.
    if (state.status === "finished") {
      await log.close();
      return { run, ended: "finished", state };
    }
    if (log.repaired !== null) dependencies.observer.note(`the log ended in half an event (${log.repaired.bytes} bytes at ${log.repaired.offset}), left by a controller that died; it is cut off`);
    const plan = planRun(readInputs(config.inputs), { ...config, harnesses: config.harnesses.map(({ name }) => name), skip: state.sources });
    model = await openModel(dependencies, config, apiKey(config));
    return await drive(dependencies, { config, run, machines, log, state, plan, model, fresh: state.run === null });
  } finally {
    await model?.close();
    await machines.close();
  }
}

/** After the data directory is ours: the gateway's place belongs to whoever has it. */
async function openModel({ home, runtime, signal, observer }: RunDependencies, { upstream }: Pick<RunConfig, "upstream">, apiKey: string | null): Promise<ModelAccess | null> {
  if (upstream === null) return null;
  const model = await tellWhenSlow(runtime, () => observer.activity?.(`waiting for the model ${upstream.model} at ${upstream.url}: asked for one token`), ModelAccess.open(home, upstream, apiKey, runtime, signal));
  if (model.whyNoTokens !== null) observer.note(`no exact tokens, so the rollouts cannot be trained on: ${model.whyNoTokens}`);
  return model;
}

interface Drive {
  readonly config: RunConfig;
  readonly run: RunId;
  readonly machines: Machines;
  readonly log: FileLog;
  readonly state: RunState;
  readonly plan: AsyncIterator<PlanItem>;
  readonly model: ModelAccess | null;
  readonly fresh: boolean;
}

async function drive(dependencies: RunDependencies, { config, run, machines, log, state, plan, model, fresh }: Drive): Promise<RunEnd> {
  const { runtime, observer, home, version } = dependencies;
  try {
    const emit = async (event: RunEvent): Promise<void> => {
      const at = runtime.now();
      await log.append([toLogEvent(event)], { at });
      state.apply(event, at);
      observer.changed(state, event);
    };
    if (fresh) await emit({ type: "run_created", run });
    await emit({ type: "controller_started", pid: process.pid, version });
    const script = config.script === null ? null : join(runDirectory(home, run), config.script);
    const harnesses = new Map(config.harnesses.map(({ name }) => [name, dependencies.makeHarness(name, { ...config, script })]));
    const harnessLayers = await layersOf(dependencies, [...harnesses.values()], machines);
    const controller = new RunController({
      home,
      config,
      runtime,
      log,
      state,
      plan,
      loadTask,
      preflight: checker(dependencies, config, [...harnesses.values()], machines),
      harness: (name) => {
        const harness = harnesses.get(name);
        if (harness === undefined) throw new MwError("internal", `the harness ${name} was drawn but is none of the run's`);
        return harness;
      },
      services: (signal) => services(dependencies, { config, machines, model, harnessLayers }, signal),
      observer,
    });
    dependencies.started(controller, run);
    return { run, ended: await controller.run(), state };
  } finally {
    await log.close();
  }
}

/** By harness, what its machines need over the task's image; whatever has to be made for that is made now. */
async function layersOf({ observer, signal, env }: RunDependencies, harnesses: readonly Harness[], machines: Machines): Promise<TryServices["harnessLayers"]> {
  const layers = new Map<string, readonly LayerMount[]>();
  for (const harness of harnesses) {
    if (harness.layers !== undefined) layers.set(harness.name, await harness.layers(machines.images, { progress: (message) => observer.activity?.(message), signal, env }));
  }
  return layers;
}

interface ServiceParts extends Pick<Drive, "config" | "machines" | "model"> {
  readonly harnessLayers: TryServices["harnessLayers"];
}

function services(dependencies: RunDependencies, { config, machines, model, harnessLayers }: ServiceParts, signal: AbortSignal): TryServices {
  const { runtime, observer, env } = dependencies;
  const images = new TaskImages({
    images: machines.images,
    builder: machines.builder,
    override: config.image,
    timeoutMultiplier: config.timeoutMultiplier,
    progress: (message) => observer.activity?.(message),
    signal,
  });
  const backend = config.ignoreLimits ? withoutUnenforceableLimits(machines.backend) : machines.backend;
  return {
    runtime,
    backend,
    images,
    verifier: createVerifier({ backend, runtime, imageRoot: (environment) => images.root(environment), lookupEnv: (name) => env[name] }),
    harnessLayers,
    model,
    budgets: config.budgets,
    networkOverride: config.network,
    timeoutMultiplier: config.timeoutMultiplier,
    keepWorkspace: config.keepWorkspace,
    pauseOnThink: config.pauseOnThink,
    expandEnv: expander(dependencies),
  };
}

function checker(
  dependencies: RunDependencies,
  { network, ignoreLimits, pauseOnThink }: Pick<RunConfig, "network" | "ignoreLimits" | "pauseOnThink">,
  harnesses: readonly Harness[],
  machines: Machines,
): (task: Task) => void {
  return (task) => preflight(task, { capabilities: machines.backend.capabilities, networkOverride: network, ignoreLimits, pauseOnThink, harnesses, expandEnv: expander(dependencies) });
}

function expander({ env }: RunDependencies): TryServices["expandEnv"] {
  return (table, where) => expandPlaceholders(table, (name) => env[name], where);
}

function openLog(dependencies: RunDependencies, config: RunConfig, machines: Machines, state: RunState): Promise<FileLog> {
  return FileLog.open({
    // The id was checked when the run was found or made.
    path: eventsFile(dependencies.home, config.run as RunId),
    epoch: machines.epoch,
    durability: config.durability,
    runtime: dependencies.runtime,
    onEvent: ({ event, at }) => state.apply(fromLogEvent(event), Date.parse(at)),
  });
}

/** Reads ahead to the first task that passes the check, so that input with none in it is refused before anything starts. */
async function firstGroup(plan: AsyncGenerator<PlanItem>, check: (task: Task) => void): Promise<AsyncGenerator<PlanItem>> {
  const before: PlanItem[] = [];
  for (;;) {
    const { done, value } = await plan.next();
    if (done === true || before.length >= LIMITS.refusedBeforeStart) throw nothingToRun(before);
    const item: PlanItem = checkItem(value, check);
    before.push(item);
    if (item.kind === "group") break;
  }
  return (async function* () {
    yield* before;
    yield* plan;
  })();
}

function nothingToRun(items: readonly PlanItem[]): MwError {
  const failures = items.flatMap((item) => (item.kind === "group" ? [] : [{ source: item.source, error: item.error }]));
  const [first] = failures;
  if (first === undefined) return new MwError("invalid_input", "nothing was given to run", { fix: "name task directories, directories of tasks, or a dataset file" });
  if (failures.length === 1) return new MwError(first.error.code, mentions(first.error.message, first.source), first.error.fix === null ? {} : { fix: first.error.fix });
  const shown = failures.slice(0, 20).map(({ source, error }) => `\n  ${mentions(error.message, source)}${error.fix === null ? "" : `\n    fix: ${error.fix}`}`);
  const more = failures.length > shown.length ? `\n  ... and ${failures.length - shown.length} more` : "";
  // One kind of failure throughout keeps its exit code.
  const code = failures.every(({ error }) => error.code === first.error.code) ? first.error.code : "invalid_input";
  return new MwError(code, `none of the ${failures.length} inputs can run:${shown.join("")}${more}`, { fix: "correct at least one of them; mw task check DIR looks at one closely" });
}

function mentions(message: string, source: string): string {
  return message.includes(source) ? message : `${source}: ${message}`;
}

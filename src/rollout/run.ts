/** Starting and resuming a run: what is checked before anything exists, what is made in which order, and that all of it is closed again. */
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { newId, type RunId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import { tellWhenSlow } from "../core/tell-when-slow.ts";
import type { Gateway } from "../gateway/session.ts";
import type { Harness } from "../harness/harness.ts";
import type { FileLog } from "../store/file-log.ts";
import { createRunDirectory, runDirectory, sweepRuns } from "../store/run-directory.ts";
import { loadTask } from "../task/load-task.ts";
import type { Task } from "../task/task.ts";
import { sweepCheckpoints } from "./checkpoint/sweep.ts";
import { failedPlaces, RunController, type RunObserver } from "./controller.ts";
import { toLogEvent, type RunEvent } from "./events.ts";
import { HarnessLayers } from "./harness-layers.ts";
import { readInputs } from "./inputs.ts";
import { openFixedModel, openMachinesGateway, type FixedModel, type GatewayPlace, type ModelAccess } from "./model-access.ts";
import { checkItem, planRun, type PlanItem } from "./plan.ts";
import { readRunConfig, type RunConfig } from "./run-config.ts";
import { taskChecker, openRunLog, tryServices, type HarnessSettings, type Machines } from "./run-services.ts";
import { loadRunState, RunState } from "./run-state.ts";
import { endOthers, Survivors } from "./take-over/survivors.ts";
import type { TryServices } from "./try/request.ts";

export type { HarnessSettings, Machines };

export interface RunDependencies extends GatewayPlace {
  readonly version: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** With the run's sandbox backend, whose machines outlive this process so long. Rejects `busy` when another controller owns the data directory, or died and something else than `run` could go on in its machines. */
  readonly openMachines: (backend: string, keepSeconds: number, run?: RunId) => Promise<Machines>;
  /** Of a process that has several runs at once: its gateway. What earlier processes left was swept when it began. Absent: the run has the data directory for itself. */
  readonly gateway?: Gateway;
  /** The new run's id; absent: one is made. */
  readonly newRun?: RunId;
  /** Makes a harness by name, with those of the run's settings that concern it. */
  readonly makeHarness: (name: string, settings: HarnessSettings) => Harness;
  readonly observer: RunObserver;
  /** Ends what happens before the controller starts: images are prepared, tasks are looked for. */
  readonly signal: AbortSignal;
  /** Gives the controller to whoever may stop it. */
  readonly started: (controller: RunController, run: RunId) => void;
}

export interface RunEnd {
  readonly run: RunId;
  readonly ended: "finished" | "interrupted";
  readonly state: RunState;
}

export type NewRun = Omit<RunConfig, "format" | "run" | "createdAt" | "version" | "harnesses" | "script" | "trainer"> & {
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
  const machines = await dependencies.openMachines(request.backend, request.takeOverSeconds ?? 0);
  let model: OpenModel | null = null;
  try {
    await sweep(dependencies, machines);
    const ended = dependencies.gateway === undefined ? await endOthers(machines.backend, []) : [];
    if (ended.length > 0) dependencies.observer.note(`machines of a controller that died, in which nothing could go on, are ended: ${ended.length}`);
    const plan = await firstGroup(readable, taskChecker(dependencies, request, harnesses, machines));
    // An image that every task is to use is there before anything starts.
    if (request.image !== null) await machines.images.resolve(request.image, { progress: (message) => dependencies.observer.activity?.(message), signal: dependencies.signal });
    if (harnesses.some((harness) => harness.needsModel)) model = await openModel(dependencies, request, apiKey);
    // Last: making them may take minutes.
    await layersOf(dependencies, harnesses, machines);
    dependencies.signal.throwIfAborted();
    const run = dependencies.newRun ?? newId("run", runtime);
    const config: RunConfig = {
      ...request,
      upstream: model?.config ?? request.upstream,
      format: 1,
      run,
      createdAt: new Date(runtime.now()).toISOString(),
      version,
      harnesses: harnesses.map(({ name, version: of, settings }) => ({ name, version: of, settings })),
      script: request.script === null ? null : "script",
      trainer: null,
    };
    await createRunDirectory(home, run, config, request.script === null ? {} : { script: request.script }, config.durability);
    const state = new RunState();
    const log = await openRunLog(dependencies, config, machines, state);
    return await drive(dependencies, { config, run, machines, log, state, plan, model: model?.access ?? null, fresh: true, errorsAgain: false });
  } finally {
    await model?.close();
    await machines.close();
  }
}

export interface ResumeOptions {
  /** Instead of the run's. */
  readonly concurrency?: number;
  /** Begins again what ended in a failure of a machine, a model server or a harness; the old records stand. */
  readonly errors?: boolean;
}

/** Goes on with a run after its controller died or was stopped. A finished run is only read, unless there are errors to begin again. */
export async function resumeRun(dependencies: RunDependencies, run: RunId, apiKey: (config: RunConfig) => string | null, { errors = false, ...overrides }: ResumeOptions): Promise<RunEnd> {
  const config = { ...(await readRunConfig(dependencies.home, run)), ...overrides };
  if (config.trainer !== null) throw new MwError("usage", `${run} is the run ${JSON.stringify(config.trainer.name)} of a trainer, which asks for its rollouts`, { fix: "start mw serve on this data directory again: the trainer goes on with it" });
  const seen = await loadRunState(dependencies.home, run);
  const isOver = (state: RunState): boolean => state.status === "finished" && !(errors && state.groups.some(({ rollouts }) => failedPlaces(rollouts).length > 0));
  if (isOver(seen)) return { run, ended: "finished", state: seen };
  const machines = await dependencies.openMachines(config.backend, config.takeOverSeconds ?? 0, run);
  let model: OpenModel | null = null;
  let survivors = Survivors.none;
  try {
    await sweep(dependencies, machines);
    const state = new RunState();
    const log = await openRunLog(dependencies, config, machines, state);
    // Finished between the two looks.
    if (isOver(state)) {
      await log.close();
      return { run, ended: "finished", state };
    }
    if (log.repaired !== null) dependencies.observer.note(`the log ended in half an event (${log.repaired.bytes} bytes at ${log.repaired.offset}), left by a controller that died; it is cut off`);
    const plan = planRun(readInputs(config.inputs), { ...config, harnesses: config.harnesses.map(({ name }) => name), skip: state.sources });
    if (config.takeOverSeconds !== null) survivors = await Survivors.find(dependencies.home, state, machines.backend);
    if (dependencies.gateway === undefined) await endOthers(machines.backend, survivors.sandboxes);
    const { awaited, sandboxes } = survivors;
    if (sandboxes.length > 0) dependencies.observer.note(`rollouts that go on in their machines, which outlived the controller: ${sandboxes.length}`);
    model = await openModel({ ...dependencies, awaited }, config, apiKey(config));
    return await drive(dependencies, { config, run, machines, log, state, plan, survivors, model: model?.access ?? null, fresh: state.run === null, errorsAgain: errors });
  } finally {
    await survivors.end();
    await model?.close();
    await machines.close();
  }
}

async function sweep({ home, gateway }: RunDependencies, machines: Machines): Promise<void> {
  if (gateway !== undefined) return;
  await sweepRuns(home);
  await sweepCheckpoints(home, machines.backend.snapshots);
}

interface OpenModel extends FixedModel {
  close(): Promise<void>;
}

/** After the data directory is ours: the gateway's place belongs to whoever has it. */
async function openModel({ home, runtime, signal, observer, board, awaited, gateway: shared }: RunDependencies, { upstream }: Pick<RunConfig, "upstream">, apiKey: string | null): Promise<OpenModel | null> {
  if (upstream === null) return null;
  const gateway = shared ?? (await openMachinesGateway({ home, runtime, board, ...(awaited === undefined ? {} : { awaited }) }));
  const closeGateway = async (): Promise<void> => {
    if (shared === undefined) await gateway.close();
  };
  try {
    const model = await tellWhenSlow(runtime, () => observer.activity?.(`waiting for the model ${upstream.model} at ${upstream.url}: asked for one token`), openFixedModel(gateway, upstream, apiKey, runtime, signal));
    if (model.whyNoTokens !== null) observer.note(`no exact tokens, so the rollouts cannot be trained on: ${model.whyNoTokens}`);
    return {
      ...model,
      close: async () => {
        await closeGateway();
        await model.access.close();
      },
    };
  } catch (error) {
    await closeGateway();
    throw error;
  }
}

interface Drive {
  readonly config: RunConfig;
  readonly run: RunId;
  readonly machines: Machines;
  readonly log: FileLog;
  readonly state: RunState;
  readonly plan: AsyncIterator<PlanItem>;
  readonly survivors?: Survivors;
  readonly model: ModelAccess | null;
  readonly fresh: boolean;
  readonly errorsAgain: boolean;
}

async function drive(dependencies: RunDependencies, { config, run, machines, log, state, plan, survivors = Survivors.none, model, fresh, errorsAgain }: Drive): Promise<RunEnd> {
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
    const layers = await layersOf(dependencies, [...harnesses.values()], machines);
    const controller = new RunController({
      home,
      config,
      runtime,
      log,
      state,
      plan,
      survivors,
      errorsAgain,
      loadTask,
      preflight: taskChecker(dependencies, config, [...harnesses.values()], machines),
      harness: (name) => {
        const harness = harnesses.get(name);
        if (harness === undefined) throw new MwError("internal", `the harness ${name} was drawn but is none of the run's`);
        return harness;
      },
      services: (signal) => tryServices(dependencies, { config, machines, model, layers }, signal),
      observer,
    });
    dependencies.started(controller, run);
    return { run, ended: await controller.run(), state };
  } finally {
    await log.close();
  }
}

/** What the machines of harnesses need over the task's image; whatever has to be made for that is made now. */
async function layersOf({ observer, signal, env }: RunDependencies, harnesses: readonly Harness[], machines: Machines): Promise<TryServices["layers"]> {
  const layers = new HarnessLayers(machines.images, { progress: (message) => observer.activity?.(message), signal, env });
  for (const harness of harnesses) await layers.of(harness);
  return (harness) => layers.of(harness);
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

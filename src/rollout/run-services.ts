/** What a run works with: machines, images, verifier, model, log. Made once for it, whoever drives it. */
import type { ImageBuilder } from "../build/builder.ts";
import type { RunId } from "../core/ids.ts";
import type { Runtime } from "../core/runtime.ts";
import type { AgentOptions } from "../harness/agent/agent.ts";
import type { Harness } from "../harness/harness.ts";
import type { LocalImageStore } from "../image/store.ts";
import { withoutUnenforceableLimits } from "../sandbox/lenient-backend.ts";
import type { SandboxBackend } from "../sandbox/sandbox.ts";
import { FileLog } from "../store/file-log.ts";
import { eventsFile } from "../store/run-directory.ts";
import { expandPlaceholders } from "../task/placeholders.ts";
import type { Task } from "../task/task.ts";
import { createVerifier } from "../task/verify/verify.ts";
import { fromLogEvent } from "./events.ts";
import type { ModelAccess } from "./model-access.ts";
import { preflight } from "./preflight.ts";
import type { RunObserver } from "./rollouts.ts";
import { networkOverrideOf, type RunConfig } from "./run-config.ts";
import type { RunState } from "./run-state.ts";
import { TaskImages } from "./task-images.ts";
import type { TryServices } from "./try/request.ts";

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

export interface HarnessSettings {
  /** Host path of the file that the script harness plays. */
  readonly script: string | null;
  readonly harnessCommand: string | null;
  readonly harnessUser: string | null;
  /** Changes to the setups of the white-box harnesses. */
  readonly agent: AgentOptions;
}

/** Of the process that drives runs. */
export interface Surroundings {
  readonly home: string;
  readonly runtime: Runtime;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly observer: Pick<RunObserver, "activity">;
}

export interface ServiceParts {
  readonly config: RunConfig;
  readonly machines: Machines;
  readonly model: ModelAccess | null;
  readonly layers: TryServices["layers"];
}

/** What the tries of one run share. */
export function tryServices(surroundings: Surroundings, { config, machines, model, layers }: ServiceParts, signal: AbortSignal): TryServices {
  const { runtime, observer, env } = surroundings;
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
    layers,
    model,
    budgets: config.budgets,
    networkOverride: networkOverrideOf(config),
    timeoutMultiplier: config.timeoutMultiplier,
    keepWorkspace: config.keepWorkspace,
    pauseOnThink: config.pauseOnThink,
    checkpointEveryMs: config.checkpointEveryMs,
    takeOverSeconds: config.takeOverSeconds,
    expandEnv: expander(surroundings),
  };
}

/** Throws what makes a task impossible for harnesses of a run. */
export function taskChecker(
  surroundings: Pick<Surroundings, "env">,
  { ignoreLimits, pauseOnThink, ...config }: Pick<RunConfig, "network" | "allow" | "ignoreLimits" | "pauseOnThink">,
  harnesses: readonly Harness[],
  machines: Machines,
): (task: Task) => void {
  return (task) => preflight(task, { capabilities: machines.backend.capabilities, networkOverride: networkOverrideOf(config), ignoreLimits, pauseOnThink, harnesses, expandEnv: expander(surroundings) });
}

function expander({ env }: Pick<Surroundings, "env">): TryServices["expandEnv"] {
  return (table, where) => expandPlaceholders(table, (name) => env[name], where);
}

/** Opens the run's log for writing, and folds what is in it into `state`. */
export function openRunLog({ home, runtime }: Pick<Surroundings, "home" | "runtime">, config: RunConfig, machines: Machines, state: RunState): Promise<FileLog> {
  return FileLog.open({
    // The id was checked when the run was found or made.
    path: eventsFile(home, config.run as RunId),
    epoch: machines.epoch,
    durability: config.durability,
    runtime,
    onEvent: ({ event, at }) => state.apply(fromLogEvent(event), Date.parse(at)),
  });
}

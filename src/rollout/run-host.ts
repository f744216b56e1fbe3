/** What all runs of one process share: machines, the gateway, the layers of agents. Trainers' runs are opened on it, several at a time. */
import { stat } from "node:fs/promises";
import { MwError } from "../core/errors.ts";
import type { RunId } from "../core/ids.ts";
import { DEFAULT_OUTCOME_RULES } from "../core/outcome.ts";
import type { Gateway } from "../gateway/session.ts";
import { directoryDigest } from "../gateway/render/directory-digest.ts";
import type { Harness } from "../harness/harness.ts";
import type { PolicyRegister } from "../policy/register.ts";
import { createRunDirectory, runDirectory, sweepRuns } from "../store/run-directory.ts";
import { loadTask } from "../task/load-task.ts";
import type { Task } from "../task/task.ts";
import { sweepCheckpoints } from "./checkpoint/sweep.ts";
import { HarnessLayers } from "./harness-layers.ts";
import { openMachinesGateway, openPolicyModel, type GatewayPlace, type ModelAccess } from "./model-access.ts";
import { OpenRun } from "./open-run.ts";
import type { RunObserver } from "./rollouts.ts";
import type { RunDependencies } from "./run.ts";
import { readRunConfig, type RunConfig } from "./run-config.ts";
import { openRunLog, taskChecker, tryServices, type HarnessSettings, type Machines, type Surroundings } from "./run-services.ts";
import { RunState } from "./run-state.ts";

export interface RunHostOptions extends Omit<Surroundings, "observer">, GatewayPlace {
  /** Of the product. */
  readonly version: string;
  /** Not closed with the host. */
  readonly machines: Machines;
  readonly makeHarness: (name: string, settings: HarnessSettings) => Harness;
  /** How long the machines outlive this process; absent: they do not. */
  readonly takeOverSeconds?: number;
  /** Of the policies' endpoints. */
  readonly apiKey: string | null;
  readonly observer: RunObserver;
}

/** What a trainer decides of its run. */
export interface TrainerRun extends Pick<RunConfig, "inputs" | "attempts" | "seed" | "concurrency" | "keepWorkspace" | "checkpointEveryMs" | "ignoreLimits" | "network" | "prices"> {
  readonly harnesses: readonly string[];
  readonly budgets: Pick<RunConfig["budgets"], "turns" | "tokens">;
  readonly trainer: NonNullable<RunConfig["trainer"]>;
}

export interface OpenedRun {
  readonly run: OpenRun;
  readonly state: RunState;
  readonly model: ModelAccess;
  /** Throws what makes a task impossible here for a harness. */
  readonly check: (task: Task, harness: string) => void;
}

/** Output of one command that a model sees, and its time, where nobody says. */
const COMMAND_BUDGETS = { commandMs: 300_000, outputBytes: 16 * 1024 } as const;

export class RunHost {
  readonly #options: RunHostOptions;
  readonly #gateway: Gateway;
  readonly #layers: HarnessLayers;
  readonly #closing = new AbortController();
  readonly #open = new Set<OpenRun>();

  /** For the owner of the data directory. */
  static async open(options: RunHostOptions): Promise<RunHost> {
    await sweepRuns(options.home);
    await sweepCheckpoints(options.home, options.machines.backend.snapshots);
    return new RunHost(options, await openMachinesGateway(options));
  }

  private constructor(options: RunHostOptions, gateway: Gateway) {
    this.#options = options;
    this.#gateway = gateway;
    const { env, machines, observer } = options;
    this.#layers = new HarnessLayers(machines.images, { progress: (message) => observer.activity?.(message), signal: this.#closing.signal, env });
  }

  /**
   * Makes the run, or takes up what an earlier process left of it; then its configuration holds, whatever is asked for now. Rejects `usage` for a harness that is none, or that cannot be
   * kept between its turns where that is asked for, `invalid_input` for a tokenizer that cannot be used, `conflict` for one that has changed. `makeHarness`: for a run whose harnesses are its own.
   */
  async openRun(run: RunId, request: TrainerRun, policy: PolicyRegister, makeHarness: RunHostOptions["makeHarness"] = this.#options.makeHarness): Promise<OpenedRun> {
    const { runtime, machines } = this.#options;
    const config = await this.#config(run, request, makeHarness);
    const { trainer } = config;
    if (trainer === null) throw new MwError("conflict", `${run} is no trainer's run`, { fix: "mw resume goes on with it" });
    const model = await openPolicyModel({ gateway: this.#gateway, register: policy, runtime, apiKey: this.#options.apiKey, tokenizer: trainer.tokenizer, sampling: {}, singleVersion: trainer.singleVersion });
    try {
      const state = new RunState();
      const log = await openRunLog(this.#options, config, machines, state);
      try {
        return await this.#opened({ run, config, model, state, log, harness: harnesses(config, makeHarness) });
      } catch (error) {
        await log.close();
        throw error;
      }
    } catch (error) {
      await model.close();
      throw error;
    }
  }

  async #opened({ run, config, model, state, log, harness }: Opening): Promise<OpenedRun> {
    const { home, runtime, machines, observer, version } = this.#options;
    const check = (task: Task, name: string): void => {
      checkContinues(config, harness(name));
      taskChecker(this.#options, config, [harness(name)], machines)(task);
    };
    const opened: OpenRun = new OpenRun({
      home,
      config,
      runtime,
      log,
      state,
      harness,
      observer,
      services: (signal) => tryServices(this.#options, { config, machines, model, layers: (of) => this.#layers.of(of) }, signal),
      loadTask,
      check,
      release: async () => {
        this.#open.delete(opened);
        await model.close();
      },
    });
    await opened.start(run, version);
    this.#open.add(opened);
    return { run: opened, state, model, check };
  }

  /** What `startRun` and `resumeRun` need for runs by plan on this host, which end before it is closed. */
  planned(own: Pick<RunDependencies, "observer" | "signal" | "started" | "newRun">): RunDependencies {
    const { home, version, runtime, env, machines, makeHarness } = this.#options;
    return { ...own, home, version, runtime, env, makeHarness, gateway: this.#gateway, openMachines: async () => ({ ...machines, close: async () => undefined }) };
  }

  /** Key of the model servers that runs use; null: none. */
  get apiKey(): string | null {
    return this.#options.apiKey;
  }

  /** How long the machines outlive this process; null: they do not. */
  get takeOverSeconds(): number | null {
    return this.#options.takeOverSeconds ?? null;
  }

  /** Closes what is still open, for a later process to go on with. */
  async close(): Promise<void> {
    this.#closing.abort(new MwError("cancelled", "closing"));
    await Promise.all([...this.#open].map((run) => run.close()));
    await this.#gateway.close();
  }

  async #config(run: RunId, { harnesses: names, budgets, trainer, ...request }: TrainerRun, makeHarness: RunHostOptions["makeHarness"]): Promise<RunConfig> {
    const { home, runtime, version } = this.#options;
    if (await exists(runDirectory(home, run))) return await readRunConfig(home, run);
    const settings = { script: null, harnessCommand: null, harnessUser: null, agent: {} };
    const { tokenizer } = trainer;
    const made = names.map((name) => makeHarness(name, settings));
    for (const harness of made) checkContinues(request, harness);
    const config: RunConfig = {
      ...request,
      ...settings,
      format: 1,
      run,
      createdAt: new Date(runtime.now()).toISOString(),
      version,
      harnesses: made.map(({ name, version: of, settings: own }) => ({ name, version: of, settings: own })),
      upstream: null,
      apiKeyFile: null,
      budgets: { ...budgets, ...COMMAND_BUDGETS },
      image: null,
      pauseOnThink: false,
      takeOverSeconds: null,
      branch: null,
      backend: "native",
      timeoutMultiplier: 1,
      durability: "process",
      rules: DEFAULT_OUTCOME_RULES,
      trainer: { ...trainer, tokenizer: tokenizer === null ? null : { ...tokenizer, digest: await directoryDigest(tokenizer.directory) } },
    };
    await createRunDirectory(home, run, config, {}, config.durability);
    return config;
  }
}

interface Opening {
  readonly run: RunId;
  readonly config: RunConfig;
  readonly model: ModelAccess;
  readonly state: RunState;
  readonly log: Awaited<ReturnType<typeof openRunLog>>;
  readonly harness: (name: string) => Harness;
}

/** Made once each, when it is first drawn. */
function harnesses(config: RunConfig, makeHarness: RunHostOptions["makeHarness"]): (name: string) => Harness {
  const made = new Map<string, Harness>();
  return (name) => {
    const harness = made.get(name) ?? makeHarness(name, { ...config, script: null });
    made.set(name, harness);
    return harness;
  };
}

function checkContinues({ checkpointEveryMs }: Pick<RunConfig, "checkpointEveryMs">, { name, continues }: Harness): void {
  if (checkpointEveryMs === null || continues === true) return;
  throw new MwError("usage", `rollouts of this run are kept between their turns, and the harness ${name} cannot go on in the middle of its work`, { fix: "name white-box harnesses, such as bash, or ask for no checkpoints of rollouts" });
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}

/**
 * A training with the embedded policy, as a whole: its directory, the policy server, the learner, the machines and the delivery of one run, opened in that order and closed in the
 * other. The rollouts are those of an ordinary run directory; the delivery's own files are in the training's.
 */
import { access, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import type { RunId } from "../core/ids.ts";
import type { Runtime } from "../core/runtime.ts";
import { runRequestSchema, type RunRequest } from "../delivery/contract.ts";
import { KeptBudget } from "../delivery/kept-members.ts";
import { machineWorkers } from "../delivery/machines/worker.ts";
import { DeliveryService } from "../delivery/service.ts";
import { LIMITS } from "../core/limits.ts";
import { RunHost, type RunHostOptions } from "../rollout/run-host.ts";
import { writeDurably } from "../store/durable.ts";
import { Checkpoints, type StepRecord } from "./checkpoint.ts";
import { TaskDraw } from "./draw.ts";
import { evaluate, type Evaluation } from "./evaluate.ts";
import { initialAdam } from "./learn/adam.ts";
import type { LearnerContract, LearnerGiven } from "./learner-thread.ts";
import { TrainingLoop } from "./loop.ts";
import { initialParameters } from "./model/shape.ts";
import { writeTokenizer } from "./model/vocabulary.ts";
import { startPolicy } from "./policy.ts";
import { EMBEDDED_MODEL, readSettings, type TrainSettings } from "./settings.ts";
import { Thread } from "./thread.ts";

/** Makes the directory of a new training. Rejects `conflict` for one that holds a training already. */
export async function createTraining(directory: string, settings: TrainSettings): Promise<void> {
  const file = join(directory, "train.json");
  if (await access(file).then(() => true, () => false)) throw new MwError("conflict", `${directory} holds a training already`, { fix: "add --resume to go on with it, or name another directory with --dir" });
  await mkdir(directory, { recursive: true });
  await writeTokenizer(join(directory, "tokenizer"));
  const parameters = initialParameters(settings.shape, settings.seed);
  await new Checkpoints(directory, settings.shape).write({ step: 0, nextGroup: 0, trained: [], history: [] }, { parameters, adam: initialAdam(parameters) });
  await writeDurably(file, `${JSON.stringify(settings, null, 2)}\n`, "process");
}

export interface TrainingParts extends Omit<RunHostOptions, "apiKey"> {
  readonly directory: string;
  readonly runtime: Runtime;
  readonly stepped: (record: StepRecord) => void;
}

export interface Training {
  readonly settings: TrainSettings;
  readonly loop: TrainingLoop;
  readonly delivery: DeliveryService;
  /** Of the newest weights on tasks that are not trained on: the most likely answer to each. */
  evaluate(tasks: readonly string[], signal: AbortSignal): Promise<Evaluation>;
  /** `finished`: nothing is to be gone on with. */
  close(finished: boolean): Promise<void>;
}

/** Rejects when there is no training, or its files are damaged, or another policy's. */
export async function openTraining(parts: TrainingParts): Promise<Training> {
  const { directory, runtime, home } = parts;
  const settings = await readSettings(directory);
  if (settings.home !== home) throw new MwError("usage", `the rollouts of ${directory} are recorded in ${settings.home}, and this is ${home}`, { fix: `set MW_HOME=${settings.home}` });
  const checkpoints = new Checkpoints(directory, settings.shape);
  const checkpoint = await checkpoints.latest();
  if (checkpoint === null) throw new MwError("corrupt", `${directory} has no checkpoint`, { fix: "begin anew in another directory" });
  const closers: (() => Promise<unknown>)[] = [];
  const closeAll = async (): Promise<void> => {
    for (const close of closers.splice(0).toReversed()) await close();
  };
  try {
    const policy = await startPolicy({ shape: settings.shape, model: EMBEDDED_MODEL, directory: checkpoint.directory, version: String(checkpoint.state.step) }, runtime);
    closers.push(() => policy.close());
    const reference = initialParameters(settings.shape, settings.seed);
    const given: LearnerGiven = { shape: settings.shape, rules: settings.rules, state: checkpoint.learner, reference };
    const learner = new Thread<LearnerContract>("the learner", "./learner-thread", import.meta.url, given);
    closers.push(() => learner.close());
    const host = await RunHost.open({ ...parts, apiKey: policy.key });
    closers.push(() => host.close());
    const open = (name: string, run: RunId, request: RunRequest, place: string): Promise<DeliveryService> =>
      DeliveryService.open({
        directory: place,
        name,
        run,
        epoch: 1,
        createdAt: Date.parse(settings.createdAt),
        request,
        mix: null,
        runtime,
        durability: "process",
        kept: new KeptBudget(LIMITS.deliveryKeptBytes),
        openWorker: () => machineWorkers({ home, host, runtime })({ run, name, epoch: 1, request }),
      });
    // The id was written by `createTraining`.
    const delivery = await open(settings.name, settings.run as RunId, requestOf(settings, directory), join(directory, "delivery"));
    let ended = false;
    closers.push(async () => {
      if (ended) await delivery.end("the training is done");
      await delivery.close();
    });
    const loop = new TrainingLoop(
      { delivery, draw: new TaskDraw(settings.tasks, settings.seed), shape: settings.shape, checkpoints, learner, policy, model: EMBEDDED_MODEL, runtime, stepped: parts.stepped },
      settings,
      checkpoint,
    );
    return {
      settings,
      loop,
      delivery,
      evaluate: (tasks, signal) => evaluate({ tasks, directory, policy, version: loop.history.length, runtime, signal, request: requestOf(settings, directory), open: (run, request, place) => open("held-out", run, request, place) }),
      close: async (finished) => {
        ended = finished;
        await closeAll();
      },
    };
  } catch (error) {
    await closeAll();
    throw error;
  }
}

/** Temperature 1 and no truncation: what is sampled is what is trained. */
function requestOf({ seed, groupSize, concurrency, harness, turns, answerTokens, batchGroups, maxStaleness, ignoreLimits, prices, shape }: TrainSettings, directory: string): RunRequest {
  return runRequestSchema.parse({
    seed,
    group_size: groupSize,
    concurrency,
    harness: [harness],
    budgets: { turns },
    sampling: { temperature: 1, top_p: 1, max_tokens: answerTokens },
    tokenizer: { directory: join(directory, "tokenizer") },
    batch_groups: batchGroups,
    max_staleness: maxStaleness,
    // Short: after a kill the groups that were in hand come back when it is over.
    lease_s: 30,
    samples: { vocab_size: shape.vocabulary, max_tokens: shape.context },
    ignore_limits: ignoreLimits,
    ...(prices === undefined ? {} : { prices }),
  });
}

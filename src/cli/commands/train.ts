/** `mw train` */
import { existsSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { MwError } from "../../core/errors.ts";
import { newId } from "../../core/ids.ts";
import { availableParallelism } from "node:os";
import { absoluteInput, readInputs } from "../../rollout/inputs.ts";
import { createTraining } from "../../trainer/embedded.ts";
import { EMBEDDED_RULES, EMBEDDED_SHAPE, type TrainSettings } from "../../trainer/settings.ts";
import { loadConfig, type Config } from "../config.ts";
import type { AppContext } from "../context.ts";
import { note, printJson, printLine } from "../output.ts";
import { parsePrices } from "../parsers.ts";
import { printCost } from "../run-cost.ts";
import { trainOutside } from "../train-outside.ts";
import { conductTraining } from "../training.ts";
import { curve } from "../training-progress.ts";
import type { TrainFlags } from "../train.ts";

/** What an answer of the embedded policy may take; its vocabulary says all of a command in five tokens. */
export const ANSWER_TOKENS = 6;

export async function train(this: AppContext, flags: TrainFlags, ...tasks: string[]): Promise<void> {
  const config = loadConfig(this.env, this.cwd);
  if (flags.trainer !== "embedded") {
    const own = (["resume", "dir", "heldOut", "steps", "until", "learningRate", "kl"] as const).find((name) => flags[name] !== undefined && flags[name] !== false);
    if (own !== undefined) throw new MwError("usage", `--${own.replaceAll(/[A-Z]/g, (char) => `-${char.toLowerCase()}`)} is for the embedded trainer, and --trainer names another: ${JSON.stringify(flags.trainer)}`, { fix: "leave it out: a trainer of yours decides that itself" });
    await trainOutside(this, config, flags, tasks, flags.trainer);
    return;
  }
  if (flags.checkpoint !== undefined) throw new MwError("usage", "--checkpoint is for a trainer of yours: rollouts of the embedded one have a single turn", { fix: "leave it out" });
  const directory = flags.resume ? resumedDirectory(this, flags, tasks) : await begin(this, config, flags, tasks);
  const stop = new AbortController();
  const unlisten = this.onInterrupt(() => {
    if (!stop.signal.aborted) note(this, "stopping: the step under way is finished, rollouts under way are left for the next time");
    stop.abort(new MwError("cancelled", "interrupted"));
  });
  try {
    const { ended, document, history } = await conductTraining(this, config, { directory, quiet: flags.quiet, signal: stop.signal });
    if (flags.json) printJson(this, document);
    else if (history.length > 0) {
      printLine(this, curve(history));
      printLine(this, `\nmean reward ${document.meanFirst.toFixed(3)} -> ${document.meanLast.toFixed(3)} in ${document.steps} steps, ${document.rollouts} rollouts, ${document.seconds.toFixed(0)} s; staleness at most ${document.stalenessMax}`);
      await printCost(this, config.home.value, document.run);
    }
    if (ended === "stopped") {
      note(this, `stopped after step ${document.steps}: mw train --resume --dir ${directory} goes on`);
      this.setExitCode(130);
      return;
    }
    if (!flags.quiet && !flags.json) note(this, `\nmw show ${document.run} shows the rollouts; the weights are in ${directory}`);
    if (document.meanLast <= document.meanFirst) this.setExitCode(1);
  } finally {
    unlisten();
  }
}

function resumedDirectory({ cwd }: AppContext, flags: TrainFlags, tasks: readonly string[]): string {
  const given = (["heldOut", "harness", "seed", "steps", "until", "groupSize", "batch", "maxStaleness", "concurrency", "learningRate", "kl", "price"] as const).find((name) => flags[name] !== undefined);
  if (flags.dir === undefined) throw new MwError("usage", "--resume needs the directory of the training", { fix: "add --dir DIRECTORY, as mw train printed it" });
  if (tasks.length > 0 || given !== undefined) throw new MwError("usage", `a training goes on as it was begun, and ${tasks.length > 0 ? "tasks are named" : `another ${given ?? "setting"} is given`}`, { fix: "leave everything but --dir out, or begin anew without --resume" });
  return resolve(cwd, flags.dir);
}

async function begin(context: AppContext, config: Config, flags: TrainFlags, inputs: readonly string[]): Promise<string> {
  if (inputs.length === 0) throw new MwError("usage", "no tasks are named", { fix: "mw train worlds/errands/train" });
  const settings = await newTraining(context, config, flags, inputs);
  const directory = flags.dir === undefined ? join(config.home.value, "training", settings.name) : resolve(context.cwd, flags.dir);
  if (existsSync(directory) && !statSync(directory).isDirectory()) throw new MwError("usage", `--dir ${directory} is no directory`, { fix: "name a directory, which is made where there is none" });
  await createTraining(directory, settings);
  if (!flags.quiet) note(context, `training in ${directory}\nrun ${settings.run}`);
  return directory;
}

/** Also for `mw demo`. */
export async function newTraining({ cwd, runtime }: Pick<AppContext, "cwd" | "runtime">, config: Config, flags: Omit<TrainFlags, "trainer" | "resume" | "dir" | "json" | "quiet">, inputs: readonly string[]): Promise<TrainSettings> {
  const run = newId("run", runtime);
  return {
    format: 1,
    name: `train-${run}`,
    run,
    home: config.home.value,
    createdAt: new Date(runtime.now()).toISOString(),
    seed: flags.seed ?? Buffer.from(runtime.randomBytes(8)).toString("hex"),
    tasks: await tasksOf(cwd, inputs),
    heldOut: flags.heldOut === undefined ? [] : await tasksOf(cwd, flags.heldOut),
    harness: flags.harness ?? "fenced",
    steps: flags.steps ?? 100,
    until: flags.until ?? null,
    groupSize: flags.groupSize ?? 8,
    batchGroups: flags.batch ?? 8,
    maxStaleness: flags.maxStaleness ?? 2,
    concurrency: flags.concurrency ?? availableParallelism() * 4,
    turns: 1,
    answerTokens: ANSWER_TOKENS,
    ignoreLimits: flags.ignoreLimits,
    ...(flags.price === undefined ? {} : { prices: parsePrices(flags.price) }),
    shape: EMBEDDED_SHAPE,
    rules: { ...EMBEDDED_RULES, kl: flags.kl ?? EMBEDDED_RULES.kl, learningRate: flags.learningRate ?? EMBEDDED_RULES.learningRate },
  };
}

/** Sorted, so that the draw depends on nothing but the seed and the names. Rejects with what makes an input no task. */
async function tasksOf(cwd: string, inputs: readonly string[]): Promise<string[]> {
  const directories: string[] = [];
  for await (const { directory, error } of readInputs(inputs.map((input) => absoluteInput(cwd, input)))) {
    if (directory === null) throw error ?? new MwError("invalid_input", "an input is no task");
    directories.push(directory);
  }
  if (directories.length === 0) throw new MwError("invalid_input", `there are no tasks in ${inputs.join(", ")}`, { fix: "name task directories or directories of tasks" });
  return directories.sort();
}

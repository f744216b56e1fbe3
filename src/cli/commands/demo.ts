/**
 * `mw demo`: the shipped tasks with a reference and an idle agent, in real machines, then a policy that learns in them; what a first visitor runs and what a changed host is checked
 * with.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { messageOf, MwError } from "../../core/errors.ts";
import { DEFAULT_OUTCOME_RULES } from "../../core/outcome.ts";
import { openImageStore } from "../../image/index.ts";
import { runDocument, type RunDocument } from "../../rollout/report.ts";
import { startRun, type NewRun } from "../../rollout/run.ts";
import { countLeftovers, type Leftovers } from "../../sandbox/leftovers.ts";
import { createTraining } from "../../trainer/embedded.ts";
import { runWithProgress } from "../conduct.ts";
import { loadConfig, type Config } from "../config.ts";
import type { AppContext } from "../context.ts";
import { formatTable, note, printJson, printLine, styler } from "../output.ts";
import { conductTraining } from "../training.ts";
import { curve } from "../training-progress.ts";
import { newTraining } from "./train.ts";

export interface DemoFlags {
  readonly json: boolean;
  readonly quiet: boolean;
  readonly train: boolean;
  readonly concurrency?: number;
}

const TASKS = fileURLToPath(new URL("../../../worlds/terminal", import.meta.url));
const ERRANDS = fileURLToPath(new URL("../../../worlds/errands", import.meta.url));
const BASE_IMAGE = "manyworlds/terminal";

/** Mean reward over four steps at which the policy has learnt what is to be shown, and the least that must come of it. */
const LEARNT_ENOUGH = 0.9;
const LEARNT = 0.8;
/** A policy that tries only one thing for a kind of task learns no more. That is rare; others need some fifty. */
const MOST_STEPS = 96;
/** Of the first weights and the draw, one after the other where a start was unlucky. */
const SEEDS = ["demo", "demo-2", "demo-3", "demo-4"] as const;

export async function demo(this: AppContext, flags: DemoFlags): Promise<void> {
  if (!existsSync(TASKS)) throw new MwError("environment", `the shipped tasks are not at ${TASKS}`, { fix: "run ./mw demo from a checkout" });
  const config = await withBaseImage(this, loadConfig(this.env, this.cwd, { concurrency: flags.concurrency }), flags.quiet);
  const results: Record<"oracle" | "nop", RunDocument> = { oracle: await attempt(this, config, flags, "oracle"), nop: await attempt(this, config, flags, "nop") };
  const trained = flags.train ? await learn(this, config, flags) : null;
  const leftovers = countLeftovers(config.home.value);
  const leaked = leftovers.processes + leftovers.controlGroups + leftovers.machines + leftovers.mounts;
  const document = { tasks: results.oracle.rollouts.length, oracle: figures(results.oracle), nop: figures(results.nop), leaked };
  if (flags.json) printJson(this, trained === null ? document : { ...document, train: trained.figures });
  else print(this, results, document, leftovers, trained);
  const sound = (trained === null || trained.figures.meanLast >= LEARNT) && document.oracle.mean === 1 && document.nop.mean === 0 && leaked === 0 && document.oracle.scored === document.tasks && document.nop.scored === document.tasks;
  if (!sound) this.setExitCode(1);
}

interface Learnt {
  readonly figures: { readonly rollouts: number; readonly meanFirst: number; readonly meanLast: number; readonly seconds: number; readonly stalenessMax: number; readonly heldOut: { readonly first: number | null; readonly last: number | null } };
  readonly curve: string;
  readonly run: string;
}

/** The closed loop: a policy that begins with random weights and learns from the verifier's rewards alone. */
async function learn(context: AppContext, config: Config, flags: DemoFlags): Promise<Learnt> {
  if (!flags.quiet) note(context, "A small policy, trained on the rewards of its own rollouts; each runs in a machine of its own and is graded in another:");
  const stop = new AbortController();
  const unlisten = context.onInterrupt(() => stop.abort(new MwError("cancelled", "interrupted")));
  try {
    let learnt = await learnFrom(SEEDS[0], context, config, flags, stop.signal);
    for (const seed of SEEDS.slice(1)) {
      if (learnt.figures.meanLast >= LEARNT) break;
      note(context, `An unlucky start: it is at ${learnt.figures.meanLast.toFixed(3)} after ${MOST_STEPS} steps. Once more, with other random weights:`);
      learnt = await learnFrom(seed, context, config, flags, stop.signal);
    }
    return learnt;
  } finally {
    unlisten();
  }
}

async function learnFrom(seed: string, context: AppContext, config: Config, flags: DemoFlags, signal: AbortSignal): Promise<Learnt> {
  const settings = await newTraining(context, config, { heldOut: [join(ERRANDS, "held-out")], seed, steps: MOST_STEPS, until: LEARNT_ENOUGH, ignoreLimits: true, ...(flags.concurrency === undefined ? {} : { concurrency: flags.concurrency }) }, [join(ERRANDS, "train")]);
  const directory = join(config.home.value, "training", settings.name);
  await createTraining(directory, settings);
  const { ended, document, history } = await conductTraining(context, config, { directory, quiet: flags.quiet, signal });
  if (ended === "stopped") throw new MwError("cancelled", "the demonstration was interrupted", { fix: `./mw train --resume --dir ${directory} goes on with this part` });
  const { rollouts, meanFirst, meanLast, seconds, stalenessMax, heldOut } = document;
  return { figures: { rollouts, meanFirst, meanLast, seconds, stalenessMax, heldOut: { first: heldOut?.first ?? null, last: heldOut?.last ?? null } }, curve: curve(history), run: document.run };
}

/** The base of the shipped tasks; where it cannot be bootstrapped, the host's own programs stand in. */
async function withBaseImage(context: AppContext, config: Config, quiet: boolean): Promise<Config> {
  const progress = (message: string): void => {
    if (!quiet) note(context, message);
  };
  const images = await openImageStore({ home: config.home.value, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime });
  try {
    await images.resolve(BASE_IMAGE, { progress });
    return config;
  } catch (error) {
    note(context, `${BASE_IMAGE} cannot be made here (${messageOf(error)}); the host's own programs stand in for it`);
    return { ...config, imageAliases: { ...config.imageAliases, [BASE_IMAGE]: "host" } };
  }
}

async function attempt(context: AppContext, config: Config, flags: DemoFlags, harness: "oracle" | "nop"): Promise<RunDocument> {
  if (!flags.quiet) note(context, harness === "oracle" ? "The reference solution of each task, each in a machine of its own:" : "An agent that does nothing:");
  const request: NewRun = {
    inputs: [TASKS],
    attempts: 1,
    seed: "demo",
    harnesses: [harness],
    script: null,
    harnessCommand: null,
    harnessUser: null,
          agent: {},
    pauseOnThink: false,
    checkpointEveryMs: null,
    takeOverSeconds: null,
    branch: null,
    backend: "native",
    upstream: null,
    apiKeyFile: null,
    budgets: { turns: 1, tokens: null, commandMs: 600_000, outputBytes: 16 * 1024 },
    network: null,
    image: null,
    // The tasks' limits are honoured where the host can enforce them; the demonstration does not depend on them.
    ignoreLimits: true,
    keepWorkspace: false,
    timeoutMultiplier: config.get("timeoutMultiplier") ?? 1,
    concurrency: flags.concurrency ?? 4,
    durability: "process",
    rules: DEFAULT_OUTCOME_RULES,
  };
  const end = await runWithProgress(context, config, flags.quiet, (dependencies) => startRun(dependencies, request, null));
  if (end.ended === "interrupted") throw new MwError("cancelled", "the demonstration was interrupted", { fix: `./mw resume ${end.run} goes on with this part` });
  return runDocument(end.state);
}

function figures(document: RunDocument): { readonly scored: number; readonly mean: number | null } {
  const rewards = document.rollouts.flatMap(({ reward }) => (reward === null ? [] : [reward]));
  return { scored: rewards.length, mean: rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length };
}

function print(
  context: AppContext,
  { oracle, nop }: Record<"oracle" | "nop", RunDocument>,
  document: { readonly tasks: number; readonly oracle: ReturnType<typeof figures>; readonly nop: ReturnType<typeof figures>; readonly leaked: number },
  leftovers: Leftovers,
  trained: Learnt | null,
): void {
  const paint = styler(context.process.stdout, context.env);
  const cell = (rollout: RunDocument["rollouts"][number] | undefined): string => (rollout === undefined ? "-" : rollout.reward === null ? (rollout.outcome ?? "-") : String(rollout.reward));
  const rows = oracle.rollouts
    .toSorted((a, b) => (a.family + a.task < b.family + b.task ? -1 : 1))
    .map((rollout) => [rollout.family, rollout.task, cell(rollout), cell(nop.rollouts.find(({ task }) => task === rollout.task)), `${rollout.seconds.toFixed(1)} s`]);
  rows.push(["", "mean", document.oracle.mean?.toFixed(3) ?? "-", document.nop.mean?.toFixed(3) ?? "-", ""]);
  const right = "right" as const;
  printLine(context, formatTable([{ title: "family" }, { title: "task" }, { title: "reference", align: right }, { title: "idle", align: right }, { title: "time", align: right }], rows, paint));
  printLine(context);
  if (trained !== null) {
    const { rollouts, meanFirst, meanLast, seconds, stalenessMax, heldOut } = trained.figures;
    printLine(context, `${trained.curve}\n`);
    printLine(context, `A policy learnt: mean reward ${meanFirst.toFixed(3)} -> ${meanLast.toFixed(3)} in ${rollouts} rollouts and ${seconds.toFixed(0)} s, never more than ${stalenessMax} steps stale.`);
    printLine(context, `On tasks that it was not trained on: ${heldOut.first?.toFixed(3) ?? "-"} -> ${heldOut.last?.toFixed(3) ?? "-"}.\n`);
  }
  printLine(context, `${document.tasks * 2 + (trained?.figures.rollouts ?? 0)} rollouts, each in a fresh machine, each graded in another. Left behind: ${document.leaked === 0 ? "nothing" : JSON.stringify(leftovers)}.`);
  printLine(context);
  const unscored = oracle.rollouts.find(({ outcome }) => outcome !== "scored");
  if (unscored !== undefined) printLine(context, `${oracle.rollouts.filter(({ outcome }) => outcome !== "scored").length} of ${document.tasks} tasks could not be done here: ./mw show ${oracle.run} says why, ./mw doctor what this host lacks.\n`);
  printLine(context, "Next:");
  printLine(context, `  ./mw show ${oracle.run}    # rewards, and where the time went`);
  printLine(context, `  ./mw show ${oracle.rollouts[0]?.rollout ?? "ROLLOUT"}     # one rollout: commands, output, verdict`);
  if (trained !== null) printLine(context, `  ./mw show ${trained.run}    # what the policy tried`);
  printLine(context, "  ./mw sandbox run host -- id           # a machine by hand");
  printLine(context, "  ./mw run worlds/terminal --upstream http://127.0.0.1:8000/v1 --model NAME -n 8    # your model");
}

/** `mw train`: names, flags and help. */
import { buildCommand, type Command } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import type { AppContext } from "./context.ts";
import { setting } from "./run-flags.ts";
import { SETTINGS } from "./settings.ts";
import { decimalParser, everyTurnParser, integerParser, textParser } from "./parsers.ts";

export interface TrainFlags {
  readonly trainer: string;
  readonly resume: boolean;
  readonly dir?: string;
  readonly heldOut?: readonly string[];
  readonly harness?: string;
  readonly seed?: string;
  readonly steps?: number;
  readonly until?: number;
  readonly groupSize?: number;
  readonly batch?: number;
  readonly maxStaleness?: number;
  readonly concurrency?: number;
  readonly checkpoint?: number;
  readonly learningRate?: number;
  readonly kl?: number;
  readonly price?: string;
  readonly ignoreLimits: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
}

const number = (least: number, most: number, brief: string) => ({ kind: "parsed", parse: integerParser(least, most), optional: true, placeholder: "n", brief }) as const;

export const trainCommand: Command<AppContext> = buildCommand<TrainFlags, string[], AppContext>({
  loader: async () => (await import("./commands/train.ts")).train,
  parameters: {
    flags: {
      trainer: { kind: "parsed", parse: textParser, default: "embedded", placeholder: "embedded|URL", brief: "who trains: embedded, a small policy of this program's own on this host's processors; or the address at which a trainer of yours comes for rollouts" },
      resume: { kind: "boolean", default: false, withNegated: false, brief: "go on with the training in --dir; everything else is as it was begun" },
      dir: { kind: "parsed", parse: textParser, optional: true, placeholder: "directory", brief: "where checkpoints are kept (default: training/NAME in MW_HOME)" },
      heldOut: { kind: "parsed", parse: textParser, variadic: true, optional: true, placeholder: "task", brief: "task or directory of tasks that is not trained on, tried before and after; repeatable" },
      harness: { kind: "parsed", parse: textParser, optional: true, placeholder: "name", brief: "agent that the policy drives (default fenced: one command in a fenced block)" },
      seed: { kind: "parsed", parse: textParser, optional: true, placeholder: "text", brief: "seed of the weights, the order of tasks and the rollouts (default: drawn and recorded)" },
      steps: number(1, 1_000_000, "steps of training in all (default 100)"),
      until: { kind: "parsed", parse: decimalParser(0, 1), optional: true, placeholder: "x", brief: "end before that when the mean reward of the last 4 steps is this" },
      groupSize: number(2, 4096, "rollouts of one task that are compared with each other (default 8)"),
      batch: number(1, 4096, "groups of a step (default 8)"),
      maxStaleness: number(0, 100, "steps that the weights may be ahead of those that sampled (default 2)"),
      concurrency: number(1, LIMITS.sandboxesPerHost / 2, "rollouts alive at once (default: 4 for each processor)"),
      checkpoint: {
        kind: "parsed",
        parse: everyTurnParser,
        optional: true,
        placeholder: "every-turn|time",
        brief: "for a trainer of yours: keep rollouts of white-box harnesses between their turns, behind every one or at most so often (such as 30s), so that the same command goes on in the middle of them",
      },
      learningRate: { kind: "parsed", parse: decimalParser(0, 1), optional: true, placeholder: "x", brief: "of Adam" },
      kl: { kind: "parsed", parse: decimalParser(0, 100), optional: true, placeholder: "x", brief: "factor of the penalty for leaving the first weights (default 0)" },
      price: { ...setting("price", "input=x,output=y"), brief: `${SETTINGS.price.brief} (for a trainer of yours also ${SETTINGS.price.env}; the embedded policy costs nothing unless this is given)` },
      ignoreLimits: { kind: "boolean", default: false, withNegated: false, brief: "run tasks although this host cannot hold them to their limits; the record says so" },
      json: { kind: "boolean", default: false, withNegated: false, brief: "print the result as one JSON document on stdout" },
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" },
    },
    positional: { kind: "array", parameter: { parse: textParser, placeholder: "task", brief: "task directory, directory of tasks, or dataset file" } },
    aliases: { j: "concurrency", q: "quiet", n: "groupSize" },
  },
  docs: {
    brief: "Train a policy on tasks: rollouts in machines, graded in others, while the weights change",
    fullDescription: [
      "Draws tasks by the seed, runs groups of rollouts of each, and moves the weights towards what was better than its group (GRPO), while the next groups run.",
      "The embedded policy is a transformer of some ten thousand parameters that starts from nothing. Its vocabulary is that of worlds/errands; it shows that the loop is closed, and is no language model.",
      "With --trainer http://127.0.0.1:8790 rollouts are delivered at that address to a trainer of yours, which names its policy and leases groups: run train, or NAME with .../v1/runs/NAME. Each argument is then a part of the mix: [NAME=]PATH[@WEIGHT]. The same command goes on with the run.",
      "Every step is a checkpoint. Ctrl-C ends between two steps; --resume goes on exactly, also after a kill. Exits with 1 when nothing was learnt.",
    ].join("\n"),
    customUsage: ["worlds/terminal@2 errands=worlds/errands/train --trainer http://127.0.0.1:8790", "worlds/errands/train --held-out worlds/errands/held-out --seed 1", "--resume --dir DIRECTORY"],
  },
});

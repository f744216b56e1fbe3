/** What a training was asked for, as it stands in its directory's `train.json`: going on with it needs nothing else. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { messageOf, MwError } from "../core/errors.ts";
import { pricesSchema } from "../rollout/cost.ts";
import type { LearningRules } from "./learn/learner.ts";
import type { ModelShape } from "./model/shape.ts";
import { VOCABULARY } from "./model/vocabulary.ts";

const number = z.number();
const count = z.int().nonnegative();

export const trainSettingsSchema = z.strictObject({
  format: z.literal(1),
  /** Of the delivery run, and of the run directory under `MW_HOME/runs`. */
  name: z.string(),
  run: z.string(),
  /** The data directory: rollouts are recorded there. */
  home: z.string(),
  createdAt: z.string(),
  seed: z.string(),
  /** Absolute directories. */
  tasks: z.array(z.string()).min(1),
  heldOut: z.array(z.string()),
  harness: z.string(),
  steps: count.min(1),
  until: number.nullable(),
  groupSize: count.min(2),
  batchGroups: count.min(1),
  maxStaleness: count,
  concurrency: count.min(1),
  turns: count.min(1),
  answerTokens: count.min(1),
  ignoreLimits: z.boolean(),
  /** Absent: nobody said, and it costs nothing. */
  prices: pricesSchema.exactOptional(),
  shape: z.strictObject({ layers: count, width: count, heads: count, context: count, vocabulary: count, spokenFrom: count, spoken: count }),
  rules: z.strictObject({
    clipLow: number,
    clipHigh: number,
    kl: number,
    entropy: number,
    entropySteps: count.min(1),
    learningRate: number,
    beta1: number,
    beta2: number,
    epsilon: number,
    gradientNorm: number,
    epochs: count,
    correctionCap: number,
  }),
});
export type TrainSettings = z.infer<typeof trainSettingsSchema>;

export const EMBEDDED_MODEL = "manyworlds-embedded";

export const EMBEDDED_SHAPE: ModelShape = { layers: 1, width: 32, heads: 4, context: 128, ...VOCABULARY };

export const EMBEDDED_RULES: LearningRules = {
  clipLow: 0.2,
  clipHigh: 0.28,
  kl: 0,
  entropy: 0.15,
  entropySteps: 80,
  learningRate: 0.005,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  gradientNorm: 1,
  epochs: 3,
  correctionCap: 2,
};

/** Rejects `not_found` for a directory without a training, `corrupt` for one that is not as it was written. */
export async function readSettings(directory: string): Promise<TrainSettings> {
  const path = join(directory, "train.json");
  const text = await readFile(path, "utf8").catch((error: unknown) => {
    throw new MwError("not_found", `there is no training in ${directory}: ${messageOf(error)}`, { fix: "name the directory that mw train printed, or leave --resume out to begin anew", cause: error });
  });
  try {
    return trainSettingsSchema.parse(JSON.parse(text));
  } catch (error) {
    throw new MwError("corrupt", `${path} is not what was written: ${messageOf(error)}`, { cause: error, fix: "restore it, or begin anew in another directory" });
  }
}

/**
 * A training directory: `train.json` (what was asked for), `tokenizer/`, and a directory `step-NNNNNN/` for each of the newest steps, whole or not there: `model.safetensors`, the
 * optimiser's two moments, and `state.json` with everything else that the next step depends on. A training that goes on from a checkpoint computes what it would have computed.
 */
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { messageOf, MwError } from "../core/errors.ts";
import { syncDirectory, writeDurably } from "../store/durable.ts";
import type { LearnerState } from "./learn/learner.ts";
import { parameterShapes, type ModelShape } from "./model/shape.ts";
import { readTensors, writeTensors } from "./safetensors.ts";

const number = z.number();
const count = z.int().nonnegative();

/** What one step did, for people and for the result. */
export const stepRecordSchema = z.strictObject({
  step: count,
  /** Since the training began, seconds in which it ran; what lies between two processes does not count. */
  seconds: number,
  rollouts: count,
  meanReward: number,
  rewardSum: number,
  /** Policy version of the trainer minus that of the oldest token, at most over the step's groups. */
  staleness: count,
  failedMembers: count,
  loss: number,
  gradientNorm: number,
  meanLogprob: number,
  drift: number,
  truncated: number,
  clipped: number,
  learnMs: number,
});
export type StepRecord = z.infer<typeof stepRecordSchema>;

const stateSchema = z.strictObject({
  format: z.literal(1),
  step: count,
  adamCount: count,
  /** Number of the next group that nobody has submitted. */
  nextGroup: count,
  /** Groups of the last step, by the lease that they came with: it may not have been acknowledged any more. */
  trained: z.array(z.strictObject({ lease: z.string(), groups: z.array(z.string()) })),
  history: z.array(stepRecordSchema),
});
export type TrainState = Omit<z.infer<typeof stateSchema>, "format" | "adamCount">;

export interface Checkpoint {
  readonly directory: string;
  readonly state: TrainState;
  readonly learner: LearnerState;
}

/** Enough to look back, and to survive the loss of the newest. */
const KEPT = 3;

export class Checkpoints {
  readonly #directory: string;
  readonly #shape: ModelShape;

  constructor(directory: string, shape: ModelShape) {
    this.#directory = directory;
    this.#shape = shape;
  }

  /** Null when there is none. Rejects `corrupt` for one that is not what was written. */
  async latest(): Promise<Checkpoint | null> {
    const step = (await this.#steps()).at(-1);
    if (step === undefined) return null;
    const directory = this.#path(step);
    const shapes = parameterShapes(this.#shape);
    const { adamCount, format: _, ...state } = await readState(join(directory, "state.json"));
    const [parameters, first, second] = await Promise.all(["model", "first", "second"].map((name) => readTensors(join(directory, `${name}.safetensors`), shapes)));
    if (parameters === undefined || first === undefined || second === undefined) throw new Error("three files were read");
    return { directory, state, learner: { parameters, adam: { first, second, count: adamCount } } };
  }

  /** On the disk when this resolves. Gives the directory. Older ones are taken away. */
  async write(state: TrainState, { parameters, adam }: LearnerState): Promise<string> {
    const target = this.#path(state.step);
    const temporary = join(this.#directory, `.new-${state.step}`);
    await rm(temporary, { recursive: true, force: true });
    await mkdir(temporary, { recursive: true });
    const shapes = parameterShapes(this.#shape);
    await writeTensors(join(temporary, "model.safetensors"), parameters, shapes);
    await writeTensors(join(temporary, "first.safetensors"), adam.first, shapes);
    await writeTensors(join(temporary, "second.safetensors"), adam.second, shapes);
    await writeDurably(join(temporary, "state.json"), `${JSON.stringify({ format: 1, ...state, adamCount: adam.count })}\n`, "process");
    await rename(temporary, target);
    await syncDirectory(this.#directory);
    for (const old of (await this.#steps()).slice(0, -KEPT)) await rm(this.#path(old), { recursive: true, force: true });
    return target;
  }

  #path(step: number): string {
    return join(this.#directory, `step-${String(step).padStart(6, "0")}`);
  }

  async #steps(): Promise<readonly number[]> {
    const names = await readdir(this.#directory).catch(() => []);
    return names.flatMap((name) => (/^step-\d{6,}$/.test(name) ? [Number(name.slice(5))] : [])).sort((a, b) => a - b);
  }
}

async function readState(path: string): Promise<z.infer<typeof stateSchema>> {
  try {
    return stateSchema.parse(JSON.parse(await readFile(path, "utf8")));
  } catch (error) {
    throw new MwError("corrupt", `${path} is not what was written: ${messageOf(error)}`, { cause: error, fix: "remove the directory of this step: training goes on from the one before it" });
  }
}

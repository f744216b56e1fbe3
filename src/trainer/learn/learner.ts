/** One policy in training: its weights, the optimiser's state, and a step of GRPO over a batch. The same state and batches give the same weights, bit for bit. */
import type * as Jax from "@jax-js/jax";
import { parameter, parameterShapes, type ModelShape, type Parameters } from "../model/shape.ts";
import { adamUpdate, type AdamRules, type AdamState } from "./adam.ts";
import type { Batch } from "./batch.ts";
import { logprobsOf, type Tensors } from "./forward.ts";
import { objective, type ObjectiveInputs, type ObjectiveRules } from "./objective.ts";

export interface LearningRules extends ObjectiveRules, AdamRules {
  /** Updates by one batch. */
  readonly epochs: number;
  /** Factor of a bonus for entropy at the first step; it falls evenly to 0 until the step `entropySteps`. */
  readonly entropy: number;
  readonly entropySteps: number;
  /** Importance weights are never larger than this. */
  readonly correctionCap: number;
}

export interface LearnerState {
  readonly parameters: Parameters;
  readonly adam: AdamState;
}

export interface StepFacts {
  readonly loss: number;
  readonly gradientNorm: number;
  /** Mean over the trained tokens, of the policy before the step: how sure it is of what was sampled. */
  readonly meanLogprob: number;
  /** Mean of old minus sampled log-probabilities, and the share of tokens whose importance weight was cut. */
  readonly drift: number;
  readonly truncated: number;
  /** Share of tokens whose ratio was outside of the clip after the last update. */
  readonly clipped: number;
}

export class Learner {
  readonly #jax: typeof Jax;
  readonly #shape: ModelShape;
  readonly #rules: LearningRules;
  readonly #reference: Parameters;
  readonly #logprobs;
  readonly #gradient;
  #state: LearnerState;

  /** `reference`: what the KL penalty is measured from. */
  constructor(jax: typeof Jax, shape: ModelShape, rules: LearningRules, state: LearnerState, reference: Parameters) {
    this.#jax = jax;
    this.#shape = shape;
    this.#rules = rules;
    this.#state = state;
    this.#reference = reference;
    this.#logprobs = jax.jit((parameters: Tensors, inputs: Jax.Array, targets: Jax.Array, inverseTemperatures: Jax.Array) => {
      const { logprobs, entropies } = logprobsOf(jax, shape, parameters, inputs, targets, inverseTemperatures);
      entropies.dispose();
      return logprobs;
    });
    this.#gradient = jax.jit(jax.valueAndGrad((parameters: Tensors, given: ObjectiveInputs) => objective(jax, shape, rules, parameters, given), { hasAux: true }));
  }

  get state(): LearnerState {
    return this.#state;
  }

  /** Log-probabilities of a batch's targets, under the weights as they are now. */
  async logprobs(batch: Batch, parameters = this.#state.parameters): Promise<Float32Array> {
    const { inputs, targets, inverseTemperatures } = this.#fixed(batch);
    return await numbersOf(this.#logprobs(this.#tensors(parameters), inputs, targets, inverseTemperatures));
  }

  /** What is to become small, and its gradient, at the weights as they are now. */
  async gradient(batch: Batch, { old, reference, corrections }: Readonly<Record<"old" | "reference" | "corrections", Float32Array>>, bonus: number): Promise<{ readonly loss: number; readonly logprobs: Float32Array; readonly gradients: Parameters }> {
    const cells = (values: Float32Array): Jax.Array => this.#tensor(values, [batch.rows, batch.length]);
    const given = { ...this.#fixed(batch), advantages: this.#tensor(batch.advantages, [batch.rows, 1]), old: cells(old), reference: cells(reference), corrections: cells(corrections), shares: cells(batch.shares), bonuses: cells(batch.shares.map((share) => share * bonus)) };
    const [[loss, logprobs], gradients] = this.#gradient(this.#tensors(this.#state.parameters), given);
    const result = new Map<string, Float32Array>();
    for (const [name, tensor] of Object.entries(gradients)) result.set(name, await numbersOf(tensor));
    return { loss: (await numbersOf(loss))[0] ?? Number.NaN, logprobs: await numbersOf(logprobs), gradients: result };
  }

  /** `step`: how many were made before. */
  async step(batch: Batch, step: number): Promise<StepFacts> {
    const { correctionCap, clipLow, clipHigh, epochs, kl, entropy, entropySteps } = this.#rules;
    const bonus = entropy * Math.max(0, 1 - step / entropySteps);
    const old = await this.logprobs(batch);
    const reference = kl === 0 ? old : await this.logprobs(batch, this.#reference);
    const corrections = old.map((logprob, cell) => Math.min(Math.exp(logprob - (batch.sampled[cell] ?? 0)), correctionCap));
    let facts = { loss: 0, gradientNorm: 0 };
    let last = old;
    for (let epoch = 0; epoch < epochs; epoch++) {
      const { loss, logprobs, gradients } = await this.gradient(batch, { old, reference, corrections }, bonus);
      const { parameters, state, norm } = adamUpdate(this.#state.parameters, gradients, this.#state.adam, this.#rules);
      this.#state = { parameters, adam: state };
      if (epoch === 0) facts = { loss, gradientNorm: norm };
      last = logprobs;
    }
    const mean = (of: (cell: number) => number): number => batch.shares.reduce((sum, share, cell) => (share === 0 ? sum : sum + of(cell)), 0) / batch.tokens;
    return {
      ...facts,
      meanLogprob: mean((cell) => old[cell] ?? 0),
      drift: mean((cell) => (old[cell] ?? 0) - (batch.sampled[cell] ?? 0)),
      truncated: mean((cell) => Number((corrections[cell] ?? 0) >= correctionCap)),
      clipped: mean((cell) => {
        const ratio = Math.exp((last[cell] ?? 0) - (old[cell] ?? 0));
        return Number(ratio < 1 - clipLow || ratio > 1 + clipHigh);
      }),
    };
  }

  #fixed(batch: Batch): Record<"inputs" | "targets" | "inverseTemperatures", Jax.Array> {
    return {
      inputs: this.#tensor(batch.inputs, [batch.rows, batch.length]),
      targets: this.#tensor(batch.targets, [batch.rows, batch.length]),
      inverseTemperatures: this.#tensor(batch.inverseTemperatures, [batch.rows, 1]),
    };
  }

  #tensors(parameters: Parameters): Tensors {
    return Object.fromEntries([...parameterShapes(this.#shape)].map(([name, sides]) => [name, this.#tensor(parameter(parameters, name), sides)]));
  }

  /** The library takes over what it is given. */
  #tensor(values: Float32Array | Int32Array, sides: readonly number[]): Jax.Array {
    return this.#jax.numpy.array(values.slice()).reshape([...sides]);
  }
}

async function numbersOf(tensor: Jax.Array): Promise<Float32Array> {
  const data = await tensor.data();
  if (!(data instanceof Float32Array)) throw new Error("32-bit floating point numbers were expected");
  // It may be a view of the library's own memory.
  return data.slice();
}

/**
 * GRPO's objective (DeepSeekMath, arXiv:2402.03300) with one weight for each token: the clipped ratio against the policy at the beginning of the step, truncated importance weights against
 * the policy that sampled (for what is older than that, and for what a sampler computes otherwise), and the penalty for leaving a reference by Schulman's estimator k3.
 */
import type * as Jax from "@jax-js/jax";
import type { ModelShape } from "../model/shape.ts";
import { logprobsOf, type Tensors } from "./forward.ts";

type Tensor = Jax.numpy.Array;

export interface ObjectiveRules {
  /** The ratio counts within `1 - clipLow` and `1 + clipHigh`. */
  readonly clipLow: number;
  readonly clipHigh: number;
  /** Factor of the penalty; 0: no reference. */
  readonly kl: number;
}

/** Each `[batch, length]`, but for `inverseTemperatures` and `advantages`, which are `[batch, 1]`. */
export interface ObjectiveInputs extends Record<string, Tensor> {
  readonly inputs: Tensor;
  readonly targets: Tensor;
  readonly inverseTemperatures: Tensor;
  readonly advantages: Tensor;
  /** Log-probabilities under the policy at the beginning of the step. */
  readonly old: Tensor;
  /** Under the reference. */
  readonly reference: Tensor;
  /** Truncated importance weights. */
  readonly corrections: Tensor;
  /** What each token's term is multiplied with; 0 where nothing is trained, 1 in sum. */
  readonly shares: Tensor;
  /** What each token's entropy is multiplied with: a bonus that keeps a policy trying until it has found out. */
  readonly bonuses: Tensor;
}

/** What is to become small, and the log-probabilities that it was computed from. Consumes everything. */
export function objective(jax: typeof Jax, shape: ModelShape, rules: ObjectiveRules, parameters: Tensors, given: ObjectiveInputs): [Tensor, Tensor] {
  const { numpy: np, lax } = jax;
  const { inputs, targets, inverseTemperatures, advantages, old, reference, corrections, shares, bonuses } = given;
  const { logprobs, entropies } = logprobsOf(jax, shape, parameters, inputs, targets, inverseTemperatures);
  const ratio = np.exp(logprobs.ref.sub(old));
  const clipped = np.clip(ratio.ref, 1 - rules.clipLow, 1 + rules.clipHigh);
  const gain = np.minimum(ratio.mul(advantages.ref), clipped.mul(advantages)).mul(corrections);
  const behind = reference.sub(logprobs.ref);
  const distance = np.exp(behind.ref).sub(behind).sub(1).mul(rules.kl);
  return [np.sum(distance.sub(gain).mul(shares).sub(entropies.mul(bonuses))), lax.stopGradient(logprobs)];
}

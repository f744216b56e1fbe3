/** Adam (arXiv:1412.6980) with the gradient's norm bounded first, on plain arrays: the state is as easily written down as the parameters. */
import { parameter, type Parameters } from "../model/shape.ts";

export interface AdamRules {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  /** Larger gradients are scaled down to this Euclidean norm. */
  readonly gradientNorm: number;
}

export interface AdamState {
  readonly first: Parameters;
  readonly second: Parameters;
  /** Updates so far. */
  readonly count: number;
}

export function initialAdam(parameters: Parameters): AdamState {
  const zeros = (): Parameters => new Map([...parameters].map(([name, values]) => [name, new Float32Array(values.length)]));
  return { first: zeros(), second: zeros(), count: 0 };
}

export interface AdamUpdate {
  readonly parameters: Parameters;
  readonly state: AdamState;
  /** Before it was bounded. Not finite: nothing was changed. */
  readonly norm: number;
}

/** Gives new arrays; what was given stays as it is. */
export function adamUpdate(parameters: Parameters, gradients: Parameters, state: AdamState, rules: AdamRules): AdamUpdate {
  const norm = normOf(gradients);
  if (!Number.isFinite(norm)) return { parameters, state, norm };
  const scale = norm > rules.gradientNorm ? rules.gradientNorm / norm : 1;
  const count = state.count + 1;
  const unbias1 = 1 - rules.beta1 ** count;
  const unbias2 = 1 - rules.beta2 ** count;
  const next = { parameters: new Map<string, Float32Array>(), first: new Map<string, Float32Array>(), second: new Map<string, Float32Array>() };
  for (const [name, values] of parameters) {
    const gradient = parameter(gradients, name);
    const first = parameter(state.first, name).map((mean, i) => rules.beta1 * mean + (1 - rules.beta1) * scale * (gradient[i] ?? 0));
    const second = parameter(state.second, name).map((mean, i) => rules.beta2 * mean + (1 - rules.beta2) * (scale * (gradient[i] ?? 0)) ** 2);
    next.first.set(name, first);
    next.second.set(name, second);
    next.parameters.set(
      name,
      values.map((value, i) => value - (rules.learningRate * (first[i] ?? 0)) / unbias1 / (Math.sqrt((second[i] ?? 0) / unbias2) + rules.epsilon)),
    );
  }
  return { parameters: next.parameters, state: { first: next.first, second: next.second, count }, norm };
}

function normOf(gradients: Parameters): number {
  let squares = 0;
  for (const values of gradients.values()) for (const value of values) squares += value * value;
  return Math.sqrt(squares);
}

/**
 * The policy's forward pass over whole batches, in operations that have gradients. The library counts references: an operation consumes its arguments, `.ref` keeps one for another
 * use.
 */
import type * as Jax from "@jax-js/jax";
import { COPY_GAIN, NORM_EPSILON, type ModelShape } from "../model/shape.ts";

type Tensor = Jax.numpy.Array;
export type Tensors = Record<string, Tensor>;

/** Added to the scores of what a token must not see. */
const UNSEEN = -1e9;

/**
 * Log-probabilities `[batch, length]` of `targets`, each given the tokens up to its place, at the temperatures `[batch, 1]` that they were sampled with. `inputs` are ids, `targets`
 * positions in the spoken vocabulary; what a position that nobody trains holds does not matter. Beside them the entropies of what was drawn from. Consumes everything.
 */
export function logprobsOf(jax: typeof Jax, shape: ModelShape, parameters: Tensors, inputs: Tensor, targets: Tensor, inverseTemperatures: Tensor): { readonly logprobs: Tensor; readonly entropies: Tensor } {
  const { numpy: np, nn, tree } = jax;
  const { layers, width, heads, spoken, spokenFrom } = shape;
  const [batch = 0, length = 0] = inputs.shape;
  const of = (name: string): Tensor => {
    const tensor = parameters[name];
    if (tensor === undefined) throw new Error(`the model has no parameter ${name}`);
    return tensor.ref;
  };
  const normalise = (x: Tensor, gain: Tensor): Tensor => {
    const squares = np.mean(x.ref.mul(x.ref), -1, { keepdims: true });
    return x.div(np.sqrt(squares.add(NORM_EPSILON))).mul(gain);
  };
  const mask = np.where(np.tril(np.ones([length, length])).greater(0.5), 0, UNSEEN);
  // Not `oneHot`, which takes an id that is none for the nearest.
  const words = np.where(np.equal(inputs.ref.reshape([batch, length, 1]), np.arange(spokenFrom, spokenFrom + spoken, 1, { dtype: np.int32 })), 1, 0);
  let stream = np.take(of("embedding"), inputs, 0).add(of("position").slice([0, length]));
  const places = normalise(stream.ref, of("copy.norm"));
  for (let layer = 0; layer < layers; layer++) {
    const at = (name: string): Tensor => of(`layer.${layer}.${name}`);
    const seen = normalise(stream.ref, at("attention.norm"));
    const split = (name: string): Tensor => np.matmul(seen.ref, at(name)).reshape([batch, length, heads, width / heads]).transpose([0, 2, 1, 3]);
    const [query, key, value] = [split("attention.query"), split("attention.key"), split("attention.value")] as const;
    seen.dispose();
    const shares = nn.softmax(np.matmul(query, key.transpose([0, 1, 3, 2])).mul(1 / Math.sqrt(width / heads)).add(mask.ref), -1);
    const mixed = np.matmul(shares, value).transpose([0, 2, 1, 3]).reshape([batch, length, width]);
    stream = stream.add(np.matmul(mixed, at("attention.output")));
    const hidden = nn.relu(np.matmul(normalise(stream.ref, at("mlp.norm")), at("mlp.up")));
    stream = stream.add(np.matmul(hidden, at("mlp.down")));
  }
  const last = normalise(stream, of("norm"));
  const looks = nn.softmax(np.matmul(np.matmul(places.ref, of("copy.query")), np.matmul(places, of("copy.key")).transpose([0, 2, 1])).mul(1 / Math.sqrt(width)).add(mask), -1);
  const gate = np.matmul(last.ref, of("copy.gate")).add(COPY_GAIN);
  const logits = np.matmul(last, of("head")).add(np.matmul(looks, words).mul(gate)).mul(inverseTemperatures.reshape([batch, 1, 1]));
  tree.dispose(parameters);
  const all = nn.logSoftmax(logits, -1);
  return { logprobs: np.sum(all.ref.mul(nn.oneHot(targets, spoken)), -1), entropies: np.sum(np.exp(all.ref).mul(all), -1).mul(-1) };
}

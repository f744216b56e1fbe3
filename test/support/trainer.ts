/** Small models, samples and groups for tests of the trainer. */
import type { DeliveredGroup, DeliveredSample } from "../../src/delivery/delivery.ts";
import { Decoder, Model } from "../../src/trainer/model/decoder.ts";
import { initialParameters, type ModelShape, type Parameters } from "../../src/trainer/model/shape.ts";

export const TINY: ModelShape = { layers: 2, width: 8, heads: 2, context: 16, vocabulary: 12, spokenFrom: 4, spoken: 6 };

/** Initial weights with every part at work, the gate of the pointer too. */
export function tinyParameters(seed = "t", shape = TINY): Parameters {
  const parameters = new Map(initialParameters(shape, seed));
  const head = initialParameters({ ...shape, width: shape.width }, `${seed}/more`);
  return new Map([...parameters].map(([name, values]) => [name, name === "head" || name === "copy.gate" ? (head.get("layer.0.attention.query") ?? values).slice(0, values.length) : values]));
}

interface SampleParts {
  readonly rollout: string;
  readonly prompt: readonly number[];
  readonly answer: readonly number[];
  readonly logprobs?: readonly number[];
  readonly reward: number | null;
  readonly temperature?: number;
  readonly weight?: number;
}

/** What the trainer reads of a sample; the rest of the facts is not looked at. */
export function sampleOf({ rollout, prompt, answer, logprobs, reward, temperature = 1, weight = 1 }: SampleParts): DeliveredSample {
  const length = prompt.length + answer.length;
  const facts = { sample_id: `${rollout}/0`, rollout_id: rollout, usable: true, reward, temperature, top_p: 1, weight };
  return {
    facts: facts as DeliveredSample["facts"],
    arrays: {
      tokenIds: Int32Array.from([...prompt, ...answer]),
      lossMask: Uint8Array.from({ length }, (_, at) => Number(at >= prompt.length)),
      logprobs: Float32Array.from({ length }, (_, at) => (at < prompt.length ? 0 : (logprobs?.[at - prompt.length] ?? -1))),
      versions: Int32Array.from({ length }, (_, at) => (at < prompt.length ? -1 : 0)),
    },
  };
}

export function groupOf(id: string, samples: readonly DeliveredSample[], versionMin = 0): DeliveredGroup {
  const facts = { group_id: id, version_min: versionMin, failures: [] };
  return { facts: facts as unknown as DeliveredGroup["facts"], samples, flat: samples[0]?.arrays as DeliveredGroup["flat"] };
}

/** Log-probabilities of everything that can be said, before each token of `answer`. */
export function decodedDistributions(shape: ModelShape, parameters: Parameters<Float32Array | Float64Array>, prompt: readonly number[], answer: readonly number[], temperature = 1): Float64Array[] {
  const decoder = new Decoder(new Model(shape, parameters));
  for (const id of prompt) decoder.read(id);
  return answer.map((id) => {
    const logits = decoder.logits().map((logit) => logit / temperature);
    const highest = Math.max(...logits);
    const normaliser = highest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0));
    decoder.read(id);
    return logits.map((logit) => logit - normaliser);
  });
}

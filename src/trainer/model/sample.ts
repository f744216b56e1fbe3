/** Draws a token from scores, and says how likely the distribution that it drew from made it. */

export interface SamplingRules {
  /** 0: the most likely token, always. */
  readonly temperature: number;
  readonly topP: number;
  /** -1 or 0: no bound. */
  readonly topK: number;
  readonly minP: number;
}

export interface Drawn {
  /** Position in the scores. */
  readonly word: number;
  /** Natural logarithm of its probability in the distribution that was sampled: after temperature and truncation, renormalised. */
  readonly logprob: number;
}

/** `uniform`: in [0, 1). */
export function drawToken(logits: Float64Array, rules: SamplingRules, uniform: number): Drawn {
  const probabilities = distribution(logits, rules);
  let left = uniform;
  let last = 0;
  for (const [word, probability] of probabilities.entries()) {
    if (probability === 0) continue;
    last = word;
    left -= probability;
    if (left < 0) break;
  }
  return { word: last, logprob: Math.log(probabilities[last] ?? 0) };
}

/** What is sampled from; what is cut off is 0. */
export function distribution(logits: Float64Array, { temperature, topP, topK, minP }: SamplingRules): Float64Array {
  if (temperature === 0) {
    const greedy = new Float64Array(logits.length);
    greedy[logits.indexOf(Math.max(...logits))] = 1;
    return greedy;
  }
  const highest = Math.max(...logits);
  const probabilities = logits.map((logit) => Math.exp((logit - highest) / temperature));
  normalise(probabilities);
  if (topP < 1 || topK > 0 || minP > 0) {
    truncate(probabilities, topP, topK, minP);
    normalise(probabilities);
  }
  return probabilities;
}

/** The most likely ones, until their sum reaches `topP`; of equals, the first. */
function truncate(probabilities: Float64Array, topP: number, topK: number, minP: number): void {
  const order = [...probabilities.keys()].sort((a, b) => (probabilities[b] ?? 0) - (probabilities[a] ?? 0) || a - b);
  const least = minP * (probabilities[order[0] ?? 0] ?? 0);
  let sum = 0;
  for (const [rank, word] of order.entries()) {
    const probability = probabilities[word] ?? 0;
    if (rank > 0 && (sum >= topP || (topK > 0 && rank >= topK) || probability < least)) probabilities[word] = 0;
    else sum += probability;
  }
}

function normalise(values: Float64Array): void {
  let sum = 0;
  for (const value of values) sum += value;
  for (let i = 0; i < values.length; i++) values[i] = (values[i] ?? 0) / sum;
}

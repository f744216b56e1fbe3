/**
 * Samples any number of answers side by side, a token of each in turn, so that new weights, aborts and other requests are seen between any two tokens.
 *
 * Weights may change in the middle of an answer. What was read until then is read again under the new ones: each token's log-probability is exactly that of its own version given the
 * tokens before it, and the answer says which version sampled which of its tokens.
 */
import { LIMITS } from "../../core/limits.ts";
import { Decoder, type Model } from "../model/decoder.ts";
import { distribution, drawToken, type SamplingRules } from "../model/sample.ts";
import type { Finish } from "./protocol.ts";

export interface Weights {
  readonly model: Model;
  readonly version: string;
}

export interface Ask {
  readonly requestId: string;
  readonly promptIds: readonly number[];
  readonly rules: SamplingRules;
  readonly maxTokens: number;
  readonly endIds: ReadonlySet<number>;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Alternatives of each token to tell, by likelihood. */
  readonly alternatives: number;
}

export interface SampledToken {
  readonly id: number;
  readonly logprob: number;
  readonly version: string;
  readonly alternatives: readonly { readonly id: number; readonly logprob: number }[];
}

export interface Answered {
  readonly tokens: readonly SampledToken[];
  readonly finish: Finish;
}

interface Generation {
  readonly ask: Ask;
  readonly tokens: SampledToken[];
  readonly onToken: (token: SampledToken) => void;
  readonly done: (answer: Answered) => void;
  readonly failed: (error: unknown) => void;
  decoder: Decoder | null;
  weights: Weights | null;
  finish: Finish | null;
}

export class Engine {
  #weights: Weights;
  readonly #active = new Set<Generation>();
  #ticking = false;

  constructor(weights: Weights) {
    this.#weights = weights;
  }

  get weights(): Weights {
    return this.#weights;
  }

  get active(): number {
    return this.#active.size;
  }

  /** Null when too many run already. The prompt must leave room for a token in the context. */
  generate(ask: Ask, onToken: (token: SampledToken) => void = () => undefined): Promise<Answered> | null {
    if (this.#active.size >= LIMITS.policyGenerations) return null;
    return new Promise((done, failed) => {
      this.#active.add({ ask, tokens: [], onToken, done, failed, decoder: null, weights: null, finish: ask.maxTokens === 0 ? { type: "length", length: 0 } : null });
      this.#wake();
    });
  }

  /** Takes effect before the next token of every answer. */
  load(weights: Weights): void {
    this.#weights = weights;
  }

  /** Ends the requests whose id begins so; they keep what was sampled. */
  abort(begins: string): number {
    let count = 0;
    for (const generation of this.#active) {
      if (!generation.ask.requestId.startsWith(begins)) continue;
      generation.finish ??= { type: "abort", message: "Abort requested" };
      count++;
    }
    return count;
  }

  #wake(): void {
    if (this.#ticking) return;
    this.#ticking = true;
    setImmediate(() => this.#tick());
  }

  /** One token of each. */
  #tick(): void {
    this.#ticking = false;
    for (const generation of this.#active) {
      try {
        if (generation.finish === null) this.#step(generation);
        if (generation.finish === null) continue;
        this.#active.delete(generation);
        generation.done({ tokens: generation.tokens, finish: generation.finish });
      } catch (error) {
        this.#active.delete(generation);
        generation.failed(error);
      }
    }
    if (this.#active.size > 0) this.#wake();
  }

  #step(generation: Generation): void {
    const { ask, tokens } = generation;
    const { model, version } = this.#weights;
    if (generation.decoder === null || generation.weights !== this.#weights) {
      generation.decoder = new Decoder(model);
      generation.weights = this.#weights;
      for (const id of ask.promptIds) generation.decoder.read(id);
      for (const { id } of tokens) generation.decoder.read(id);
    }
    const { decoder } = generation;
    const { spokenFrom, context } = model.shape;
    const logits = decoder.logits();
    const { word, logprob } = drawToken(logits, ask.rules, ask.random());
    const token = { id: spokenFrom + word, logprob, version, alternatives: ask.alternatives === 0 ? [] : likeliest(distribution(logits, ask.rules), spokenFrom, ask.alternatives) };
    tokens.push(token);
    generation.onToken(token);
    if (ask.endIds.has(token.id)) generation.finish = { type: "stop", matched: token.id };
    else if (tokens.length >= ask.maxTokens || decoder.length >= context) generation.finish = { type: "length", length: tokens.length };
    else decoder.read(token.id);
  }
}

function likeliest(probabilities: Float64Array, from: number, count: number): SampledToken["alternatives"] {
  const possible = [...probabilities.entries()].filter(([, probability]) => probability > 0);
  return possible.sort(([a, one], [b, other]) => other - one || a - b).slice(0, count).map(([word, probability]) => ({ id: from + word, logprob: Math.log(probability) }));
}

/** Samples of a rollout and their tokens, in pages. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../core/errors.ts";
import type { Builder, Sample, SampleSet } from "../../gateway/samples/sample.ts";
import { Tokenizer } from "../../gateway/render/tokenizer.ts";
import { rolloutTokens } from "../../rollout/samples/rollout-samples.ts";
import type { SamplesView, TokensPage } from "./contract/calls.ts";

/** Sets that stay in memory: 13 bytes a token. */
const SETS = 4;
const TOKENIZERS = 2;

export class TokenStore {
  readonly #sets = new Map<string, Promise<SampleSet>>();
  readonly #tokenizers = new Map<string, Promise<Tokenizer | null>>();

  /** The samples that `builder` cuts, for the present state of the call log. */
  async set(directory: string, builder: Builder): Promise<SampleSet> {
    const size = await stat(join(directory, "calls.jsonl")).then(
      (found) => found.size,
      () => 0,
    );
    const key = `${directory} ${builder} ${size}`;
    const set = this.#sets.get(key) ?? rolloutTokens(directory, { builder }).then((tokens) => tokens.set);
    keep(this.#sets, key, set, SETS);
    return set;
  }

  /** Null where the directory is not here (any more), or holds none. */
  async tokenizer(directory: string | null): Promise<Tokenizer | null> {
    if (directory === null) return null;
    const tokenizer = this.#tokenizers.get(directory) ?? Tokenizer.load(directory).catch(() => null);
    keep(this.#tokenizers, directory, tokenizer, TOKENIZERS);
    return tokenizer;
  }
}

export function samplesView(set: SampleSet, version: string, text: boolean): SamplesView {
  return {
    version,
    builder: set.builder,
    versions: [...set.versions],
    ledger: { ...set.ledger, dropped: { ...set.ledger.dropped }, masked: { ...set.ledger.masked } },
    samples: set.samples.map((sample) => ({
      tokens: sample.tokenIds.length,
      trained: sample.lossMask.reduce((sum, mask) => sum + mask, 0),
      promptLength: sample.promptLength,
      sharedLength: sample.sharedLength,
      spans: [...sample.spans],
      calls: [...sample.calls],
      kind: sample.kind,
      meanLogprob: meanLogprob(sample),
      versions: [...new Set(sample.versions)].filter((index) => index >= 0).map((index) => set.versions[index] ?? ""),
    })),
    text,
  };
}

export function sampleAt(set: SampleSet, index: number): Sample {
  const sample = set.samples[index];
  if (sample === undefined) throw new MwError("not_found", `there is no sample ${index} here; there are ${set.samples.length}`, { fix: "count from 0" });
  return sample;
}

export function tokensPage(sample: Sample, from: number, to: number, tokenizer: Tokenizer | null): TokensPage {
  const ids = [...sample.tokenIds.subarray(from, to)];
  return {
    from,
    to: from + ids.length,
    total: sample.tokenIds.length,
    ids,
    logprobs: [...sample.logprobs.subarray(from, to)],
    versions: [...sample.versions.subarray(from, to)],
    mask: [...sample.lossMask.subarray(from, to)],
    pieces: tokenizer === null ? null : ids.map((id) => pieceOf(tokenizer, id)),
  };
}

/** The same without text, as arrays behind each other: see `tokensPageSchema`. */
export function tokensBinary(sample: Sample, from: number, to: number): Buffer {
  return Buffer.concat([sample.tokenIds, sample.logprobs, sample.versions, sample.lossMask].map((array) => {
    const part = array.subarray(from, to);
    return Buffer.from(part.buffer, part.byteOffset, part.byteLength);
  }));
}

/** A token that is a part of a character shows as U+FFFD. Ids beyond the vocabulary are no text. */
function pieceOf(tokenizer: Tokenizer, id: number): string {
  try {
    return tokenizer.textOf(id);
  } catch {
    return "";
  }
}

function meanLogprob({ lossMask, logprobs }: Sample): number | null {
  let count = 0;
  let sum = 0;
  for (let at = 0; at < lossMask.length; at++) {
    if (lossMask[at] !== 1) continue;
    count++;
    sum += logprobs[at] ?? 0;
  }
  return count === 0 ? null : sum / count;
}

function keep<T>(map: Map<string, T>, key: string, value: T, most: number): void {
  map.delete(key);
  map.set(key, value);
  for (const oldest of map.keys()) {
    if (map.size <= most) return;
    map.delete(oldest);
  }
}

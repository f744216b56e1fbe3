/**
 * Gathers the exact tokens of an answer from the spellings of vLLM (`prompt_token_ids`, `token_ids` of the choice, `logprobs.content[].logprob`) and SGLang
 * (`prompt_token_ids` of the choice, `meta_info.output_token_logprobs`, `meta_info.weight_version`), whole or chunk by chunk, and believes them only where they agree.
 */
import type { TokenLogprob, Usage } from "../../conversation.ts";
import type { CallTokens } from "../upstream.ts";

type Json = Readonly<Record<string, unknown>>;

/** What OpenAI writes for a logprob that has no number. */
const UNLIKELY = -9999;

export class TokenCollector {
  #prompt: readonly number[] | null = null;
  #ids: number[] | null = null;
  #logprobs: number[] | null = null;
  #version: string | null = null;
  /** What was there and could not be right. */
  #wrong: string | null = null;
  readonly #alternatives: boolean;
  /** For harnesses that asked for logprobs themselves. */
  readonly shown: TokenLogprob[] = [];

  constructor(alternatives: boolean) {
    this.#alternatives = alternatives;
  }

  /** `body`: a completion or a chunk of one; `choice`: its first choice. */
  add(body: Json, choice: Json | null): void {
    this.#addPrompt(body["prompt_token_ids"] ?? choice?.["prompt_token_ids"]);
    if (choice === null) return;
    this.#addIds(choice["token_ids"]);
    const { content } = record(choice["logprobs"]);
    if (Array.isArray(content)) this.#addLogprobs(content);
    const meta = record(choice["meta_info"]);
    if (Array.isArray(meta["output_token_logprobs"])) this.#takeTriples(meta["output_token_logprobs"]);
    if (typeof meta["weight_version"] === "string" || typeof meta["weight_version"] === "number") this.#version = String(meta["weight_version"]);
  }

  #addPrompt(value: unknown): void {
    if (value === undefined || value === null || this.#prompt !== null) return;
    if (isIds(value)) this.#prompt = value;
    else this.#wrong = "prompt token ids that are none";
  }

  #addIds(value: unknown): void {
    if (value === undefined || value === null) return;
    if (!isIds(value)) this.#wrong = "token ids that are none";
    else if (this.#ids === null) this.#ids = [...value];
    else for (const id of value) this.#ids.push(id);
  }

  #addLogprobs(content: readonly unknown[]): void {
    this.#logprobs ??= [];
    for (const entry of content) {
      const { logprob } = record(entry);
      this.#logprobs.push(typeof logprob === "number" ? logprob : Number.NaN);
      if (this.#alternatives) this.shown.push(shownToken(entry));
    }
  }

  /** SGLang's triples of logprob, id and text are those of the whole answer so far. */
  #takeTriples(triples: readonly unknown[]): void {
    const ids = triples.map((triple: unknown) => (Array.isArray(triple) ? (triple[1] as unknown) : null));
    if (!isIds(ids)) {
      this.#wrong = "token ids that are none";
      return;
    }
    this.#ids = [...ids];
    this.#logprobs = triples.map((triple: unknown) => (Array.isArray(triple) && typeof triple[0] === "number" ? triple[0] : Number.NaN));
  }

  get sawLogprobs(): boolean {
    return this.#logprobs !== null && this.#logprobs.length > 0;
  }

  /** The counts of the tokens themselves, where the server gives no usage. */
  usage(): Usage | null {
    return this.#prompt === null || this.#ids === null ? null : { promptTokens: this.#prompt.length, completionTokens: this.#ids.length, cachedTokens: 0, reasoningTokens: 0 };
  }

  /** `notes` is told why something that was there is not believed. */
  end(usage: Usage | null, notes: string[]): CallTokens | null {
    const [prompt, ids, logprobs] = [this.#prompt, this.#ids, this.#logprobs];
    if (this.#wrong === null && (ids === null || prompt === null)) {
      if (ids !== null || prompt !== null) notes.push(`The model server gave token ids of the ${ids === null ? "prompt" : "answer"} alone; they are not kept.`);
      return null;
    }
    const wrong = this.#wrong ?? disagreement(prompt?.length ?? 0, ids?.length ?? 0, usage);
    if (wrong !== null || ids === null || prompt === null) {
      notes.push(`The model server gave ${wrong ?? "no tokens"}; the call's tokens are not kept.`);
      return null;
    }
    const versions: CallTokens["versions"] = this.#version === null || ids.length === 0 ? [] : [[this.#version, ids.length]];
    if (logprobs === null) return { promptIds: prompt, completionIds: ids, logprobs: null, versions };
    if (logprobs.length !== ids.length) {
      notes.push(`The model server gave ${logprobs.length} logprobs for ${ids.length} tokens; they are not kept.`);
      return { promptIds: prompt, completionIds: ids, logprobs: null, versions };
    }
    if (!logprobs.every(Number.isFinite)) {
      notes.push("The model server gave logprobs that are no numbers; they are not kept.");
      return { promptIds: prompt, completionIds: ids, logprobs: null, versions };
    }
    return { promptIds: prompt, completionIds: ids, logprobs, versions };
  }
}

function disagreement(prompt: number, ids: number, usage: Usage | null): string | null {
  if (usage === null) return null;
  if (usage.completionTokens !== ids) return `${ids} token ids for an answer of ${usage.completionTokens} tokens`;
  return usage.promptTokens === prompt ? null : `${prompt} token ids for a prompt of ${usage.promptTokens} tokens`;
}

function shownToken(entry: unknown): TokenLogprob {
  const { top_logprobs: top } = record(entry);
  return { ...alternative(entry), top: Array.isArray(top) ? top.map(alternative) : [] };
}

function alternative(entry: unknown): { readonly token: string; readonly logprob: number; readonly bytes: readonly number[] | null } {
  const { token, logprob, bytes } = record(entry);
  return { token: typeof token === "string" ? token : "", logprob: typeof logprob === "number" ? logprob : UNLIKELY, bytes: isIds(bytes) ? bytes : null };
}

/** Ids of tokens, which samples hold in 32 bits with a sign. */
export function isIds(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((id) => Number.isInteger(id) && id >= 0 && id <= 0x7fff_ffff);
}

export function record(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

/**
 * A model's tokenizer directory, as it is published: `tokenizer.json`, `tokenizer_config.json`, the chat template, and which tokens end a turn.
 *
 * Encoding is by `@huggingface/tokenizers`. Decoding is ours, token by token and in bytes: a character may be spread over tokens, and the library's decoder looks at whole texts only
 * and tidies spaces.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Tokenizer as Encoder } from "@huggingface/tokenizers";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";

const TokenName = z.union([z.string(), z.object({ content: z.string() }).transform((token) => token.content)]).nullish();
const Config = z.looseObject({
  bos_token: TokenName,
  eos_token: TokenName,
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).nullish(),
});
const Vocabulary = z.looseObject({
  decoder: z.looseObject({ type: z.string() }).nullable(),
  normalizer: z.unknown().optional(),
  pre_tokenizer: z.unknown().optional(),
  added_tokens: z.array(z.looseObject({ content: z.string(), lstrip: z.boolean().optional(), rstrip: z.boolean().optional(), single_word: z.boolean().optional(), normalized: z.boolean().optional() })).optional(),
});
const GenerationConfig = z.looseObject({ eos_token_id: z.union([z.number(), z.array(z.number())]).nullish() });

/** How a token's spelling in the vocabulary becomes bytes. */
type Spelling = "byte-level" | "sentencepiece";

export class Tokenizer {
  readonly directory: string;
  readonly bosToken: string | null;
  readonly eosToken: string | null;
  /** The template's source, by the name it has in its directory: `default`, and for some models `tool_use`. */
  readonly templates: ReadonlyMap<string, string>;
  /** Tokens that end a turn, by the directory's own word. */
  readonly endIds: ReadonlySet<number>;
  readonly #encoder: Encoder;
  readonly #spelling: Spelling;
  readonly #bytes = new Map<number, Uint8Array>();
  readonly #added: ReadonlyMap<number, { readonly content: string; readonly special: boolean }>;
  /** Matches added tokens; null where text around one depends on it. */
  readonly #marks: RegExp | null;
  /** Stretches of text that were encoded before, the latest last. */
  readonly #encoded = new Map<string, Uint32Array>();
  #encodedChars = 0;

  private constructor(directory: string, encoder: Encoder, spelling: Spelling, config: z.infer<typeof Config>, templates: ReadonlyMap<string, string>, endIds: readonly number[], marks: RegExp | null) {
    this.#marks = marks;
    this.directory = directory;
    this.bosToken = config.bos_token ?? null;
    this.eosToken = config.eos_token ?? null;
    this.templates = templates;
    this.#encoder = encoder;
    this.#spelling = spelling;
    this.#added = encoder.get_added_tokens_decoder();
    const eos = this.eosToken === null ? null : this.idOf(this.eosToken);
    this.endIds = new Set(eos === null ? endIds : [...endIds, eos]);
  }

  /** Rejects `invalid_input` for a directory that holds no tokenizer, or one that is not understood. */
  static async load(directory: string): Promise<Tokenizer> {
    const [vocabulary, config] = await Promise.all([readJson(directory, "tokenizer.json"), readJson(directory, "tokenizer_config.json")]);
    if (vocabulary === null) throw invalid(directory, "has no tokenizer.json");
    const settings = Config.safeParse(config ?? {});
    const parsed = Vocabulary.safeParse(vocabulary);
    if (!settings.success || !parsed.success) throw invalid(directory, "holds a tokenizer that is not of the form that Hugging Face writes");
    const generation = GenerationConfig.safeParse((await readJson(directory, "generation_config.json")) ?? {});
    const ends = generation.data?.eos_token_id ?? [];
    const decoder = JSON.stringify(parsed.data.decoder);
    const spelling = decoder.includes('"ByteLevel"') ? "byte-level" : decoder.includes('"ByteFallback"') ? "sentencepiece" : null;
    if (spelling === null) throw invalid(directory, `decodes by ${parsed.data.decoder?.type ?? "nothing"}; byte-level BPE and SentencePiece with byte fallback are known`);
    let encoder: Encoder;
    try {
      encoder = new Encoder(vocabulary, (config ?? {}) as object);
    } catch (cause) {
      throw invalid(directory, "holds a tokenizer that cannot be loaded", cause);
    }
    return new Tokenizer(directory, encoder, spelling, settings.data, await readTemplates(directory, settings.data.chat_template ?? null), typeof ends === "number" ? [ends] : ends, spelling === "byte-level" ? marksOf(parsed.data) : null);
  }

  /** Special tokens that are spelled out in `text` become their ids, as with transformers; nothing is put in front. */
  encode(text: string): number[] {
    if (text === "") return [];
    if (this.#marks === null) return this.#encoder.encode(text, { add_special_tokens: false }).ids;
    // No token reaches over an added one, so what stands between them is encoded by itself, and remembered: system prompts and tools come again with every rollout.
    const ids: number[] = [];
    let from = 0;
    for (const match of text.matchAll(this.#marks)) {
      this.#encodePart(text.slice(from, match.index), ids);
      this.#encodePart(match[0], ids);
      from = match.index + match[0].length;
    }
    this.#encodePart(text.slice(from), ids);
    return ids;
  }

  #encodePart(text: string, ids: number[]): void {
    if (text === "") return;
    const known = this.#encoded.get(text);
    const part = known ?? Uint32Array.from(this.#encoder.encode(text, { add_special_tokens: false }).ids);
    for (const id of part) ids.push(id);
    if (known === undefined) this.#encodedChars += text.length;
    else this.#encoded.delete(text);
    this.#encoded.set(text, part);
    for (const [oldest] of this.#encoded) {
      if (this.#encodedChars <= LIMITS.encodedChars) break;
      this.#encoded.delete(oldest);
      this.#encodedChars -= oldest.length;
    }
  }

  /** Null for a token that the vocabulary does not have. */
  idOf(token: string): number | null {
    return this.#encoder.token_to_id(token) ?? null;
  }

  /** Spelled for people and for alternatives in logprobs: one token's bytes as text, with U+FFFD for what is no whole character. */
  textOf(id: number): string {
    return Buffer.from(this.bytesOf(id)).toString("utf8");
  }

  /** Special tokens control the conversation and are no part of its text. */
  isSpecial(id: number): boolean {
    return this.#added.get(id)?.special ?? false;
  }

  /** Empty for an id that the vocabulary does not have: engines sample from padded vocabularies. */
  bytesOf(id: number): Uint8Array {
    const known = this.#bytes.get(id);
    if (known !== undefined) return known;
    const bytes = this.#spell(id);
    this.#bytes.set(id, bytes);
    return bytes;
  }

  #spell(id: number): Uint8Array {
    const added = this.#added.get(id);
    if (added !== undefined) return Buffer.from(added.content, "utf8");
    const token = this.#encoder.id_to_token(id);
    if (token === undefined) return new Uint8Array();
    if (this.#spelling === "sentencepiece") {
      const byte = /^<0x([0-9A-F]{2})>$/.exec(token);
      return byte === null ? Buffer.from(token.replaceAll("▁", " "), "utf8") : Uint8Array.of(Number.parseInt(byte[1]!, 16));
    }
    const bytes: number[] = [];
    for (const char of token) bytes.push(...(BYTES.has(char) ? [BYTES.get(char)!] : Buffer.from(char, "utf8")));
    return Uint8Array.from(bytes);
  }
}

function marksOf({ added_tokens: tokens = [], normalizer, pre_tokenizer: preTokenizer }: z.infer<typeof Vocabulary>): RegExp | null {
  const reaches = tokens.some(({ lstrip, rstrip, single_word: word, normalized }) => lstrip === true || rstrip === true || word === true || (normalized === true && !isNothing(normalizer)));
  if (reaches || tokens.length === 0 || JSON.stringify(preTokenizer ?? null).includes('"add_prefix_space":true')) return null;
  const longestFirst = tokens.map(({ content }) => content).toSorted((one, other) => other.length - one.length);
  return new RegExp(longestFirst.map((content) => content.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "gu");
}

function isNothing(normalizer: unknown): boolean {
  const { normalizers } = z.looseObject({ normalizers: z.array(z.unknown()) }).safeParse(normalizer).data ?? {};
  return normalizer === null || normalizer === undefined || normalizers?.length === 0;
}

/** GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on. */
const BYTES = byteAlphabet();

function byteAlphabet(): ReadonlyMap<string, number> {
  const alphabet = new Map<string, number>();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet.set(String.fromCodePoint(printable ? byte : next++), byte);
  }
  return alphabet;
}

async function readTemplates(directory: string, inConfig: z.infer<typeof Config>["chat_template"]): Promise<ReadonlyMap<string, string>> {
  const templates = new Map<string, string>();
  if (typeof inConfig === "string") templates.set("default", inConfig);
  else for (const { name, template } of inConfig ?? []) templates.set(name, template);
  const json = z.object({ chat_template: z.string() }).safeParse(await readJson(directory, "chat_template.json"));
  if (json.success) templates.set("default", json.data.chat_template);
  const file = await read(directory, "chat_template.jinja");
  if (file !== null) templates.set("default", file);
  return templates;
}

async function readJson(directory: string, name: string): Promise<unknown> {
  const text = await read(directory, name);
  if (text === null) return null;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw invalid(directory, `has a ${name} that is not JSON`, cause);
  }
}

async function read(directory: string, name: string): Promise<string | null> {
  try {
    const text = await readFile(join(directory, name), "utf8");
    if (text.length > LIMITS.tokenizerFileBytes) throw invalid(directory, `has a ${name} of more than ${LIMITS.tokenizerFileBytes} bytes`);
    return text;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
}

function invalid(directory: string, what: string, cause?: unknown): MwError {
  return new MwError("invalid_input", `The tokenizer directory ${directory} ${what}.`, {
    fix: "Give the directory of the model as it is published: tokenizer.json, tokenizer_config.json and, where the model has one, chat_template.jinja.",
    ...(cause === undefined ? {} : { cause }),
  });
}

/** The engine's tokenizer: a real byte-level BPE, with the bytes of each token at hand, and a way to spell the same text with other tokens. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { bytesToUnicode } from "./bytes.ts";

/** Where `tokenizer.json`, `tokenizer_config.json` and the chat template are. */
export const MODEL_DIRECTORY: string = join(import.meta.dirname, "model");

interface TokenizerFile {
  readonly added_tokens: readonly { readonly id: number; readonly content: string; readonly special: boolean }[];
  readonly model: { readonly vocab: Readonly<Record<string, number>>; readonly merges: readonly string[] };
}

const file = JSON.parse(readFileSync(join(MODEL_DIRECTORY, "tokenizer.json"), "utf8")) as TokenizerFile;
const tokenizer = new Tokenizer(file, {});
const byteOf = new Map(bytesToUnicode().map((character, byte) => [character, byte]));
const bytes: Buffer[] = [];
for (const [piece, id] of Object.entries(file.model.vocab)) bytes[id] = Buffer.from(Array.from(piece, (character) => byteOf.get(character) ?? 0));
for (const { id, content } of file.added_tokens) bytes[id] = Buffer.from(content);
const special = new Set(file.added_tokens.filter((token) => token.special).map(({ id }) => id));
const halves = new Map<number, readonly [number, number]>();
for (const merge of file.model.merges) {
  const [left = "", right = ""] = merge.split(" ");
  const { vocab } = file.model;
  const whole = vocab[left + right];
  if (whole !== undefined && !halves.has(whole)) halves.set(whole, [vocab[left] ?? 0, vocab[right] ?? 0]);
}

const addedId = (content: string): number => file.added_tokens.find((token) => token.content === content)?.id ?? 0;
export const IM_END: number = addedId("<|im_end|>");
/** Ordinary tokens have ids below this. */
export const ORDINARY_TOKENS: number = Object.keys(file.model.vocab).length;

/** The same parts of conversations come again with every turn. */
const CACHE_ENTRIES = 20_000;
const cache = new Map<string, readonly number[]>();

export function encode(text: string): readonly number[] {
  const known = cache.get(text);
  if (known !== undefined) return known;
  const ids = tokenizer.encode(text, { add_special_tokens: false }).ids;
  if (cache.size >= CACHE_ENTRIES) cache.clear();
  cache.set(text, ids);
  return ids;
}

export function bytesOf(id: number): Buffer {
  return bytes[id] ?? Buffer.alloc(0);
}

export function decode(ids: readonly number[], { skipSpecial = false } = {}): string {
  return Buffer.concat(ids.filter((id) => !skipSpecial || !special.has(id)).map(bytesOf)).toString("utf8");
}

/** The same bytes in more tokens: some are taken apart into the two that they were merged from, so that encoding the text again gives other ids. */
export function spellOtherwise(ids: readonly number[], share: number, random: () => number): number[] {
  const result: number[] = [];
  for (const id of ids) {
    const parts = halves.get(id);
    if (parts !== undefined && random() < share) result.push(...parts);
    else result.push(id);
  }
  return result;
}

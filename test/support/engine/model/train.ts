/**
 * Makes `tokenizer.json` beside it: a byte-level BPE in Hugging Face's format, trained on this repository's own texts, with the special tokens of a ChatML model that
 * thinks and calls tools. Run once (`node --import tsx test/support/engine/model/train.ts`); the result is committed, because everything recorded depends on its ids.
 */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { bytesToUnicode } from "../bytes.ts";

const MERGES = 2_000;
const TEXT_BYTES = 1_000_000;
/** What each merge must not cross; the widely used pattern of byte-level models with single digits. */
const SPLIT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/** In the text as words are, not hidden when it is decoded. */
const MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

const files = ["docs", "src", "worlds"].flatMap((folder) => readdirSync(folder, { recursive: true, encoding: "utf8" }).map((name) => join(folder, name))).filter((name) => /\.(ts|md|py|sh|toml)$/.test(name));
const text = files.sort().map((file) => readFileSync(file, "utf8")).join("\n").slice(0, TEXT_BYTES);
const alphabet = bytesToUnicode();

interface Word {
  pieces: string[];
  count: number;
}
const words = new Map<string, Word>();
// JavaScript has no inline flags; the words that they matter for are written out.
for (const [word] of text.matchAll(new RegExp(SPLIT.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL]{2}|[dD])"), "gu"))) {
  const known = words.get(word);
  if (known === undefined) words.set(word, { pieces: [...Buffer.from(word)].map((byte) => alphabet[byte] ?? ""), count: 1 });
  else known.count++;
}

const vocabulary = [...alphabet];
const merges: [string, string][] = [];
while (merges.length < MERGES) {
  const pairs = new Map<string, number>();
  for (const { pieces, count } of words.values()) {
    for (let at = 0; at + 1 < pieces.length; at++) {
      const pair = `${pieces[at]} ${pieces[at + 1]}`;
      pairs.set(pair, (pairs.get(pair) ?? 0) + count);
    }
  }
  const [best] = [...pairs].reduce((a, b) => (b[1] > a[1] || (b[1] === a[1] && b[0] < a[0]) ? b : a));
  const [left = "", right = ""] = best.split(" ");
  merges.push([left, right]);
  // Two ways to one string would give it two ids.
  if (!vocabulary.includes(left + right)) vocabulary.push(left + right);
  for (const word of words.values()) {
    for (let at = 0; at + 1 < word.pieces.length; at++) {
      if (word.pieces[at] === left && word.pieces[at + 1] === right) word.pieces.splice(at, 2, left + right);
    }
  }
}

const added = [...SPECIAL, ...MARKS].map((content, index) => ({
  id: vocabulary.length + index,
  content,
  single_word: false,
  lstrip: false,
  rstrip: false,
  normalized: false,
  special: index < SPECIAL.length,
}));
const tokenizer = {
  version: "1.0",
  truncation: null,
  padding: null,
  added_tokens: added,
  normalizer: null,
  pre_tokenizer: {
    type: "Sequence",
    pretokenizers: [
      { type: "Split", pattern: { Regex: SPLIT }, behavior: "Isolated", invert: false },
      { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
    ],
  },
  post_processor: null,
  decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
  model: {
    type: "BPE",
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    vocab: Object.fromEntries(vocabulary.map((piece, id) => [piece, id])),
    merges: merges.map(([left, right]) => `${left} ${right}`),
  },
};
writeFileSync(join(import.meta.dirname, "tokenizer.json"), `${JSON.stringify(tokenizer, null, 0)}\n`);

/**
 * What the embedded policy reads and says, as a tokenizer directory of the form that models are published in. It reads every byte. What it says are the words of `worlds/errands`: some
 * are several words of text, as the frequent pieces of any trained tokenizer are, so that an answer is short enough to be found by trying.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

const END = "<|im_end|>";

export const ERRAND_NAMES = ["amber", "cedar", "fjord", "heron", "jade", "lotus"] as const;
const COMMANDS = ["touch", "mkdir", "mkfifo"] as const;

const SPOKEN: readonly string[] = [END, ...COMMANDS.map((command) => `\`\`\`bash\n${command}`), "\n```\n", ...ERRAND_NAMES.map((name) => ` ${name}`)];
const HEARD: readonly string[] = ["<|im_start|>", "user\n", "assistant\n", "Create the empty files", "Create the directories", "Create the named pipes", " and", " in /app. Change nothing else.\n"];
const SPECIAL: ReadonlySet<string> = new Set([END, "<|im_start|>"]);
const BYTES = 256;

/** For `ModelShape`. Bytes come first, then what is spoken. */
export const VOCABULARY = { vocabulary: BYTES + SPOKEN.length + HEARD.length, spokenFrom: BYTES, spoken: SPOKEN.length } as const;

/** The id of a piece of text that is one token. */
export function tokenId(content: string): number {
  const at = [...SPOKEN, ...HEARD].indexOf(content);
  if (at < 0) throw new Error(`${JSON.stringify(content)} is no token`);
  return BYTES + at;
}

/** The policy has no place for a system prompt: what it is told is the user's message. */
const TEMPLATE = `{%- for message in messages -%}
{%- if message.role in ['user', 'assistant'] -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '${END}' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
`;

/** Writes the files that a model server's clients need to render prompts. */
export async function writeTokenizer(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true });
  const added = [...SPOKEN, ...HEARD].map((content, index) => ({ id: BYTES + index, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: SPECIAL.has(content) }));
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false };
  const files = {
    "tokenizer.json": {
      version: "1.0",
      truncation: null,
      padding: null,
      added_tokens: added,
      normalizer: null,
      pre_tokenizer: byteLevel,
      post_processor: null,
      decoder: byteLevel,
      model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab: Object.fromEntries(byteAlphabet().map((char, byte) => [char, byte])), merges: [] },
    },
    "tokenizer_config.json": { tokenizer_class: "PreTrainedTokenizerFast", eos_token: END, model_max_length: 1_000_000, clean_up_tokenization_spaces: false },
    "generation_config.json": { eos_token_id: tokenId(END) },
  };
  for (const [name, content] of Object.entries(files)) await writeFile(join(directory, name), `${JSON.stringify(content, null, 1)}\n`);
  await writeFile(join(directory, "chat_template.jinja"), TEMPLATE);
}

/** How byte-level vocabularies spell each byte: printable Latin-1 as itself, the others by the characters from U+0100 on (GPT-2's encoder.py). */
function byteAlphabet(): readonly string[] {
  let next = BYTES;
  return Array.from({ length: BYTES }, (_, byte) => {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCodePoint(printable ? byte : next++);
  });
}

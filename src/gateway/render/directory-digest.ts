/** What a tokenizer directory holds, in one word: by it a run that is resumed notices that its model's spelling has changed. */
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

/** The files that decide how a conversation is spelt. */
const FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/** `sha256:...` over the files that are there. */
export async function directoryDigest(directory: string): Promise<string> {
  const hash = createHash("sha256");
  for (const name of FILES) {
    const bytes = await readFile(join(directory, name)).catch(() => null);
    if (bytes !== null) hash.update(`${name}\0${bytes.length}\0`).update(bytes);
  }
  return `sha256:${hash.digest("hex")}`;
}

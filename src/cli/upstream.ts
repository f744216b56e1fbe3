/** What the user says about the model server besides its address. Keys come from the environment or a file, and go nowhere but into the request. */
import { readFileSync, statSync } from "node:fs";
import { MwError, messageOf } from "../core/errors.ts";
import type { Config } from "./config.ts";

/** What `--tokenizer` and `--family` say; null: the server renders prompts. */
export function tokenizerOf(config: Config): { readonly directory: string; readonly family: string | null; readonly digest: null } | null {
  const [directory, family] = [config.get("tokenizer"), config.get("family")];
  if (directory === null && family !== null) throw new MwError("usage", `${config.origin("family")} names a model family, and no tokenizer is given`, { fix: "add --tokenizer DIRECTORY, or leave the family out" });
  return directory === null ? null : { directory, family, digest: null };
}

const KEY_FILE_BYTES = 64 * 1024;

/** The key, or null. A file named by flag or setting wins over `MW_API_KEY`. */
export function readApiKey(file: string | null, env: Readonly<Record<string, string | undefined>>): string | null {
  if (file === null) return checkedKey(env["MW_API_KEY"] ?? "", "MW_API_KEY");
  let text: string;
  try {
    const { size } = statSync(file);
    if (size > KEY_FILE_BYTES) throw new Error(`it has ${size} bytes`);
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new MwError("invalid_input", `cannot read the API key from ${file}: ${messageOf(error)}`, { fix: "give --api-key-file a readable file that holds nothing but the key" });
  }
  const key = checkedKey(text, file);
  if (key === null) throw new MwError("invalid_input", `the API key file ${file} is empty`, { fix: "put the key into it, or leave --api-key-file out" });
  return key;
}

function checkedKey(text: string, origin: string): string | null {
  const key = text.trim();
  if (key === "") return null;
  // A header cannot carry these; the message must not show the key.
  if (/[^\u0021-\u007e]/.test(key)) throw new MwError("invalid_input", `the API key in ${origin} has characters that no key has (spaces, line breaks or non-ASCII)`, { fix: "put the key alone there" });
  return key;
}

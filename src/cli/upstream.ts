/** Checks what the user says about the model: URL, name, key. Keys come from the environment or a file, and go nowhere but into the request. */
import { readFileSync, statSync } from "node:fs";
import { MwError, messageOf } from "../core/errors.ts";

/** The base URL without a trailing slash. */
export function parseUpstreamUrl(text: string, origin: string): string {
  const fix = "give the base URL up to and including /v1, such as http://127.0.0.1:8000/v1";
  const refuse = (why: string): MwError => new MwError("usage", `${origin}: the upstream ${JSON.stringify(hideSecrets(text))} ${why}`, { fix });
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw refuse(/^[\w.-]+(:\d+)?(\/|$)/.test(text) ? "has no scheme (http:// or https://)" : "is no URL");
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw refuse(/^[a-z0-9.-]+:\d/i.test(text) ? "has no scheme (http:// or https://)" : `has the scheme ${url.protocol}, not http: or https:`);
  if (url.hostname === "") throw refuse("has no host");
  if (url.username !== "" || url.password !== "") {
    throw new MwError("usage", `${origin}: the upstream's URL holds credentials`, { fix: "take them out of the URL and put the key into MW_API_KEY or a file named with --api-key-file" });
  }
  if (url.hash !== "") throw refuse("has a fragment (#...)");
  if (url.search !== "") throw refuse("has a query (?...)");
  if (/\/(chat\/)?completions\/?$/.test(url.pathname)) throw refuse("names one endpoint instead of the base of all");
  return url.href.replace(/\/+$/, "");
}

/** Never shows what stands before an `@`. */
function hideSecrets(text: string): string {
  return text.replace(/\/\/[^/@]*@/, "//...@");
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

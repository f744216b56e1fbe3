/** What `--upstream` says: `KIND=URL`, or a URL alone. */
import { MwError } from "../../core/errors.ts";

const UPSTREAM_KINDS = ["openai", "vllm", "sglang"] as const;
/** `openai`: any server that speaks chat completions. */
export type UpstreamKind = (typeof UPSTREAM_KINDS)[number];

export interface UpstreamSpec {
  readonly kind: UpstreamKind;
  /** Where the OpenAI-compatible paths are, without a trailing slash: `http://127.0.0.1:8000/v1`. */
  readonly url: string;
  /** Where the server's own paths are (`/tokenize`, `/generate`), without a trailing slash. */
  readonly root: string;
}

/** `origin` names the flag or setting in errors (`usage`). A URL without a kind is `openai`, with which every server works that speaks chat completions. */
export function parseUpstreamSpec(text: string, origin: string): UpstreamSpec {
  const equals = /^\s*([A-Za-z][\w-]*)=(.*)$/s.exec(text);
  // A query may hold an equals sign; a kind stands before any colon.
  const kind = equals === null ? "openai" : (equals[1] ?? "").toLowerCase();
  if (!isKind(kind)) {
    throw new MwError("usage", `${origin}: there is no upstream kind ${JSON.stringify(equals?.[1])}`, { fix: `use one of ${UPSTREAM_KINDS.join(", ")}, for example vllm=http://127.0.0.1:8000` });
  }
  const url = parseUpstreamUrl((equals?.[2] ?? text).trim(), origin);
  const { pathname } = new URL(url);
  if (kind === "openai") return { kind, url: pathname === "/" ? `${url}/v1` : url, root: url.replace(/\/v1$/, "") };
  const root = url.replace(/\/v1$/, "");
  return { kind, url: `${root}/v1`, root };
}

function isKind(kind: string): kind is UpstreamKind {
  return (UPSTREAM_KINDS as readonly string[]).includes(kind);
}

/** The base URL without a trailing slash. */
function parseUpstreamUrl(text: string, origin: string): string {
  const fix = "give the base URL of the server, such as http://127.0.0.1:8000/v1, or a kind and the URL: vllm=http://127.0.0.1:8000";
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
  if (/\/(chat\/)?completions\/?$|\/(generate|responses|messages)\/?$/.test(url.pathname)) throw refuse("names one endpoint instead of the base of all");
  return url.href.replace(/\/+$/, "");
}

/** Never shows what stands before an `@`. */
function hideSecrets(text: string): string {
  return text.replace(/\/\/[^/@]*@/, "//...@");
}

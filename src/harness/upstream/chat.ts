/**
 * Chat completions from any OpenAI-compatible server, with retries that end.
 *
 * - Tried again, with seeded jitter and `Retry-After`: 408, 409, 425, 429, 5xx, broken connections, truncated or unreadable bodies, generations that the server aborted.
 * - A conversation that no longer fits is a value. Every other failure is `upstream_failed`, which says what the server said and never the key.
 * - Token ids and logprobs are asked for in the spellings of vLLM and SGLang at once; a server that refuses unknown fields is asked with fewer, from then on.
 */
import { MwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Upstream } from "../harness.ts";
import { readAnswer, type Answer } from "./answer.ts";
import { HttpPools, type PostResult } from "./http.ts";
import { isContextOverflow } from "./overflow.ts";
import { withoutKey } from "./secret.ts";

export interface ChatOptions {
  /** Ask for token ids and logprobs. */
  readonly tokens: boolean;
  /** Tries after the first, for each call. */
  readonly retries: number;
  /** Time of one try, from the first byte sent to the last byte read. */
  readonly callMs: number;
}

export type ChatResult =
  | { readonly kind: "answer"; readonly answer: Answer; readonly body: Readonly<Record<string, unknown>> }
  | { readonly kind: "context_overflow"; readonly message: string };

export interface ChatCall {
  readonly upstream: Upstream;
  /** The request without the fields that ask for tokens. */
  readonly body: Readonly<Record<string, unknown>>;
  /** Uniform in [0, 1), for jitter. */
  readonly random: () => number;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
  /** Told of each failed try and each field given up. */
  readonly note: (text: string) => Promise<void>;
}

/** What is asked for, from most to least. */
const ASKS: readonly Readonly<Record<string, unknown>>[] = [
  { logprobs: true, return_token_ids: true, return_prompt_token_ids: true, return_meta_info: true },
  { logprobs: true },
  {},
];
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;
const RETRY_AFTER_CAP_MS = 120_000;

export class ChatClient {
  readonly #pools = new HttpPools();
  readonly #options: ChatOptions;
  /** How much of `ASKS` each server accepts, learnt from its refusals. */
  readonly #asks = new Map<string, number>();

  constructor(options: ChatOptions) {
    this.#options = options;
  }

  async complete(call: ChatCall): Promise<ChatResult> {
    const url = completionsUrl(call.upstream.url);
    let ask = this.#options.tokens ? (this.#asks.get(url.href) ?? 0) : ASKS.length - 1;
    let failures = 0;
    for (;;) {
      const body = { ...call.body, ...ASKS[ask] };
      const result = await this.#post(call, url, body);
      const verdict = judge(result, call.upstream);
      switch (verdict.kind) {
        case "answer":
          if (this.#options.tokens) this.#asks.set(url.href, ask);
          return { kind: "answer", answer: verdict.answer, body };
        case "context_overflow":
          return verdict;
        case "refused": {
          // Which field a server dislikes is in its prose only, so each poorer request is tried before the refusal stands.
          if (ask === ASKS.length - 1) throw failure(call.upstream, url, verdict.why, verdict.fix);
          ask++;
          await call.note(`The model server refused the request (${verdict.why}); asking with fewer fields for tokens.`);
          break;
        }
        case "fatal":
          throw failure(call.upstream, url, verdict.why, verdict.fix);
        case "again": {
          if (failures === this.#options.retries) throw failure(call.upstream, url, `${verdict.why}, ${failures + 1} times in a row`, verdict.fix);
          const waitMs = backoff(failures, verdict.retryAfter, call);
          failures++;
          await call.note(`A model call failed (${verdict.why}); trying again in ${Math.round(waitMs)} ms.`);
          await call.runtime.sleep(waitMs, call.signal);
        }
      }
    }
  }

  async #post(call: ChatCall, url: URL, body: Readonly<Record<string, unknown>>): Promise<PostResult> {
    const { apiKey } = call.upstream;
    const result = await this.#pools.post(
      {
        url,
        headers: { "content-type": "application/json", accept: "application/json", ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }) },
        body: JSON.stringify(body),
        timeoutMs: this.#options.callMs,
        signal: call.signal,
      },
      call.runtime,
    );
    return result.kind === "response" ? { ...result, text: withoutKey(result.text, apiKey) } : result;
  }
}

type Judgement =
  | { readonly kind: "answer"; readonly answer: Answer }
  | { readonly kind: "context_overflow"; readonly message: string }
  | { readonly kind: "again"; readonly why: string; readonly retryAfter: string | null; readonly fix: string }
  | { readonly kind: "refused" | "fatal"; readonly why: string; readonly fix: string };

const FIX_DOWN = "Check that the model server is up and not overloaded, then run `mw resume`.";
const FIX_URL = "Check --upstream (its base URL up to and including /v1) and --model.";

function judge(result: PostResult, upstream: Upstream): Judgement {
  if (result.kind === "broken") return { kind: "again", why: result.why, retryAfter: null, fix: FIX_DOWN };
  if (result.kind === "too_big") return { kind: "fatal", why: "its answer is larger than the limit for one answer", fix: FIX_URL };
  const { status, text, retryAfter } = result;
  if (isContextOverflow(status, text)) return { kind: "context_overflow", message: excerpt(text) };
  const why = `HTTP ${status}: ${excerpt(text)}`;
  if (status === 408 || status === 409 || status === 425 || status === 429 || status >= 500) return { kind: "again", why, retryAfter, fix: FIX_DOWN };
  if (status === 400 || status === 422) return { kind: "refused", why, fix: fixOfRefusal(text) };
  if (status === 401 || status === 403) {
    return { kind: "fatal", why, fix: upstream.apiKey === null ? "Set MW_API_KEY, or name a file that holds the key." : "The server does not accept the key in MW_API_KEY." };
  }
  if (status < 200 || status > 299) return { kind: "fatal", why, fix: FIX_URL };
  const body = parse(text);
  if (body === undefined) return { kind: "again", why: `HTTP ${status} with a body that is no complete JSON: ${excerpt(text)}`, retryAfter, fix: FIX_URL };
  const answer = readAnswer(body);
  if (answer === null) return { kind: "again", why: `HTTP ${status} with JSON that is no chat completion: ${excerpt(text)}`, retryAfter, fix: FIX_URL };
  // Cut off inside the server: a fragment, not an answer.
  if (answer.finishReason === "abort" || answer.finishReason === "error") {
    return { kind: "again", why: `the server ended the generation with ${answer.finishReason}`, retryAfter, fix: FIX_DOWN };
  }
  return { kind: "answer", answer };
}

function fixOfRefusal(text: string): string {
  if (/tool.choice|tool-call-parser/i.test(text)) return "The server does not offer tool calls: start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME.";
  return "Check --model and the sampling parameters against what the server accepts.";
}

function failure(upstream: Upstream, url: URL, why: string, fix: string): MwError {
  const at = `${url.origin}${url.pathname}`;
  return new MwError("upstream_failed", `The model ${JSON.stringify(upstream.model)} at ${at} did not answer: ${why}.`, { fix, facts: { url: at, model: upstream.model } });
}

/** The address of the chat completions below a base URL. */
function completionsUrl(base: string): URL {
  const fix = "Give --upstream the base URL of an OpenAI-compatible server, for example http://127.0.0.1:8000/v1.";
  let url: URL;
  try {
    url = new URL(base);
  } catch (error) {
    throw new MwError("usage", `The upstream ${JSON.stringify(base)} is no URL.`, { fix, cause: error });
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw new MwError("usage", `The upstream ${JSON.stringify(base)} is neither http nor https.`, { fix });
  // A URL ends up in records and error messages.
  if (url.username !== "" || url.password !== "") throw new MwError("usage", "The upstream URL contains a user name or password.", { fix: "Give the key through MW_API_KEY or a key file." });
  url.pathname = `${url.pathname.replace(/\/+$/, "")}/chat/completions`;
  url.hash = "";
  return url;
}

/** Exponential with full jitter over the upper half, or what the server asks for; both capped. */
function backoff(failures: number, retryAfter: string | null, call: ChatCall): number {
  const steps = Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** failures);
  const jittered = steps / 2 + (steps / 2) * call.random();
  const asked = retryAfter === null ? null : retryAfterMs(retryAfter, call.runtime.now());
  return asked === null ? jittered : Math.min(RETRY_AFTER_CAP_MS, Math.max(asked, 0) + jittered / 4);
}

/** Seconds or an HTTP date (RFC 9110, 10.2.3); null when it is neither. */
export function retryAfterMs(value: string, nowMs: number): number | null {
  if (/^\s*\d+(\.\d+)?\s*$/.test(value)) return Number(value) * 1000;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : at - nowMs;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function excerpt(text: string): string {
  const flat = text.replaceAll(/\s+/g, " ").trim();
  if (flat === "") return "an empty body";
  return flat.length > 400 ? `${flat.slice(0, 400)}...` : flat;
}

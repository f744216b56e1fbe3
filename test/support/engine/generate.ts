/** The endpoints that take token ids: vLLM's `/inference/v1/generate`, `/v1/completions`, and SGLang's `/generate`. */
import type { Sampled, SampledToken } from "./sample.ts";
import type { EngineRequest } from "./script.ts";
import { bytesOf, decode } from "./tokenizer.ts";

export interface TokenContext {
  readonly id: string;
  readonly request: EngineRequest;
  readonly sampled: Sampled;
  readonly version: string;
  /** `/abort_request` has named it. */
  readonly isAborted: () => boolean;
  /** Logprobs are given out. */
  readonly logprobs: boolean;
}

/** Answers of one endpoint, whole and as events. */
export interface TokenEndpoint {
  whole(context: TokenContext): unknown;
  events(context: TokenContext): Iterable<string>;
}

const TOKEN_ENDPOINTS: Readonly<Record<string, TokenEndpoint>> = {
  "/inference/v1/generate": { whole: vllmWhole, events: vllmEvents },
  "/v1/completions": { whole: completionWhole, events: completionEvents },
  "/generate": { whole: (context) => sglangAnswer(context, context.sampled.tokens.length), events: sglangEvents },
};

/** The endpoint of a path, where the flavour has it. */
export function tokenEndpoint(path: string, flavour: "vllm" | "sglang" | "openai"): TokenEndpoint | null {
  const has = path === "/v1/completions" || (path === "/generate" ? flavour === "sglang" : flavour === "vllm");
  return has ? (TOKEN_ENDPOINTS[path] ?? null) : null;
}

function vllmChoice({ request, sampled, logprobs }: TokenContext, tokens: readonly SampledToken[], finish: string | null): unknown {
  const params = (request.body["sampling_params"] ?? {}) as { readonly logprobs?: number | null };
  const content = tokens.map(({ id, logprob }) => ({ token: `token_id:${id}`, logprob, bytes: null, top_logprobs: [{ token: `token_id:${id}`, logprob, bytes: null }] }));
  return {
    index: 0,
    logprobs: logprobs && typeof params.logprobs === "number" ? { content } : null,
    finish_reason: finish === null ? null : sampled.finish === "length" ? "length" : "stop",
    token_ids: tokens.map(({ id }) => id),
    routed_experts: null,
  };
}

function vllmWhole(context: TokenContext): unknown {
  return { request_id: context.id, choices: [vllmChoice(context, context.sampled.tokens, context.sampled.finish)], prompt_logprobs: null, kv_transfer_params: null };
}

function* vllmEvents(context: TokenContext): Generator<string> {
  const { tokens, finish } = context.sampled;
  for (const [at, token] of tokens.entries()) yield JSON.stringify({ request_id: context.id, choices: [vllmChoice(context, [token], at === tokens.length - 1 ? finish : null)], usage: null });
  const options = context.request.body["stream_options"] as { include_usage?: boolean } | null | undefined;
  if (options?.include_usage === true) yield JSON.stringify({ request_id: context.id, choices: [], usage: usage(context) });
  yield "[DONE]";
}

function completionChoice({ request, sampled, logprobs }: TokenContext, tokens: readonly SampledToken[], text: string, first: boolean, last: boolean): unknown {
  const { body, promptIds } = request;
  const ids = body["return_token_ids"] === true;
  return {
    index: 0,
    text,
    logprobs:
      logprobs && typeof body["logprobs"] === "number"
        ? { tokens: tokens.map(({ id }) => bytesOf(id).toString("utf8")), token_logprobs: tokens.map(({ logprob }) => logprob), top_logprobs: null, text_offset: tokens.map(() => 0) }
        : null,
    finish_reason: last ? (sampled.finish === "length" ? "length" : "stop") : null,
    stop_reason: last ? sampled.stopReason : null,
    ...(ids ? { token_ids: tokens.map(({ id }) => id), ...(first ? { prompt_token_ids: promptIds } : {}) } : {}),
  };
}

function completionWhole(context: TokenContext): unknown {
  return { id: context.id, object: "text_completion", created: 1_700_000_000, model: context.request.body["model"], choices: [completionChoice(context, context.sampled.tokens, textUpTo(context, context.sampled.tokens.length), true, true)], usage: usage(context) };
}

function* completionEvents(context: TokenContext): Generator<string> {
  const { tokens } = context.sampled;
  for (const [at, token] of tokens.entries()) {
    const text = textUpTo(context, at + 1).slice(textUpTo(context, at).length);
    yield JSON.stringify({ id: context.id, object: "text_completion", model: context.request.body["model"], choices: [completionChoice(context, [token], text, at === 0, at === tokens.length - 1)] });
  }
  const options = context.request.body["stream_options"] as { include_usage?: boolean } | null | undefined;
  if (options?.include_usage === true) yield JSON.stringify({ id: context.id, object: "text_completion", choices: [], usage: usage(context) });
  yield "[DONE]";
}

/** After so many tokens; the reason only once all of them are there. Streams repeat everything, as SGLang does unless told otherwise. */
function sglangAnswer({ id, request, sampled, version, logprobs }: TokenContext, count: number, finish = count === sampled.tokens.length ? sglangFinish(sampled) : null): unknown {
  const tokens = sampled.tokens.slice(0, count);
  return {
    text: decode(tokens.map((token) => token.id), { skipSpecial: true }),
    output_ids: tokens.map((token) => token.id),
    meta_info: {
      id,
      finish_reason: finish,
      prompt_tokens: request.promptIds.length,
      completion_tokens: count,
      cached_tokens: 0,
      weight_version: version,
      ...(logprobs && request.body["return_logprob"] === true ? { output_token_logprobs: tokens.map((token) => [token.logprob, token.id, null]), input_token_logprobs: [] } : {}),
      e2e_latency: 0.01,
    },
  };
}

/** What a generation ends with that `/abort_request` named. */
export function sglangAborted(context: TokenContext): unknown {
  return sglangAnswer(context, Math.floor(context.sampled.tokens.length / 2), ABORTED);
}

const ABORTED = { type: "abort", message: "Aborted" };

function sglangFinish({ finish, stopReason, tokens }: Sampled): unknown {
  if (finish === "length") return { type: "length", length: tokens.length };
  return { type: "stop", matched: stopReason ?? tokens.at(-1)?.id ?? null };
}

function* sglangEvents(context: TokenContext): Generator<string> {
  for (let count = 1; count <= context.sampled.tokens.length; count++) {
    if (context.isAborted()) {
      yield JSON.stringify(sglangAnswer(context, count - 1, ABORTED));
      break;
    }
    yield JSON.stringify(sglangAnswer(context, count));
  }
  yield "[DONE]";
}

/** Text of the first tokens, up to the last whole character. */
function textUpTo({ sampled }: TokenContext, count: number): string {
  const text = decode(sampled.tokens.slice(0, count).map(({ id }) => id), { skipSpecial: true });
  return count === sampled.tokens.length ? text : text.replace(/\uFFFD+$/, "");
}

function usage({ request, sampled }: TokenContext): unknown {
  const [prompt, completion] = [request.promptIds.length, sampled.tokens.length];
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

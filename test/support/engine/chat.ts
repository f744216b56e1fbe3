/** `/v1/chat/completions` in the flavours of vLLM, SGLang and a plain OpenAI-compatible server. */
import type { Reply } from "./script.ts";
import type { Piece, Sampled, SampledToken } from "./sample.ts";
import { bytesOf } from "./tokenizer.ts";

export interface ChatFlavour {
  /** `vllm`: `return_token_ids`; `sglang`: `return_prompt_token_ids` and `return_meta_info`, not streamed; `none`: logprobs without ids. */
  readonly ids: "vllm" | "sglang" | "none";
  readonly logprobs: boolean;
  readonly reasoningField: "reasoning" | "reasoning_content";
}

export interface ChatContext {
  readonly id: string;
  readonly model: unknown;
  readonly body: Readonly<Record<string, unknown>>;
  readonly promptIds: readonly number[];
  readonly sampled: Sampled;
  readonly reply: Reply;
  readonly flavour: ChatFlavour;
  readonly version: string;
}

/** The whole answer. */
export function chatCompletion(context: ChatContext): unknown {
  const { body, flavour, sampled, promptIds } = context;
  const pieces = sampled.tokens.flatMap((token) => token.pieces);
  const vllm = flavour.ids === "vllm" && body["return_token_ids"] === true;
  const sglang = flavour.ids === "sglang";
  return {
    id: context.id,
    object: "chat.completion",
    created: 1_700_000_000,
    model: context.model,
    ...(vllm ? { prompt_token_ids: promptIds } : {}),
    choices: [
      {
        index: 0,
        message: wholeMessage(pieces, flavour),
        finish_reason: sampled.finish,
        ...(flavour.ids === "vllm" ? { stop_reason: sampled.stopReason } : {}),
        logprobs: wantsLogprobs(context) ? { content: sampled.tokens.map((token) => logprobEntry(token, body)) } : null,
        ...(vllm ? { token_ids: sampled.tokens.map(({ id }) => id) } : {}),
        ...(sglang ? { matched_stop: sampled.stopReason } : {}),
        ...(sglang && body["return_prompt_token_ids"] === true ? { prompt_token_ids: promptIds } : {}),
        ...(sglang && body["return_meta_info"] === true ? { meta_info: { id: context.id, weight_version: context.version, output_token_logprobs: sampled.tokens.map(({ id, logprob }) => [logprob, id, null]) } } : {}),
      },
    ],
    ...(context.reply.noUsage === true ? {} : { usage: usage(context) }),
  };
}

function wholeMessage(pieces: readonly Piece[], flavour: ChatFlavour): unknown {
  const join = (type: "content" | "reasoning" | "refusal"): string | null => {
    const texts = pieces.flatMap((piece) => (piece.type === type ? [piece.text] : []));
    return texts.length === 0 ? null : texts.join("");
  };
  const calls = pieces.flatMap((piece) => (piece.type === "call" ? [piece] : []));
  const refusal = join("refusal");
  const reasoning = join("reasoning");
  return {
    role: "assistant",
    content: join("content") ?? (calls.length > 0 ? null : ""),
    ...(refusal === null ? {} : { refusal }),
    ...(reasoning === null ? {} : { [flavour.reasoningField]: reasoning }),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map(({ index, id, name }) => ({
            // JSON leaves it out when it is undefined.
            id: id ?? undefined,
            type: "function",
            function: { name, arguments: pieces.flatMap((piece) => (piece.type === "arguments" && piece.index === index ? [piece.text] : [])).join("") },
          })),
        }),
  };
}

/** The events of a streamed answer, the last one `[DONE]`. */
export function* chatEvents(context: ChatContext): Generator<string> {
  const { body, flavour, sampled, promptIds, reply } = context;
  const vllm = flavour.ids === "vllm" && body["return_token_ids"] === true;
  const head = `{"id":${JSON.stringify(context.id)},"object":"chat.completion.chunk","created":1700000000,"model":${JSON.stringify(context.model)}`;
  const chunk = (choice: Record<string, unknown>, more = ""): string => `${head}${more},"choices":[${JSON.stringify({ index: 0, ...choice })}]}`;
  yield chunk({ delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }, vllm ? `,"prompt_token_ids":${JSON.stringify(promptIds)}` : "");
  const logprobs = wantsLogprobs(context);
  for (const [at, token] of sampled.tokens.entries()) {
    const last = at === sampled.tokens.length - 1;
    const finish = last && reply.without !== "finish" && reply.without !== "both" ? sampled.finish : null;
    const deltas = token.pieces.map((piece) => deltaOf(piece, flavour));
    // A token that completes nothing is sent for its ids and logprobs alone, as vLLM does.
    if (deltas.length === 0 && finish === null && !vllm && !logprobs) continue;
    yield chunk({
      delta: mergeDeltas(deltas),
      logprobs: logprobs ? { content: [logprobEntry(token, body)] } : null,
      finish_reason: finish,
      ...(finish !== null && flavour.ids === "vllm" ? { stop_reason: sampled.stopReason } : {}),
      ...(finish !== null && flavour.ids === "sglang" ? { matched_stop: sampled.stopReason } : {}),
      ...(vllm ? { token_ids: [token.id] } : {}),
    });
  }
  const options = body["stream_options"] as { include_usage?: boolean } | undefined;
  if (options?.include_usage === true && reply.noUsage !== true) yield `${head},"choices":[],"usage":${JSON.stringify(usage(context))}}`;
  if (reply.without !== "done" && reply.without !== "both") yield "[DONE]";
}

function deltaOf(piece: Piece, flavour: ChatFlavour): Record<string, unknown> {
  switch (piece.type) {
    case "content":
    case "refusal":
      return { [piece.type]: piece.text };
    case "reasoning":
      return { [flavour.reasoningField]: piece.text };
    case "call":
      return { tool_calls: [{ index: piece.index, ...(piece.id === null ? {} : { id: piece.id }), type: "function", function: { name: piece.name, arguments: "" } }] };
    case "arguments":
      return { tool_calls: [{ index: piece.index, function: { arguments: piece.text } }] };
  }
}

/** A token may complete several pieces: the end of one and the beginning of the next. */
function mergeDeltas(deltas: readonly Record<string, unknown>[]): Record<string, unknown> {
  if (deltas.length < 2) return deltas[0] ?? {};
  const calls = deltas.flatMap((delta) => (delta["tool_calls"] as unknown[] | undefined) ?? []);
  return { ...Object.assign({}, ...deltas), ...(calls.length > 0 ? { tool_calls: calls } : {}) } as Record<string, unknown>;
}

function wantsLogprobs({ flavour, body }: ChatContext): boolean {
  return flavour.logprobs && body["logprobs"] === true;
}

export function logprobEntry({ id, logprob }: SampledToken, body: Readonly<Record<string, unknown>>): unknown {
  const bytes = bytesOf(id);
  const token = body["return_tokens_as_token_ids"] === true ? `token_id:${id}` : bytes.toString("utf8");
  const top = typeof body["top_logprobs"] === "number" && body["top_logprobs"] > 0 ? [{ token, logprob, bytes: [...bytes] }] : [];
  return { token, logprob, bytes: [...bytes], top_logprobs: top };
}

function usage({ promptIds, sampled }: ChatContext): unknown {
  const [prompt, completion] = [promptIds.length, sampled.tokens.length];
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion, prompt_tokens_details: { cached_tokens: Math.floor(prompt / 16) * 16 } };
}

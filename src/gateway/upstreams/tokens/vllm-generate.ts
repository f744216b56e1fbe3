/**
 * vLLM's `/inference/v1/generate`: token ids in, token ids out (`vllm/entrypoints/serve/disagg/`). Its sampling defaults are those of `SamplingParams`, not the model's
 * `generation_config.json`. Pieces without tokens are not sent, so a stream may end without saying why.
 */
import { record } from "../chat/tokens.ts";
import { finishOf, idsOf, NOTHING_NEW, samplingFields, structuredOutputs, type TokenPiece, type TokenWire } from "./wire.ts";

export const VLLM_GENERATE: TokenWire = {
  base: "root",
  path: "/inference/v1/generate",
  body: ({ model, requestId, promptIds, sampling, maxTokens, endIds, topLogprobs, responseFormat, stream }) => ({
    model,
    request_id: requestId,
    token_ids: promptIds,
    sampling_params: {
      ...samplingFields(sampling),
      ...(sampling.seed === null ? {} : { seed: sampling.seed }),
      ...structuredOutputs(responseFormat),
      max_tokens: maxTokens,
      stop_token_ids: endIds,
      logprobs: topLogprobs ?? 0,
      skip_special_tokens: false,
    },
    stream,
  }),
  reader: () => (body) => {
    const choice = Array.isArray(body["choices"]) ? record(body["choices"][0]) : {};
    if (choice["token_ids"] === undefined) return null;
    const { content } = record(choice["logprobs"]);
    const ids = choice["token_ids"] === null ? [] : idsOf(choice["token_ids"]);
    return {
      ...NOTHING_NEW,
      ids,
      logprobs: Array.isArray(content) ? content.map((entry) => numberOf(record(entry)["logprob"])) : null,
      top: Array.isArray(content) ? content.map((entry) => alternatives(record(entry)["top_logprobs"])) : null,
      finish: finishOf(choice["finish_reason"]),
      upstreamId: typeof body["request_id"] === "string" ? body["request_id"] : null,
    };
  },
};

function numberOf(value: unknown): number {
  return typeof value === "number" ? value : Number.NaN;
}

/** Tokens are spelled `token_id:123`. */
function alternatives(value: unknown): NonNullable<TokenPiece["top"]>[number] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((entry) => {
    const { token, logprob } = record(entry);
    const id = typeof token === "string" ? /^token_id:(\d+)$/.exec(token)?.[1] : undefined;
    return id === undefined ? [] : [{ id: Number(id), logprob: numberOf(logprob) }];
  });
}

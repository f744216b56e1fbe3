/** `/v1/completions` with token ids for a prompt, and vLLM's `return_token_ids`: for servers that have no endpoint of their own for that. Alternatives come without ids, and are left out. */
import { record } from "../chat/tokens.ts";
import { finishOf, idsOf, NOTHING_NEW, samplingFields, structuredOutputs, type TokenWire } from "./wire.ts";

export const COMPLETIONS: TokenWire = {
  base: "v1",
  path: "/completions",
  body: ({ model, requestId, promptIds, sampling, maxTokens, endIds, responseFormat, stream }) => ({
    model,
    request_id: requestId,
    prompt: promptIds,
    ...samplingFields(sampling),
    ...(sampling.seed === null ? {} : { seed: sampling.seed }),
    ...structuredOutputs(responseFormat),
    max_tokens: maxTokens,
    stop_token_ids: endIds,
    logprobs: 0,
    skip_special_tokens: false,
    return_token_ids: true,
    stream,
  }),
  reader: () => (body) => {
    const choice = Array.isArray(body["choices"]) ? record(body["choices"][0]) : {};
    if (choice["token_ids"] === undefined && choice["finish_reason"] === undefined) return null;
    const { token_logprobs: logprobs } = record(choice["logprobs"]);
    return {
      ...NOTHING_NEW,
      ids: choice["token_ids"] === undefined || choice["token_ids"] === null ? [] : idsOf(choice["token_ids"]),
      logprobs: Array.isArray(logprobs) ? logprobs.map((logprob: unknown) => (typeof logprob === "number" ? logprob : Number.NaN)) : null,
      finish: finishOf(choice["finish_reason"]),
      upstreamId: typeof body["id"] === "string" ? body["id"] : null,
    };
  },
};

/**
 * SGLang's `/generate` with `input_ids` (`sglang/srt/managers/io_struct.py`, `tokenizer_manager.py`). Events of a stream repeat the whole answer so far unless the server runs with
 * incremental output; `completion_tokens` counts the whole in both cases, which tells how much of an event is new. The stop token is among the ids only with `no_stop_trim`.
 * `weight_versions` gives the spans of an answer in which the weights changed.
 */
import { GatewayFailure } from "../../failure.ts";
import { record } from "../chat/tokens.ts";
import { finishOf, idsOf, NOTHING_NEW, samplingFields, type TokenAsk, type TokenPiece, type TokenWire } from "./wire.ts";

export const SGLANG_GENERATE: TokenWire = {
  base: "root",
  path: "/generate",
  body: ({ requestId, promptIds, sampling, maxTokens, endIds, topLogprobs, responseFormat, stream }) => ({
    rid: requestId,
    input_ids: promptIds,
    sampling_params: {
      ...samplingFields(sampling),
      ...(sampling.seed === null ? {} : { sampling_seed: sampling.seed }),
      ...jsonSchema(responseFormat),
      max_new_tokens: maxTokens,
      stop_token_ids: endIds,
      skip_special_tokens: false,
      no_stop_trim: true,
    },
    return_logprob: true,
    ...(topLogprobs === null || topLogprobs === 0 ? {} : { top_logprobs_num: topLogprobs }),
    stream,
  }),
  reader() {
    let seen = 0;
    return (body) => {
      const meta = record(body["meta_info"]);
      if (body["meta_info"] === undefined) return null;
      const { type, status_code: status, message } = record(meta["finish_reason"]);
      // What the scheduler refuses comes in the form of an answer.
      if (type === "abort" && typeof status === "number" && status >= 400) throw new GatewayFailure(status === 503 ? "overloaded" : "upstream", `The model server ended the generation: ${String(message).slice(0, 300)}`);
      const ids = body["output_ids"] === undefined ? idsOf(triples(meta["output_token_logprobs"]).map(({ id }) => id)) : idsOf(body["output_ids"]);
      const total = typeof meta["completion_tokens"] === "number" ? meta["completion_tokens"] : ids.length;
      const fresh = Math.min(Math.max(total - seen, 0), ids.length);
      seen += fresh;
      return {
        ids: fresh === 0 ? [] : ids.slice(-fresh),
        logprobs: newest(triples(meta["output_token_logprobs"]), fresh)?.map(({ logprob }) => logprob) ?? null,
        top: newest(listOf(meta["output_top_logprobs"]), fresh)?.map((list) => triples(list)) ?? null,
        finish: finishOf(type),
        versions: versionsOf(meta, seen),
        cachedTokens: typeof meta["cached_tokens"] === "number" ? meta["cached_tokens"] : null,
        upstreamId: typeof meta["id"] === "string" ? meta["id"] : null,
      } satisfies typeof NOTHING_NEW;
    };
  },
};

/** The last `count`; null where there are not so many. */
function newest<Item>(list: readonly Item[], count: number): readonly Item[] | null {
  return list.length < count ? null : list.slice(list.length - count);
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

/** `[logprob, id, text]`. */
function triples(value: unknown): readonly { readonly id: number; readonly logprob: number }[] {
  return listOf(value).map((triple) => {
    const [logprob, id] = listOf(triple);
    return { id: typeof id === "number" ? id : -1, logprob: typeof logprob === "number" ? logprob : Number.NaN };
  });
}

function versionsOf(meta: Readonly<Record<string, unknown>>, total: number): TokenPiece["versions"] {
  const spans = listOf(meta["weight_versions"]).map(record);
  if (spans.length > 0) return spans.map(({ version, start, end }) => [String(version), Math.max(0, Number(end) - Number(start)) || 0] as const);
  const version = meta["weight_version"];
  return typeof version === "string" || typeof version === "number" ? [[String(version), total]] : null;
}

function jsonSchema(format: TokenAsk["responseFormat"]): Record<string, unknown> {
  if (format === null) return {};
  return { json_schema: JSON.stringify(format.type === "json_object" ? { type: "object" } : format.schema) };
}

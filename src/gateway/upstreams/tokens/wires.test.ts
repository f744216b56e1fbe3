/** The forms in which real engines send tokens, beside those of the test engine: cut differently, repeated, aborted, with versions in spans. */
import { describe, expect, it } from "vitest";
import { DEFAULT_SAMPLING } from "../../conversation.ts";
import { COMPLETIONS } from "./completions.ts";
import { SGLANG_GENERATE } from "./sglang-generate.ts";
import { StopStrings } from "./stop-strings.ts";
import { VLLM_GENERATE } from "./vllm-generate.ts";
import type { TokenAsk, TokenWire } from "./wire.ts";

const ASK: TokenAsk = {
  model: "m",
  requestId: "r",
  promptIds: [1, 2],
  sampling: { ...DEFAULT_SAMPLING, temperature: 0.5, topK: 20, seed: 7, stop: ["END"] },
  maxTokens: 9,
  endIds: [3],
  topLogprobs: null,
  responseFormat: { type: "json_schema", name: null, schema: { type: "object" }, strict: null },
  stream: true,
};

function readAll(wire: TokenWire, bodies: readonly Readonly<Record<string, unknown>>[]) {
  const read = wire.reader();
  const pieces = bodies.flatMap((body) => read(body) ?? []);
  return {
    ids: pieces.flatMap(({ ids }) => ids),
    logprobs: pieces.flatMap(({ logprobs }) => logprobs ?? []),
    finish: pieces.map(({ finish }) => finish).findLast((finish) => finish !== null) ?? null,
    versions: pieces.at(-1)?.versions ?? null,
  };
}

describe("SGLang", () => {
  const meta = (count: number, from: number, finish: unknown = null, more = {}): Record<string, unknown> => ({
    id: "r", completion_tokens: count, finish_reason: finish, weight_version: "7", output_token_logprobs: Array.from({ length: count - from }, (_, at) => [-(from + at), 10 + from + at, null]), ...more,
  });
  const ids = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, at) => 10 + from + at);

  it("is read the same whether events repeat the answer or only add to it", () => {
    const repeated = [{ output_ids: ids(0, 1), meta_info: meta(1, 0) }, { output_ids: ids(0, 4), meta_info: meta(4, 0) }, { output_ids: ids(0, 4), meta_info: meta(4, 0, { type: "stop", matched: 13 }) }];
    const added = [{ output_ids: ids(0, 1), meta_info: meta(1, 0) }, { output_ids: ids(1, 4), meta_info: meta(4, 1) }, { output_ids: [], meta_info: meta(4, 4, { type: "stop", matched: 13 }) }];
    const expected = { ids: [10, 11, 12, 13], logprobs: [-0, -1, -2, -3], finish: "stop", versions: [["7", 4]] };
    expect(readAll(SGLANG_GENERATE, repeated)).toEqual(expected);
    expect(readAll(SGLANG_GENERATE, added)).toEqual(expected);
  });

  it("is not read twice when an abort repeats its last token", () => {
    const events = [{ output_ids: ids(0, 3), meta_info: meta(3, 0) }, { output_ids: [12], meta_info: meta(3, 0, { type: "abort", message: "Aborted" }) }];
    expect(readAll(SGLANG_GENERATE, events)).toMatchObject({ ids: [10, 11, 12], finish: "abort" });
  });

  it("tells the versions of an answer within which the weights changed", () => {
    const spans = [{ version: "7", start: 0, end: 1 }, { version: "8", start: 1, end: 3 }];
    expect(readAll(SGLANG_GENERATE, [{ output_ids: ids(0, 3), meta_info: meta(3, 0, { type: "length", length: 3 }, { weight_versions: spans, weight_version: "8" }) }])).toMatchObject({ finish: "length", versions: [["7", 1], ["8", 2]] });
  });

  it("refuses in the form of an answer", () => {
    const refusal = (status: number): (() => unknown) => () => readAll(SGLANG_GENERATE, [{ output_ids: [], meta_info: meta(0, 0, { type: "abort", message: "queue full", status_code: status }) }]);
    expect(refusal(503)).toThrow(expect.objectContaining({ kind: "overloaded" }) as Error);
    expect(refusal(500)).toThrow(expect.objectContaining({ kind: "upstream" }) as Error);
  });

  it("is asked for everything that was sampled", () => {
    expect(SGLANG_GENERATE.body(ASK)).toEqual({
      rid: "r", input_ids: [1, 2], return_logprob: true, stream: true,
      sampling_params: { temperature: 0.5, top_k: 20, stop: ["END"], sampling_seed: 7, json_schema: '{"type":"object"}', max_new_tokens: 9, stop_token_ids: [3], skip_special_tokens: false, no_stop_trim: true },
    });
  });
});

describe("vLLM", () => {
  it("is asked for ids and logprobs, without the defaults of its chat endpoint", () => {
    expect(VLLM_GENERATE.body(ASK)).toEqual({
      model: "m", request_id: "r", token_ids: [1, 2], stream: true,
      sampling_params: { temperature: 0.5, top_k: 20, stop: ["END"], seed: 7, structured_outputs: { json: { type: "object" } }, max_tokens: 9, stop_token_ids: [3], logprobs: 0, skip_special_tokens: false },
    });
    expect(COMPLETIONS.body({ ...ASK, stream: false, responseFormat: { type: "json_object" } })).toMatchObject({ prompt: [1, 2], return_token_ids: true, logprobs: 0, max_tokens: 9, structured_outputs: { json_object: true }, stream: false });
  });

  it("may abort, and sends usage and other events without tokens", () => {
    const choice = (token_ids: readonly number[], finish_reason: string | null): Record<string, unknown> => ({ request_id: "x", choices: [{ index: 0, token_ids, finish_reason, logprobs: { content: token_ids.map((id) => ({ token: `token_id:${id}`, logprob: -id })) } }] });
    expect(readAll(VLLM_GENERATE, [choice([5, 6], null), choice([7], "abort"), { request_id: "x", choices: [], usage: {} }])).toMatchObject({ ids: [5, 6, 7], logprobs: [-5, -6, -7], finish: "abort", versions: null });
  });
});

describe("StopStrings", () => {
  it("finds the first that is met, in any cut, and gives back what only began like one", () => {
    for (const [text, stops, shown, met] of [
      ["abcSTOPdef", ["STOP"], "abc", "STOP"],
      ["abcSTOdef", ["STOP", ""], "abcSTOdef", null],
      ["xSTSTOP", ["STOP"], "xST", "STOP"],
      ["a\n\nb", ["\n\n", "b"], "a", "\n\n"],
    ] as const) {
      for (let size = 1; size <= text.length; size++) {
        const strings = new StopStrings(stops);
        let out = "";
        let found: string | null = null;
        for (let at = 0; at < text.length && found === null; at += size) {
          const step = strings.push(text.slice(at, at + size));
          out += step.text;
          found = step.met;
        }
        expect([found === null ? out + strings.end() : out, found]).toEqual([shown, met]);
      }
    }
  });
});

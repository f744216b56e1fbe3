import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { BASH, turn } from "../../../../test/support/turns.ts";
import { blocksOf } from "../../../../test/support/upstreams.ts";
import type { AnswerBlock, Delta, ToolDefinition, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { AnswerSink } from "../answer-sink.ts";
import { ChatReader, type ChatAnswer } from "./read.ts";


interface Read extends ChatAnswer {
  readonly deltas: readonly Delta[];
}

/** Feeds a response to the sink in these pieces, as the network would. */
async function read(pieces: readonly Uint8Array[], { request = turn({ stream: true, tools: [BASH] }), type = "text/event-stream", unlimited = true } = {}): Promise<Read> {
  const deltas: Delta[] = [];
  const fail = (error: unknown): GatewayFailure => new GatewayFailure("upstream", JSON.stringify(error));
  const { maxTokens } = request.sampling;
  const sink = new AnswerSink(new ChatReader({ request, requestId: "r", maxTokens, unlimited, fail }), request.stream ? (delta) => void deltas.push(delta) : null);
  sink.start(200, { "content-type": type });
  for (const piece of pieces) if (!sink.finished) await sink.data(Buffer.from(piece));
  const answer = await sink.complete();
  return { ...answer, deltas };
}

const events = (chunks: readonly unknown[], end = "data: [DONE]\n\n"): Buffer => Buffer.from(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("") + end);
const delta = (fields: unknown, more: Readonly<Record<string, unknown>> = {}): unknown => ({ choices: [{ index: 0, delta: fields, ...more }] });
const calls = (...pieces: readonly unknown[]): unknown => delta({ tool_calls: pieces });
const END = { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] };

async function streamed(chunks: readonly unknown[], request?: TurnRequest): Promise<readonly AnswerBlock[]> {
  const bytes = events([...chunks, END]);
  const { answer, deltas } = await read([bytes], request === undefined ? {} : { request });
  expect(blocksOf(deltas)).toEqual(answer.blocks);
  return answer.blocks;
}

const call = (id: string, text: string, name = "bash"): AnswerBlock => ({ type: "tool_call", id, name, arguments: text });

describe("tool calls of a stream", () => {
  const begin = (index: number, id: string, name = "bash"): unknown => ({ index, id, type: "function", function: { name, arguments: "" } });
  const more = (index: number, text: unknown): unknown => ({ index, function: { arguments: text } });

  it.each<readonly [string, readonly unknown[], readonly AnswerBlock[]]>([
    ["one after the other", [calls(begin(0, "a")), calls(more(0, '{"x"')), calls(more(0, ":1}")), calls(begin(1, "b")), calls(more(1, "{}"))], [call("a", '{"x":1}'), call("b", "{}")]],
    ["interleaved", [calls(begin(0, "a"), begin(1, "b")), calls(more(1, '{"y"')), calls(more(0, '{"x"')), calls(more(1, ":2}")), calls(more(0, ":1}"))], [call("a", '{"x":1}'), call("b", '{"y":2}')]],
    [
      "three, all begun before any has arguments",
      [calls(begin(0, "a")), calls(begin(1, "b")), calls(begin(2, "c")), ...["{", '"k":', "1}"].flatMap((text) => [calls(more(0, text)), calls(more(1, text)), calls(more(2, text))])],
      [call("a", '{"k":1}'), call("b", '{"k":1}'), call("c", '{"k":1}')],
    ],
    ["all under the number 0, each with its id", [calls(begin(0, "a")), calls(more(0, "{}")), calls({ index: 0, id: "b", function: { name: "bash", arguments: '{"n":2}' } })], [call("a", "{}"), call("b", '{"n":2}')]],
    ["without numbers", [calls({ id: "a", function: { name: "bash", arguments: "{" } }), calls({ function: { arguments: "}" } }), calls({ id: "b", function: { name: "bash", arguments: "{}" } })], [call("a", "{}"), call("b", "{}")]],
    ["without numbers and ids", [calls({ function: { name: "bash", arguments: "{}" } }), calls({ function: { name: "bash", arguments: '{"n":2}' } })], [call("call_r_0", "{}"), call("call_r_1", '{"n":2}')]],
    ["with id and name in every piece", [calls({ index: 0, id: "a", function: { name: "bash", arguments: "{" } }), calls({ index: 0, id: "a", function: { name: "bash", arguments: "}" } })], [call("a", "{}")]],
    ["with the name after the arguments", [calls({ index: 0, id: "a", function: { arguments: '{"x":1' } }), calls({ index: 0, function: { name: "bash", arguments: "}" } })], [call("a", '{"x":1}')]],
    ["with arguments as an object", [calls({ index: 0, id: "a", function: { name: "bash", arguments: { x: 1 } } })], [call("a", '{"x":1}')]],
    ["with the same id twice", [calls(begin(0, "a")), calls(more(0, "{}")), calls(begin(1, "a")), calls(more(1, "{}"))], [call("a", "{}"), call("call_r_1", "{}")]],
    ["with arguments that are no JSON", [calls(begin(0, "a")), calls(more(0, '{"x": '))], [call("a", '{"x": ')]],
    ["with text between and after", [delta({ content: "one" }), calls(begin(0, "a")), calls(more(0, "{}")), delta({ content: "two" }), calls(begin(1, "b"))], [{ type: "text", text: "one" }, call("a", "{}"), { type: "text", text: "two" }, call("b", "{}")]],
    ["as the old function_call", [delta({ function_call: { name: "bash", arguments: "" } }), delta({ function_call: { arguments: "{}" } })], [call("call_r_0", "{}")]],
    ["by an unknown name", [calls(begin(0, "a", "mcp__x__y"))], [call("a", "{}", "mcp__x__y")]],
    ["half a character at a time", [calls(begin(0, "a")), calls(more(0, '{"x":"\ud83d')), calls(more(0, '\ude00"}'))], [call("a", '{"x":"😀"}')]],
  ])("%s", async (_name, chunks, blocks) => {
    expect(await streamed(chunks)).toEqual(blocks);
  });

  it.each(["", null, "{}", " ", undefined])("without arguments are called with {}: %j", async (text) => {
    expect(await streamed([calls({ index: 0, id: "a", function: { name: "bash", arguments: text } })])).toEqual([call("a", "{}")]);
    const whole = { choices: [{ message: { content: null, tool_calls: [{ id: "a", function: { name: "bash", arguments: text } }] }, finish_reason: "tool_calls" }] };
    expect((await read([Buffer.from(JSON.stringify(whole))], { type: "application/json" })).answer.blocks).toEqual([call("a", "{}")]);
  });

  it("stream on while they are whole, and hold back what would mix", async () => {
    const { deltas } = await read([events([calls(begin(0, "a"), begin(1, "b")), calls(more(1, '{"y":2}')), calls(more(0, '{"x":1}')), END])]);
    expect(deltas.map((piece) => piece.type)).toEqual(["tool_call", "arguments", "tool_call", "arguments"]);
    const sequential = [calls(begin(0, "a")), calls(more(0, "{}")), calls(begin(1, "b"))];
    const early: Delta[] = [];
    const request = turn({ stream: true, tools: [BASH] });
    const sink = new AnswerSink(new ChatReader({ request, requestId: "r", maxTokens: null, unlimited: true, fail: () => new GatewayFailure("upstream", "") }), (piece) => void early.push(piece));
    sink.start(200, { "content-type": "text/event-stream" });
    await sink.data(events(sequential, ""));
    expect(early).toMatchObject([{ id: "a" }, { text: "{}" }, { id: "b" }]);
  });

  it("may not go on after they were whole and another block came", async () => {
    await expect(streamed([calls(begin(0, "a")), calls(more(0, "{}")), delta({ content: "text" }), calls(more(0, "x"))])).rejects.toMatchObject({ kind: "upstream" });
    expect(await streamed([calls(begin(0, "a")), calls(more(0, "{}")), delta({ content: "text" }), calls(more(0, "\n"))])).toMatchObject([{ arguments: "{}" }, { text: "text" }]);
  });

  it("find their way back to namespaces and custom tools", async () => {
    const tools: readonly ToolDefinition[] = [
      { ...BASH, name: "spawn", namespace: "agents" },
      { name: "patch", description: null, parameters: null, kind: "custom" },
      { name: "exec", description: null, parameters: null, kind: "custom", namespace: "functions" },
    ];
    const request = turn({ stream: true, tools });
    expect(
      await streamed(
        [
          calls(begin(0, "a", "agents__spawn"), more(0, "{}")),
          calls(begin(1, "b", "patch"), more(1, '{"inp')),
          calls(more(1, 'ut": "*** Begin\\n😀"}')),
          calls(begin(2, "c", "functions__exec"), more(2, '{"input":""}')),
          calls(begin(3, "d", "patch"), more(3, "raw text")),
          calls(begin(4, "e", "other__name")),
        ],
        request,
      ),
    ).toEqual([
      { type: "tool_call", id: "a", name: "spawn", namespace: "agents", arguments: "{}" },
      { type: "tool_call", id: "b", name: "patch", kind: "custom", arguments: "*** Begin\n😀" },
      { type: "tool_call", id: "c", name: "exec", kind: "custom", namespace: "functions", arguments: "" },
      { type: "tool_call", id: "d", name: "patch", kind: "custom", arguments: "raw text" },
      { type: "tool_call", id: "e", name: "other__name", arguments: "{}" },
    ]);
  });

  it("get another id where the conversation has theirs already", async () => {
    const request = turn({ stream: true, messages: [{ role: "assistant", content: [{ type: "tool_call", id: "call_0", name: "bash", arguments: "{}" }] }] });
    const { answer, notes } = await read([events([calls(begin(0, "call_0")), END])], { request });
    expect(answer.blocks).toEqual([call("call_r_1", "{}")]);
    expect(notes).toEqual([expect.stringContaining("call_0")]);
  });
});

describe("reasoning and text", () => {
  it.each<readonly [readonly unknown[], readonly AnswerBlock[]]>([
    [[delta({ reasoning_content: "a" }), delta({ reasoning_content: "b", content: "" }), delta({ content: "c" })], [{ type: "reasoning", text: "ab", signature: null }, { type: "text", text: "c" }]],
    [[delta({ reasoning: "a" }), delta({ reasoning: "b", content: "c" })], [{ type: "reasoning", text: "ab", signature: null }, { type: "text", text: "c" }]],
    [[delta({ reasoning: "a", reasoning_content: "a" })], [{ type: "reasoning", text: "a", signature: null }]],
    [[delta({ content: "a" }), delta({ reasoning: "b" }), delta({ content: "c" })], [{ type: "text", text: "a" }, { type: "reasoning", text: "b", signature: null }, { type: "text", text: "c" }]],
    [[delta({ content: [{ type: "text", text: "a" }, { type: "x" }] }), delta({ content: null }), delta({ refusal: "no" })], [{ type: "text", text: "a" }, { type: "refusal", text: "no" }]],
    [[delta({ content: "\ud83d" }), delta({ content: "\ude00" })], [{ type: "text", text: "😀" }]],
  ])("%j", async (chunks, blocks) => {
    expect(await streamed(chunks)).toEqual(blocks);
  });
});

describe("why an answer ended", () => {
  const ended = (fields: Readonly<Record<string, unknown>>, more: Readonly<Record<string, unknown>> = {}): Buffer => events([{ choices: [{ index: 0, delta: { content: "x" }, ...fields }], ...more }]);

  it.each<readonly [Readonly<Record<string, unknown>>, unknown]>([
    [{ finish_reason: "stop" }, { finish: "stop", stopSequence: null }],
    [{ finish_reason: "stop", stop_reason: 151645 }, { finish: "stop", stopSequence: null }],
    [{ finish_reason: "stop", stop_reason: "END" }, { finish: "stop_sequence", stopSequence: "END" }],
    [{ finish_reason: "stop", matched_stop: "END" }, { finish: "stop_sequence", stopSequence: "END" }],
    [{ finish_reason: "content_filter" }, { finish: "content_filter" }],
    [{ finish_reason: "tool_calls" }, { finish: "stop" }],
    [{ finish_reason: "length" }, { finish: "context" }],
  ])("%j", async (fields, answer) => {
    expect((await read([ended(fields)])).answer).toMatchObject(answer as object);
  });

  it("tells the limit from the end of the context", async () => {
    const usage = { usage: { prompt_tokens: 90, completion_tokens: 10 } };
    const limited = turn({ stream: true, sampling: { maxTokens: 10 } });
    expect((await read([ended({ finish_reason: "length" }, usage)], { request: limited })).answer.finish).toBe("length");
    expect((await read([ended({ finish_reason: "length" }, usage)], { request: turn({ stream: true, sampling: { maxTokens: 20 } }) })).answer.finish).toBe("context");
    expect((await read([ended({ finish_reason: "length" })], { unlimited: false })).answer.finish).toBe("length");
  });

  it("is noted where it is new or missing", async () => {
    expect(await read([ended({ finish_reason: "repetition" })])).toMatchObject({ answer: { finish: "stop" }, notes: [expect.stringContaining("repetition")] });
    expect(await read([Buffer.from('{"choices":[{"message":{"content":"x"}}]}')], { type: "application/json" })).toMatchObject({ answer: { finish: "stop" }, notes: [expect.stringContaining("did not say why")] });
  });
});

describe("tokens", () => {
  const usage = { usage: { prompt_tokens: 2, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 1 }, completion_tokens_details: { reasoning_tokens: 1 } } };
  const token = (ids: unknown, logprobs: readonly unknown[]): unknown => delta({ content: "x" }, { token_ids: ids, logprobs: { content: logprobs.map((logprob) => ({ token: "x", logprob })) } });
  const first = { ...(delta({ role: "assistant", content: "" }) as object), prompt_token_ids: [7, 8] };

  it("are gathered from the chunks, with the prompt's in the first", async () => {
    const { tokens, answer, notes } = await read([events([first, token([1], [-0.25]), token([2, 3], [-1e-9, -9999]), END, { choices: [], ...usage }])]);
    expect(tokens).toEqual({ promptIds: [7, 8], completionIds: [1, 2, 3], logprobs: [-0.25, -1e-9, -9999], versions: [] });
    expect(answer.usage).toEqual({ promptTokens: 2, completionTokens: 3, cachedTokens: 1, reasoningTokens: 1 });
    expect(notes).toEqual([]);
  });

  it.each<readonly [string, readonly unknown[], unknown, string]>([
    ["fewer than were sampled, as where a parser swallowed chunks", [first, token([1], [-1]), END, { choices: [], ...usage }], null, "1 token ids for an answer of 3"],
    ["of another prompt", [{ ...first, prompt_token_ids: [7] }, token([1, 2, 3], [-1, -1, -1]), END, { choices: [], ...usage }], null, "1 token ids for a prompt of 2"],
    ["without those of the prompt", [token([1, 2, 3], [-1, -1, -1]), END, { choices: [], ...usage }], null, "of the answer alone"],
    ["that are no ids", [first, token([1.5, "2", -3], [-1, -1, -1]), END, { choices: [], ...usage }], null, "token ids that are none"],
    ["with too few logprobs", [first, token([1, 2, 3], [-1, -1]), END, { choices: [], ...usage }], { completionIds: [1, 2, 3], logprobs: null }, "2 logprobs for 3 tokens"],
    ["with logprobs that are none", [first, token([1, 2, 3], [-1, null, -1]), END, { choices: [], ...usage }], { completionIds: [1, 2, 3], logprobs: null }, "no numbers"],
  ])("are not believed: %s", async (_name, chunks, tokens, note) => {
    const result = await read([events(chunks)]);
    if (tokens === null) expect(result.tokens).toBeNull();
    else expect(result.tokens).toMatchObject(tokens as object);
    expect(result.notes).toEqual([expect.stringContaining(note)]);
  });

  it("count where the server does not", async () => {
    expect((await read([events([first, token([1, 2], [-1, -1]), END])])).answer.usage).toEqual({ promptTokens: 2, completionTokens: 2, cachedTokens: 0, reasoningTokens: 0 });
    expect((await read([events([delta({ content: "x" }), END])])).answer.usage).toBeNull();
  });

  it("come with their version from SGLang", async () => {
    const body = { choices: [{ message: { content: "x" }, finish_reason: "stop", prompt_token_ids: [1], meta_info: { weight_version: "3", output_token_logprobs: [[-1, 5, null], [-2, 6, null]] } }] };
    expect((await read([Buffer.from(JSON.stringify(body))], { type: "application/json" })).tokens).toEqual({ promptIds: [1], completionIds: [5, 6], logprobs: [-1, -2], versions: [["3", 2]] });
  });

  it("are shown to a harness that asks for logprobs", async () => {
    const entry = { token: "é", logprob: -0.5, bytes: [195, 169], top_logprobs: [{ token: "é", logprob: -0.5, bytes: [195, 169] }, { token: "e", logprob: null }] };
    const { answer } = await read([events([delta({ content: "é" }, { logprobs: { content: [entry] } }), END])], { request: turn({ stream: true, logprobs: 2 }) });
    expect(answer.logprobs).toEqual([{ token: "é", logprob: -0.5, bytes: [195, 169], top: [{ token: "é", logprob: -0.5, bytes: [195, 169] }, { token: "e", logprob: -9999, bytes: null }] }]);
  });
});

describe("whatever a server sends", () => {
  it("is the same answer however its bytes are cut", async () => {
    const bytes = events([
      { ...(delta({ role: "assistant" }) as object), prompt_token_ids: [1] },
      delta({ reasoning: "denk 😀" }, { token_ids: [2], logprobs: { content: [{ logprob: -1 }] } }),
      delta({ content: "北京" }, { token_ids: [3], logprobs: { content: [{ logprob: -2 }] } }),
      calls({ index: 0, id: "a", function: { name: "bash", arguments: '{"command": "é' } }),
      calls({ index: 0, function: { arguments: '"}' } }),
      END,
    ]);
    const whole = await read([bytes]);
    expect(whole.answer.blocks.length).toBe(3);
    expect(await read([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(whole);
    for (let at = 0; at <= bytes.length; at++) expect(await read([bytes.subarray(0, at), bytes.subarray(at)])).toEqual(whole);
  });

  it("is an answer or a failure of its own kind", async () => {
    const any = fc.jsonValue();
    const piece = fc.record({ index: fc.oneof(any, fc.constantFrom(0, 1)), id: fc.oneof(any, fc.constantFrom("a", "b")), function: fc.oneof(any, fc.record({ name: fc.oneof(any, fc.constant("bash")), arguments: any })) }, { requiredKeys: [] });
    const fields = fc.record({ content: any, reasoning: any, reasoning_content: any, refusal: any, function_call: any, tool_calls: fc.oneof(any, fc.array(piece)) }, { requiredKeys: [] });
    const choice = fc.record({ index: fc.oneof(any, fc.constant(0)), delta: fields, message: fields, finish_reason: fc.oneof(any, fc.constantFrom("stop", "length", "tool_calls")), token_ids: any, logprobs: any, meta_info: any, stop_reason: any }, { requiredKeys: ["delta", "message"] });
    const chunk = fc.oneof(any, fc.record({ choices: fc.oneof(any, fc.array(choice)), usage: any, prompt_token_ids: any, error: any }, { requiredKeys: ["choices"] }));
    const check = async (promise: Promise<Read>): Promise<void> => {
      try {
        const { answer, deltas } = await promise;
        expect(blocksOf(deltas)).toEqual(answer.blocks);
        expect(() => JSON.stringify(answer)).not.toThrow();
      } catch (error) {
        if (!(error instanceof GatewayFailure)) throw error;
      }
    };
    await fc.assert(
      fc.asyncProperty(fc.array(chunk), chunk, async (chunks, whole) => {
        await check(read([events(chunks)]));
        await check(read([events([...chunks, END])]));
        await check(read([Buffer.from(JSON.stringify(whole))], { type: "application/json" }));
      }),
      { numRuns: 400 },
    );
  });

  it("is an answer or a failure, also when it is no JSON", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.uint8Array()), fc.constantFrom("text/event-stream", "application/json", ""), async (pieces, type) => {
        await expect(read(pieces, { type })).rejects.toBeInstanceOf(GatewayFailure);
      }),
    );
  });

  it("takes time in proportion to its length", async () => {
    const many = Array.from({ length: 60_000 }, (_, at) => calls({ index: at % 2, ...(at < 2 ? { id: `id${at}` } : {}), function: { ...(at < 2 ? { name: "bash" } : {}), arguments: at < 2 ? '{"x":"' : "abcdefghijklmnop" } }));
    const { answer } = await read([events([...many, calls({ index: 0, function: { arguments: '"}' } }, { index: 1, function: { arguments: '"}' } }), END])]);
    expect(answer.blocks.map((block) => (block.type === "tool_call" ? block.arguments.length : 0))).toEqual([16 * 29_999 + 8, 16 * 29_999 + 8]);
  });
});

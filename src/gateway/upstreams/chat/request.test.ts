import { describe, expect, it } from "vitest";
import { BASH, turn } from "../../../../test/support/turns.ts";
import type { Message, TurnRequest } from "../../conversation.ts";
import { firstAsks, fewerAsks } from "./asks.ts";
import { chatMessages } from "./messages.ts";
import { chatBody } from "./request.ts";

const options = { asks: firstAsks("vllm"), stream: false, requestId: "r1", reasoningField: "reasoning_content", maxTokens: null } as const;
const body = (request: TurnRequest, changes: Partial<Parameters<typeof chatBody>[1]> = {}): Record<string, unknown> => chatBody(request, { ...options, ...changes });
const text = (value: string): { readonly type: "text"; readonly text: string } => ({ type: "text", text: value });

describe("the conversation for a chat server", () => {
  it("keeps what chat can hold, and says the rest in words", () => {
    const messages: readonly Message[] = [
      { role: "system", name: "developer", content: [text("be"), text("brief")] },
      { role: "user", content: [text("look"), { type: "image", source: { kind: "base64", mediaType: "image/png", data: "AAAA" }, detail: "low" }] },
      { role: "assistant", content: [{ type: "reasoning", text: "hm", signature: null }, text("I do"), { type: "tool_call", id: "a", name: "bash", arguments: '{ "x":1}' }, { type: "tool_call", id: "b", name: "shot", arguments: "" }] },
      { role: "tool", callId: "a", name: null, content: [text("no such file")], isError: true },
      { role: "tool", callId: "b", name: null, content: [{ type: "image", source: { kind: "url", url: "https://x/y.png" } }], isError: false },
      { role: "tool", callId: "c", name: null, content: [text("error: said already")], isError: true },
      { role: "system", name: "system", content: [text("mid")] },
      { role: "assistant", content: [{ type: "tool_call", id: "d", name: "exec", namespace: "functions", kind: "custom", arguments: 'say "hi"' }, { type: "refusal", text: "" }] },
      { role: "assistant", content: [] },
      { role: "user", content: [] },
    ];
    expect(chatMessages(messages, "reasoning")).toEqual([
      { role: "system", content: [text("be"), text("brief")] },
      { role: "user", content: [text("look"), { type: "image_url", image_url: { url: "data:image/png;base64,AAAA", detail: "low" } }] },
      {
        role: "assistant",
        content: "I do",
        reasoning: "hm",
        tool_calls: [
          { id: "a", type: "function", function: { name: "bash", arguments: '{ "x":1}' } },
          { id: "b", type: "function", function: { name: "shot", arguments: "{}" } },
        ],
      },
      { role: "tool", tool_call_id: "a", content: "Error: no such file" },
      { role: "tool", tool_call_id: "b", content: "(images, in the next user message)" },
      { role: "tool", tool_call_id: "c", content: "error: said already" },
      { role: "user", content: [text("What the tool call b returned as images:"), { type: "image_url", image_url: { url: "https://x/y.png" } }] },
      { role: "system", content: "mid" },
      { role: "assistant", content: null, tool_calls: [{ id: "d", type: "function", function: { name: "functions__exec", arguments: '{"input":"say \\"hi\\""}' } }] },
      { role: "assistant", content: "" },
      { role: "user", content: "" },
    ]);
  });
});

describe("the body", () => {
  it("holds only what was asked, and what capture needs", () => {
    expect(body(turn())).toEqual({ model: "test-model", messages: [{ role: "user", content: "hi" }], logprobs: true, return_token_ids: true, request_id: "r1" });
    expect(body(turn(), { asks: firstAsks("sglang"), stream: true })).toEqual({
      model: "test-model",
      messages: [{ role: "user", content: "hi" }],
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      return_token_ids: true,
      return_prompt_token_ids: true,
      return_meta_info: true,
      rid: "r1",
    });
  });

  it("carries sampling, tools, the form of the answer and thinking", () => {
    const request = turn({
      tools: [BASH, { name: "spawn", namespace: "agents", description: null, parameters: null, strict: true }, { name: "patch", description: "Edits.", parameters: null, kind: "custom", format: { type: "grammar" } }],
      toolChoice: { type: "tool", name: "spawn" },
      parallelToolCalls: false,
      sampling: { temperature: 0, topP: 0.9, topK: 5, minP: 0.1, maxTokens: 7, stop: ["X"], seed: 3, presencePenalty: 0.1, frequencyPenalty: 0.2, repetitionPenalty: 1.1 },
      reasoning: { enabled: true, effort: "high", budgetTokens: 100 },
      responseFormat: { type: "json_schema", name: null, schema: { type: "object" }, strict: true },
      logprobs: 3,
    });
    expect(body(request, { maxTokens: 7 })).toMatchObject({
      tools: [
        { type: "function", function: { name: "bash", description: BASH.description, parameters: BASH.parameters } },
        { type: "function", function: { name: "agents__spawn", parameters: { type: "object", properties: {} }, strict: true } },
        { type: "function", function: { name: "patch", description: 'Edits.\n\nThe input has this format: {"type":"grammar"}', parameters: { required: ["input"] } } },
      ],
      tool_choice: { type: "function", function: { name: "agents__spawn" } },
      parallel_tool_calls: false,
      temperature: 0,
      top_p: 0.9,
      top_k: 5,
      min_p: 0.1,
      max_tokens: 7,
      stop: ["X"],
      seed: 3,
      presence_penalty: 0.1,
      frequency_penalty: 0.2,
      repetition_penalty: 1.1,
      reasoning_effort: "high",
      chat_template_kwargs: { enable_thinking: true },
      thinking_token_budget: 100,
      response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" }, strict: true } },
      logprobs: true,
      top_logprobs: 3,
    });
  });

  it("passes unknown fields on within the dialect, where they cannot undo ours, and refuses them from another", () => {
    const extra = { guided_choice: ["a"], chat_template_kwargs: { enable_thinking: false, x: 1 }, logprobs: false, model: "other" };
    expect(body(turn({ extra, reasoning: { enabled: true, effort: null, budgetTokens: null } }))).toMatchObject({ guided_choice: ["a"], chat_template_kwargs: { enable_thinking: false, x: 1 }, logprobs: true, model: "test-model" });
    expect(() => body(turn({ dialect: "anthropic", extra }))).toThrow("guided_choice");
    expect(() => body(turn({ extra: { n: 2 } }))).toThrow("n: one answer");
    expect(body(turn({ extra: { n: 1 } }))).toMatchObject({ n: 1 });
  });

  it("refuses tools that would be one, and a choice of none of them", () => {
    expect(() => body(turn({ tools: [{ ...BASH, name: "a__b" }, { ...BASH, name: "b", namespace: "a" }] }))).toThrow("a__b");
    expect(() => body(turn({ tools: [BASH], toolChoice: { type: "tool", name: "other" } }))).toThrow("other");
  });
});

describe("what a server refuses", () => {
  const sent = body(turn({ sampling: { maxTokens: 5 }, reasoning: { enabled: null, effort: "high", budgetTokens: null } }), { maxTokens: 5 });
  const left = (refusal: string): unknown => fewerAsks(options.asks, sent, refusal)?.given;

  it("is given up by name, else in steps, and never what the answer's meaning needs", () => {
    expect(left("Unrecognized request argument supplied: return_token_ids")).toBe("return_token_ids");
    expect(left("extra fields not permitted: logprobs, reasoning_effort")).toBe("logprobs, reasoning_effort");
    expect(left("'max_tokens' is not supported. Use 'max_completion_tokens'")).toContain("max_completion_tokens");
    let asks = options.asks;
    const given: string[] = [];
    for (;;) {
      const fewer = fewerAsks(asks, body(turn({ reasoning: { enabled: null, effort: "high", budgetTokens: null } }), { asks }), "no");
      if (fewer === null) break;
      asks = fewer.asks;
      given.push(fewer.given);
    }
    expect(given).toEqual(["return_token_ids, request_id", "reasoning_effort", "logprobs"]);
    expect(body(turn(), { asks })).toEqual({ model: "test-model", messages: [{ role: "user", content: "hi" }] });
    expect(body(turn({ logprobs: 0 }), { asks })).toMatchObject({ logprobs: true, top_logprobs: 0 });
  });
});

import { describe, expect, test } from "vitest";
import { DEFAULT_SAMPLING } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { decodeChat } from "./decode.ts";

const ask = (more: object = {}) => decodeChat({ model: "m", messages: [{ role: "user", content: "hi" }], ...more });
const talk = (...messages: readonly object[]) => decodeChat({ model: "m", messages }).messages;
const bash = { type: "function", function: { name: "bash", description: "runs", parameters: { type: "object" }, strict: true } };

/** The field that the refusal names. */
function refused(run: () => unknown): string | undefined {
  try {
    run();
  } catch (error) {
    if (error instanceof GatewayFailure && error.kind === "invalid_request") return error.details.field;
    throw error;
  }
  throw new Error("not refused");
}

test("the least that can be asked", () => {
  expect(ask()).toEqual({
    dialect: "openai-chat",
    model: "m",
    messages: [{ role: "user", content: [{ type: "text", text: "hi" }] }],
    tools: [],
    toolChoice: null,
    parallelToolCalls: null,
    sampling: DEFAULT_SAMPLING,
    reasoning: null,
    responseFormat: null,
    logprobs: null,
    stream: false,
    streamUsage: false,
    extra: {},
    dropped: [],
  });
});

test("sampling, streaming and what goes with it; null says nothing", () => {
  const request = ask({
    temperature: 0.5, top_p: 0.9, top_k: -1, min_p: 0.1, repetition_penalty: 1.1, presence_penalty: -1, frequency_penalty: 1, seed: 7, stop: "END", max_completion_tokens: 9,
    stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: 3, parallel_tool_calls: false, reasoning_effort: "high", n: 1, tool_choice: null, tools: null, user: null,
  });
  expect(request.sampling).toEqual({ temperature: 0.5, topP: 0.9, topK: -1, minP: 0.1, repetitionPenalty: 1.1, presencePenalty: -1, frequencyPenalty: 1, seed: 7, stop: ["END"], maxTokens: 9 });
  expect(request).toMatchObject({ stream: true, streamUsage: true, logprobs: 3, parallelToolCalls: false, reasoning: { enabled: null, effort: "high", budgetTokens: null }, dropped: [], extra: {} });
  expect(ask({ max_tokens: 5 }).sampling.maxTokens).toBe(5);
  expect(ask({ max_tokens: 5, max_completion_tokens: 6 })).toMatchObject({ sampling: { maxTokens: 6 }, dropped: ["max_tokens: max_completion_tokens is given"] });
  expect(ask({ reasoning_effort: "none" }).reasoning?.enabled).toBe(false);
});

test("what is unknown at the top is passed on, what has no effect is listed", () => {
  const request = ask({ chat_template_kwargs: { enable_thinking: false }, logit_bias: { 1: 2 }, guided_regex: "a", unsaid: null, metadata: { a: "b" }, store: true, prompt_cache_key: "k" });
  expect(request.extra).toEqual({ chat_template_kwargs: { enable_thinking: false }, logit_bias: { 1: 2 }, guided_regex: "a" });
  expect(request.dropped).toEqual(["metadata", "store", "prompt_cache_key"]);
});

describe("messages", () => {
  test("may hold what the official client's own joining of a stream adds to them", () => {
    const called = { id: "c", type: "function", function: { name: "bash", arguments: "{}", parsed_arguments: null } };
    expect(talk({ role: "assistant", content: "x", parsed: null, tool_calls: [called] })).toEqual([
      { role: "assistant", content: [{ type: "text", text: "x" }, { type: "tool_call", id: "c", name: "bash", arguments: "{}" }] },
    ]);
  });

  test("roles, parts and images", () => {
    expect(
      talk(
        { role: "system", content: "s" },
        { role: "developer", content: [{ type: "text", text: "d", cache_control: { type: "ephemeral" } }] },
        { role: "user", name: "ann", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AA==", detail: "low" } }, { type: "image_url", image_url: { url: "https://x/y.png" } }] },
      ),
    ).toEqual([
      { role: "system", name: "system", content: [{ type: "text", text: "s" }] },
      { role: "system", name: "developer", content: [{ type: "text", text: "d" }] },
      {
        role: "user",
        content: [
          { type: "image", source: { kind: "base64", mediaType: "image/png", data: "AA==" }, detail: "low" },
          { type: "image", source: { kind: "url", url: "https://x/y.png" } },
        ],
      },
    ]);
  });

  test("no arguments is an empty object, everything else is kept to the byte", () => {
    const calls = ["", " ", null, undefined, "{}", '{ "a":\t1.0 }', '{"a'].map((text, index) => ({ id: `c${index}`, type: "function", function: { name: "t", arguments: text } }));
    const [message] = talk({ role: "assistant", content: null, tool_calls: calls });
    expect(message?.content.map((block) => (block.type === "tool_call" ? block.arguments : null))).toEqual(["{}", "{}", "{}", "{}", "{}", '{ "a":\t1.0 }', '{"a']);
  });

  test("custom calls and their results", () => {
    const messages = talk({ role: "assistant", tool_calls: [{ id: "c", type: "custom", custom: { name: "exec", input: "" } }] }, { role: "tool", tool_call_id: "c", content: [{ type: "text", text: "ok" }] });
    expect(messages).toEqual([
      { role: "assistant", content: [{ type: "tool_call", id: "c", name: "exec", arguments: "", kind: "custom" }] },
      { role: "tool", callId: "c", name: "exec", content: [{ type: "text", text: "ok" }], isError: false, kind: "custom" },
    ]);
  });

  test("reasoning under either name, refusals, empty texts", () => {
    expect(talk({ role: "assistant", content: "", reasoning: "r" })).toEqual([{ role: "assistant", content: [{ type: "reasoning", text: "r", signature: null }] }]);
    expect(talk({ role: "assistant", content: [{ type: "text", text: "a" }, { type: "refusal", refusal: "no" }], reasoning_content: "r", reasoning: "r", refusal: "never" })[0]?.content).toEqual([
      { type: "reasoning", text: "r", signature: null },
      { type: "text", text: "a" },
      { type: "refusal", text: "no" },
      { type: "refusal", text: "never" },
    ]);
  });
});

describe("tools", () => {
  const exec = { type: "custom", custom: { name: "exec", format: { type: "grammar" } } };

  test("functions and custom tools", () => {
    expect(ask({ tools: [bash, exec, { type: "function", function: { name: "bare" } }] }).tools).toEqual([
      { name: "bash", description: "runs", parameters: { type: "object" }, strict: true },
      { name: "exec", description: null, parameters: null, kind: "custom", format: { type: "grammar" } },
      { name: "bare", description: null, parameters: null },
    ]);
  });

  test("choices", () => {
    const tools = [bash, exec];
    const choice = (tool_choice: unknown) => ask({ tools, tool_choice });
    for (const type of ["auto", "none", "required"]) expect(choice(type).toolChoice).toEqual({ type });
    expect(choice({ type: "function", function: { name: "bash" } }).toolChoice).toEqual({ type: "tool", name: "bash" });
    expect(choice({ type: "custom", custom: { name: "exec" } }).toolChoice).toEqual({ type: "tool", name: "exec" });
    const allowed = choice({ type: "allowed_tools", allowed_tools: { mode: "required", tools: [{ type: "function", function: { name: "bash" } }] } });
    expect([allowed.toolChoice, allowed.tools.map(({ name }) => name)]).toEqual([{ type: "required" }, ["bash"]]);
    expect(refused(() => choice({ type: "function", function: { name: "no" } }))).toBe("tool_choice");
  });
});

test("formats", () => {
  expect(ask({ response_format: { type: "text" } }).responseFormat).toBeNull();
  expect(ask({ response_format: { type: "json_object" } }).responseFormat).toEqual({ type: "json_object" });
  expect(ask({ response_format: { type: "json_schema", json_schema: { name: "n", schema: { type: "object" }, strict: true } } }).responseFormat).toEqual({ type: "json_schema", name: "n", schema: { type: "object" }, strict: true });
});

test("a refusal names its field", () => {
  const user = { role: "user", content: "hi" };
  const cases: readonly (readonly [object, string])[] = [
    [{ model: "" }, "model"],
    [{ messages: [] }, "messages"],
    [{ n: 2 }, "n"],
    [{ tool_choice: "required", tools: [] }, "tool_choice"],
    [{ functions: [] }, "functions"],
    [{ function_call: "auto" }, "function_call"],
    [{ modalities: ["text", "audio"] }, "modalities"],
    [{ top_logprobs: 3 }, "top_logprobs"],
    [{ temperature: "hot" }, "temperature"],
    [{ stop: [""] }, "stop"],
    [{ stream_options: { include_usage: true, what: 1 } }, "stream_options.what"],
    [{ response_format: { type: "grammar" } }, "response_format.type"],
    [{ messages: [user, { role: "function", name: "f", content: "x" }] }, "messages[1].role"],
    [{ messages: [user, { role: "robot", content: "x" }] }, "messages[1].role"],
    [{ messages: [user, { role: "user", content: "x", mood: "good" }] }, "messages[1].mood"],
    [{ messages: [{ role: "user", content: [{ type: "text", text: "x" }, { type: "file", file: {} }] }] }, "messages[0].content[1]"],
    [{ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: 1 } }] }] }, "messages[0].content[0].image_url.url"],
    [{ messages: [{ role: "assistant", function_call: { name: "f", arguments: "" } }] }, "messages[0].function_call"],
    [{ messages: [{ role: "assistant", tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: { a: 1 } } }] }] }, "messages[0].tool_calls[0].function.arguments"],
    [{ messages: [{ role: "assistant", tool_calls: [{ id: "c", type: "custom", function: { name: "f" } }] }] }, "messages[0].tool_calls[0]"],
    [{ messages: [{ role: "tool", content: "x" }] }, "messages[0].tool_call_id"],
    [{ tools: [{ type: "web_search" }] }, "tools[0].type"],
    [{ tools: [{ type: "function", function: { name: "x", returns: 1 } }] }, "tools[0].function.returns"],
  ];
  for (const [more, field] of cases) expect(refused(() => ask(more)), JSON.stringify(more)).toBe(field);
});

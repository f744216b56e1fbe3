import { describe, expect, test } from "vitest";
import { DEFAULT_SAMPLING } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { decodeMessages } from "./decode.ts";

const ask = (more: object = {}) => decodeMessages({ model: "m", max_tokens: 10, messages: [{ role: "user", content: "hi" }], ...more });
/** As a count has it, which may end with the assistant. */
const talk = (...messages: readonly object[]) => decodeMessages({ model: "m", messages }).messages;
const bash = { name: "bash", description: "runs", input_schema: { type: "object" } };
const text = (value: string) => ({ type: "text", text: value });

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
    dialect: "anthropic",
    model: "m",
    messages: [{ role: "user", content: [text("hi")] }],
    tools: [],
    toolChoice: null,
    parallelToolCalls: null,
    sampling: { ...DEFAULT_SAMPLING, maxTokens: 10 },
    reasoning: null,
    responseFormat: null,
    logprobs: null,
    stream: false,
    streamUsage: true,
    extra: {},
    dropped: [],
  });
});

test("sampling, thinking, effort and format", () => {
  expect(ask({ temperature: 1, top_p: 0.9, top_k: 5, stop_sequences: ["END"], stream: true })).toMatchObject({ sampling: { temperature: 1, topP: 0.9, topK: 5, stop: ["END"] }, stream: true });
  const reasoning = (more: object) => ask(more).reasoning;
  expect(reasoning({ thinking: { type: "enabled", budget_tokens: 1024 } })).toEqual({ enabled: true, effort: null, budgetTokens: 1024 });
  expect(reasoning({ thinking: { type: "adaptive" }, output_config: { effort: "medium" } })).toEqual({ enabled: true, effort: "medium", budgetTokens: null });
  expect(reasoning({ thinking: { type: "disabled" } })).toEqual({ enabled: false, effort: null, budgetTokens: null });
  const schema = { type: "object" };
  const format = { type: "json_schema", schema };
  for (const more of [{ output_config: { format } }, { output_format: format }]) expect(ask(more).responseFormat).toEqual({ type: "json_schema", name: null, schema, strict: null });
});

test("what is unknown at the top is passed on, what has no effect is listed", () => {
  const request = ask({ metadata: { user_id: "u" }, context_management: { edits: [] }, service_tier: "auto", thinking: { type: "adaptive", display: "omitted" }, novelty: 1, unsaid: null });
  expect(request.extra).toEqual({ novelty: 1 });
  expect(request.dropped).toEqual(["metadata", "service_tier", "context_management", "thinking.display"]);
});

describe("messages", () => {
  test("the system prompt, and system messages in the middle", () => {
    const request = ask({
      system: [text("a"), { ...text("b"), cache_control: { type: "ephemeral" } }],
      messages: [{ role: "user", content: "hi" }, { role: "system", content: [text("env")] }, { role: "assistant", content: "yes" }, { role: "system", content: "date" }],
    });
    expect(request.messages).toEqual([
      { role: "system", name: "system", content: [text("a"), text("b")] },
      { role: "user", content: [text("hi")] },
      { role: "system", name: "system", content: [text("env")] },
      { role: "assistant", content: [text("yes")] },
      { role: "system", name: "system", content: [text("date")] },
    ]);
    expect(request.dropped).toEqual(["system[].cache_control"]);
  });

  test("a system message that is cleared by the next user message is gone after it, and its effort holds for its turn", () => {
    const reminder = { role: "system", content: "now", clear_at: "next_user_message", output_config: { effort: "low" } };
    const before = ask({ messages: [{ role: "user", content: "hi" }, reminder], output_config: { effort: "high" } });
    expect([before.messages.length, before.reasoning?.effort]).toEqual([2, "low"]);
    const after = ask({ messages: [{ role: "user", content: "hi" }, reminder, { role: "user", content: "more" }], output_config: { effort: "high" } });
    expect([after.messages.map(({ role }) => role), after.reasoning?.effort, after.dropped]).toEqual([["user", "user"], "high", ["messages[]: cleared by the user message after it, as its clear_at says"]]);
  });

  test("results of tools come first, then what the user says, each in its order", () => {
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "AA==" } };
    const calls = ["A", "B"].map((id) => ({ type: "tool_use", id, name: `tool_${id}`, input: { n: 1 } }));
    expect(
      talk(
        { role: "assistant", content: calls },
        {
          role: "user",
          content: [
            text("and NY?"),
            { type: "tool_result", tool_use_id: "A", content: [text("seen"), image] },
            text("x"),
            { type: "tool_result", tool_use_id: "B", content: "failed", is_error: true },
            text("y"),
          ],
        },
      ).slice(1),
    ).toEqual([
      { role: "tool", callId: "A", name: "tool_A", content: [text("seen"), { type: "image", source: { kind: "base64", mediaType: "image/png", data: "AA==" } }], isError: false },
      { role: "tool", callId: "B", name: "tool_B", content: [text("failed")], isError: true },
      { role: "user", content: [text("and NY?"), text("x"), text("y")] },
    ]);
  });

  test("thinking keeps the signatures of others, and calls keep text that is no JSON", () => {
    expect(
      talk({
        role: "assistant",
        content: [
          { type: "thinking", thinking: " t ", signature: "sig" },
          { type: "redacted_thinking", data: "opaque" },
          { type: "thinking", thinking: "own", signature: "" },
          text(""),
          { type: "tool_use", id: "a", name: "x", input: {}, caller: { type: "direct" } },
          { type: "tool_use", id: "b", name: "x", input: { INVALID_JSON: '{"a' } },
          { type: "tool_use", id: "c", name: "x", input: { INVALID_JSON: "" } },
        ],
      })[0]?.content,
    ).toEqual([
      { type: "reasoning", text: " t ", signature: "sig" },
      { type: "reasoning", text: "", signature: "opaque", redacted: true },
      { type: "reasoning", text: "own", signature: null },
      { type: "tool_call", id: "a", name: "x", arguments: "{}" },
      { type: "tool_call", id: "b", name: "x", arguments: '{"a' },
      { type: "tool_call", id: "c", name: "x", arguments: '{"INVALID_JSON":""}' },
    ]);
  });

  test("documents of text are read, others refused", () => {
    const document = (source: object) => ({ role: "user", content: [{ type: "document", title: "T", source }] });
    expect(talk(document({ type: "text", media_type: "text/plain", data: "body" }))[0]?.content).toEqual([text("T\n"), text("body")]);
    expect(refused(() => talk(document({ type: "base64", media_type: "application/pdf", data: "" })))).toBe("messages[0].content[0].source.type");
  });
});

describe("tools", () => {
  test("own tools, those of Anthropic's servers, and those that only its models know", () => {
    const request = ask({ tools: [{ ...bash, defer_loading: true, cache_control: {} }, { type: "web_search_20250305", name: "web_search", max_uses: 3 }] });
    expect(request.tools).toEqual([{ name: "bash", description: "runs", parameters: { type: "object" } }]);
    expect(request.dropped).toEqual(["tools[].cache_control", "tools[].defer_loading", "tools(web_search_20250305): a tool of the provider's own, not offered to the model"]);
    expect(refused(() => ask({ tools: [bash, { type: "bash_20250124", name: "bash" }] }))).toBe("tools[1].type");
  });

  test("choices", () => {
    const choice = (tool_choice: object) => {
      const { toolChoice, parallelToolCalls } = ask({ tools: [bash], tool_choice });
      return [toolChoice, parallelToolCalls];
    };
    expect(choice({ type: "auto", disable_parallel_tool_use: true })).toEqual([{ type: "auto" }, false]);
    expect(choice({ type: "any" })).toEqual([{ type: "required" }, null]);
    expect(choice({ type: "none" })).toEqual([{ type: "none" }, null]);
    expect(choice({ type: "tool", name: "bash" })).toEqual([{ type: "tool", name: "bash" }, null]);
    expect(refused(() => choice({ type: "tool", name: "no" }))).toBe("tool_choice.name");
  });

  test("tools that come and go in the conversation", () => {
    const change = (type: string, tool: object) => ({ role: "system", content: [text("note"), { type, tool }] });
    const names = (...changes: readonly object[]) => ask({ tools: [bash], messages: [{ role: "user", content: "hi" }, ...changes] }).tools.map(({ name }) => name);
    const definition = { type: "tool_definition", definition: { name: "new", input_schema: {} } };
    const remove = change("tool_removal", { type: "tool_reference", name: "bash" });
    expect(names(change("tool_addition", definition))).toEqual(["bash", "new"]);
    expect(names(change("tool_addition", definition), remove)).toEqual(["new"]);
    expect(names(remove, change("tool_addition", { type: "tool_reference", name: "bash" }))).toEqual(["bash"]);
    expect(refused(() => names(change("tool_removal", { type: "tool_reference", name: "no" })))).toBe("messages[1].content[1].tool.name");
  });
});

test("a request as Claude Code 2.1.332 sends it", () => {
  const mark = { cache_control: { type: "ephemeral" } };
  const request = ask({
    messages: [
      { role: "user", content: [text("<system-reminder>a</system-reminder>"), text("do it")] },
      { role: "system", content: "# Environment" },
      { role: "assistant", content: [{ type: "thinking", thinking: "t", signature: "bWFueXdvcmxkcw==" }, text("Looking."), { type: "tool_use", id: "call_1", name: "Bash", input: { command: "ls" } }] },
      { role: "user", content: [{ tool_use_id: "call_1", type: "tool_result", content: "a", is_error: false, ...mark }] },
    ],
    system: [text("x-billing"), { ...text("You are"), ...mark }],
    tools: [{ name: "Bash", description: "Runs", input_schema: { type: "object" } }, { name: "DeferredToolPlaceholder", input_schema: {}, defer_loading: true }],
    metadata: { user_id: "{}" },
    thinking: { type: "adaptive", display: "omitted" },
    context_management: { edits: [{ type: "clear_thinking_20251015", keep: "all" }] },
    output_config: { effort: "medium" },
    stream: true,
  });
  expect(request).toMatchObject({ extra: {}, reasoning: { enabled: true, effort: "medium" }, stream: true });
  expect(request.messages.map(({ role }) => role)).toEqual(["system", "user", "system", "assistant", "tool"]);
  expect(request.messages[3]).toEqual({ role: "assistant", content: [{ type: "reasoning", text: "t", signature: null }, text("Looking."), { type: "tool_call", id: "call_1", name: "Bash", arguments: '{"command":"ls"}' }] });
  expect(request.dropped).toEqual(["metadata", "context_management", "tools[].defer_loading", "system[].cache_control", "messages[].content[].cache_control", "thinking.display"]);
});

test("a refusal names its field", () => {
  const cases: readonly (readonly [object, string])[] = [
    [{ model: 1 }, "model"],
    [{ max_tokens: 0 }, "max_tokens"],
    [{ messages: [] }, "messages"],
    [{ container: "c" }, "container"],
    [{ thread: {} }, "thread"],
    [{ tool_choice: { type: "any" }, tools: [{ type: "web_search_20250305", name: "web_search" }] }, "tool_choice.type"],
    [{ messages: [{ role: "user", content: "hi" }, { role: "assistant", content: "{" }] }, "messages[1].role"],
    [{ tools: [bash, bash] }, "tools[1].name"],
    [{ tools: [{ ...bash, novelty: 1 }] }, "tools[0].novelty"],
    [{ tools: [{ ...bash, type: "custom", novelty: 1 }] }, "tools[0].novelty"],
    [{ tools: [{ type: "custom", name: "x" }] }, "tools[0].input_schema"],
    [{ thinking: { type: "enabled" } }, "thinking.budget_tokens"],
    [{ system: [{ type: "image" }] }, "system[0].type"],
    [{ messages: [{ role: "tool", content: "x" }] }, "messages[0].role"],
    [{ messages: [{ role: "user", content: [text("a"), { type: "image", source: { type: "file", file_id: "f" } }] }] }, "messages[0].content[1].source.type"],
    [{ messages: [{ role: "user", content: [{ ...text("a"), mood: "good" }] }] }, "messages[0].content[0].mood"],
    [{ messages: [{ role: "user", content: [{ type: "tool_result", tool_use_id: "A" }, { type: "tool_result", tool_use_id: "A" }] }] }, "messages[0].content[1].tool_use_id"],
    [{ messages: [{ role: "assistant", content: [{ type: "server_tool_use", id: "a", name: "web_search", input: {} }] }] }, "messages[0].content[0].type"],
    [{ messages: [{ role: "assistant", content: [{ type: "tool_use", id: "a", name: "x", input: "text" }] }] }, "messages[0].content[0].input"],
  ];
  for (const [more, field] of cases) expect(refused(() => ask(more)), JSON.stringify(more)).toBe(field);
});

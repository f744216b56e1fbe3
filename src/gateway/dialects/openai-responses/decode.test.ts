import { describe, expect, it } from "vitest";
import { GatewayFailure } from "../../failure.ts";
import { decode } from "./decode.ts";
import { sealReasoning } from "./reasoning.ts";

const read = (body: object): ReturnType<typeof decode> => decode({ model: "m", input: "hi", ...body });
const input = (...items: readonly object[]): ReturnType<typeof decode>["messages"] => read({ input: items }).messages;
const text = (value: string): { readonly type: "text"; readonly text: string } => ({ type: "text", text: value });
const field = (body: object): string | undefined => {
  try {
    read(body);
  } catch (error) {
    if (error instanceof GatewayFailure && error.kind === "invalid_request") return error.details.field;
    throw error;
  }
  throw new Error("was accepted");
};

describe("input", () => {
  it("is a text, or items, after the instructions", () => {
    expect(read({ instructions: "be brief" }).messages).toEqual([{ role: "system", name: "system", content: [text("be brief")] }, { role: "user", content: [text("hi")] }]);
    expect(
      input(
        { role: "developer", content: "rules" },
        { type: "message", role: "user", content: [{ type: "input_text", text: "look" }, { type: "input_image", image_url: "data:image/png;base64,AAAA", detail: "high" }, { type: "input_image", image_url: "https://x/y.png" }] },
      ),
    ).toEqual([
      { role: "system", name: "developer", content: [text("rules")] },
      {
        role: "user",
        content: [text("look"), { type: "image", source: { kind: "base64", mediaType: "image/png", data: "AAAA" }, detail: "high" }, { type: "image", source: { kind: "url", url: "https://x/y.png" } }],
      },
    ]);
  });

  it("makes one message of what the assistant said between two others, in its order", () => {
    expect(
      input(
        { role: "user", content: "q" },
        { type: "reasoning", id: "rs_1", summary: [], encrypted_content: sealReasoning({ type: "reasoning", text: " hm\n", signature: null }) },
        { type: "message", id: "msg_1", role: "assistant", status: "completed", content: [{ type: "output_text", text: "I look", annotations: [] }, { type: "refusal", refusal: "no" }] },
        { type: "function_call", id: "fc_1", call_id: "a", name: "exec", arguments: '{ "cmd":"ls"}', status: "completed" },
        { type: "custom_tool_call", call_id: "b", name: "exec", namespace: "functions", input: "text(1)\n" },
        { type: "function_call_output", call_id: "a", output: "ok" },
        { type: "custom_tool_call_output", call_id: "b", output: [{ type: "input_text", text: "1" }, { type: "input_image", image_url: "https://x/y.png" }] },
        { role: "assistant", content: "done" },
      ),
    ).toEqual([
      { role: "user", content: [text("q")] },
      {
        role: "assistant",
        content: [
          { type: "reasoning", text: " hm\n", signature: null },
          text("I look"),
          { type: "refusal", text: "no" },
          { type: "tool_call", id: "a", name: "exec", arguments: '{ "cmd":"ls"}' },
          { type: "tool_call", id: "b", name: "exec", arguments: "text(1)\n", kind: "custom", namespace: "functions" },
        ],
      },
      { role: "tool", callId: "a", name: "exec", content: [text("ok")], isError: false },
      { role: "tool", callId: "b", name: "exec", content: [text("1"), { type: "image", source: { kind: "url", url: "https://x/y.png" } }], isError: false, kind: "custom" },
      { role: "assistant", content: [text("done")] },
    ]);
  });

  it("takes reasoning from whoever made it", () => {
    const reasoning = (item: object): unknown => {
      const [message] = input({ type: "reasoning", summary: [], ...item });
      return message?.role === "assistant" ? message.content[0] : null;
    };
    expect(reasoning({ content: [{ type: "reasoning_text", text: "a" }] })).toEqual({ type: "reasoning", text: "a", signature: null });
    expect(reasoning({ encrypted_content: "gAAAA" })).toEqual({ type: "reasoning", text: "", signature: "gAAAA" });
    expect(reasoning({ summary: [{ type: "summary_text", text: "a" }, { type: "summary_text", text: "b" }], encrypted_content: "gAAAA" })).toEqual({ type: "reasoning", text: "a\n\nb", signature: "gAAAA" });
    for (const broken of ["mw1.", "mw1.e30", "mw1.W10", "mw1.WzEsbnVsbF0", "mw1.!"]) expect(reasoning({ encrypted_content: broken })).toEqual({ type: "reasoning", text: "", signature: broken });
  });

  it("names what it cannot hold", () => {
    expect(field({ input: undefined })).toBe("input");
    expect(field({ input: [{ type: "item_reference", id: "msg_1" }] })).toBe("input[0]");
    expect(field({ input: [{ id: "msg_1" }] })).toBe("input[0]");
    for (const type of ["web_search_call", "local_shell_call", "mcp_call", "compaction", "computer_call"]) expect(field({ input: [{ role: "user", content: "x" }, { type }] })).toBe("input[1].type");
    expect(field({ input: [{ role: "user", content: [{ type: "input_file", file_id: "f" }] }] })).toBe("input[0].content[0].type");
    expect(field({ input: [{ role: "user", content: [{ type: "input_image", file_id: "f" }] }] })).toBe("input[0].content[0].image_url");
    expect(field({ input: [{ role: "robot", content: "x" }] })).toBe("input[0].role");
    expect(field({ input: [{ type: "function_call", call_id: "a", name: "f", arguments: {} }] })).toBe("input[0].arguments");
    expect(field({ input: [{ type: "function_call_output", output: "x" }] })).toBe("input[0].call_id");
    expect(field({ input: [{ role: "assistant", content: [{ type: "input_image", image_url: "https://x/y.png" }] }] })).toBe("input[0].content[0].type");
  });
});

describe("tools", () => {
  const lark = { type: "grammar", syntax: "lark", definition: "start: /x/" };

  it("are functions and custom tools, alone or in namespaces, in the field or among the items", () => {
    const request = read({
      input: [
        { type: "additional_tools", role: "developer", tools: [{ type: "namespace", name: "functions", description: "", tools: [{ type: "custom", name: "exec", description: "Runs.", format: lark }] }] },
        { role: "user", content: "x" },
      ],
      tools: [
        { type: "function", name: "f", description: "d", parameters: { type: "object" }, strict: false },
        { type: "namespace", name: "agents", description: "For helpers.", tools: [{ type: "function", name: "spawn", description: "Starts one." }, { type: "function", name: "wait", parameters: null }] },
        { type: "web_search", search_context_size: "low" },
        { type: "mcp", server_label: "x" },
      ],
    });
    expect(request.tools).toEqual([
      { name: "f", description: "d", parameters: { type: "object" }, strict: false },
      { name: "spawn", description: "For helpers.\n\nStarts one.", parameters: null, namespace: "agents" },
      { name: "wait", description: "For helpers.", parameters: null, namespace: "agents" },
      { name: "exec", description: "Runs.", parameters: null, kind: "custom", format: lark, namespace: "functions" },
    ]);
    expect(request.dropped).toEqual(["tools(web_search): a tool of the provider's own, not offered to the model", "tools(mcp): a tool of the provider's own, not offered to the model"]);
  });

  it("that are told again replace the first telling", () => {
    const telling = (description: string): object => ({ type: "additional_tools", role: "developer", tools: [{ type: "function", name: "f", description }] });
    const { tools, dropped } = read({ input: [telling("old"), { role: "user", content: "x" }, telling("new")], tools: [{ type: "function", name: "g" }] });
    expect(tools.map(({ name, description }) => [name, description])).toEqual([["g", null], ["f", "new"]]);
    expect(dropped).toEqual(["input[](additional_tools): its place among the items: the tools are offered from the beginning"]);
  });

  it("are chosen by name, by need, or from a list", () => {
    const tools = [{ type: "function", name: "f" }, { type: "custom", name: "c" }, { type: "function", name: "g" }];
    const choose = (choice: unknown): unknown => {
      const request = read({ tools, tool_choice: choice });
      return [request.toolChoice, request.tools.map(({ name }) => name).join("")];
    };
    expect(choose("required")).toEqual([{ type: "required" }, "fcg"]);
    expect(choose({ type: "function", name: "g" })).toEqual([{ type: "tool", name: "g" }, "fcg"]);
    expect(choose({ type: "custom", name: "c" })).toEqual([{ type: "tool", name: "c" }, "fcg"]);
    expect(choose({ type: "allowed_tools", mode: "required", tools: [{ type: "function", name: "g" }, { type: "custom", name: "c" }] })).toEqual([{ type: "required" }, "cg"]);
    expect(field({ tools, tool_choice: "any" })).toBe("tool_choice");
    expect(field({ tools, tool_choice: { type: "function", name: "h" } })).toBe("tool_choice.name");
    expect(field({ tools, tool_choice: { type: "web_search" } })).toBe("tool_choice.type");
    expect(field({ tools, tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "mcp", server_label: "x" }] } })).toBe("tool_choice.tools[0]");
  });

  it("that nobody knows are refused", () => {
    expect(field({ tools: [{ type: "function", name: "f" }, { type: "telepathy" }] })).toBe("tools[1].type");
    expect(field({ tools: [{ type: "function" }] })).toBe("tools[0].name");
    expect(field({ tools: [{ type: "namespace", name: "a", tools: [{ type: "namespace", name: "b", tools: [] }] }] })).toBe("tools[0].tools[0].type");
  });
});

describe("settings", () => {
  it("that shape the answer are read", () => {
    expect(
      read({
        temperature: 0.5,
        top_p: 0.9,
        top_k: 20,
        stop: "END",
        max_output_tokens: 100,
        parallel_tool_calls: false,
        reasoning: { effort: "none", summary: "auto" },
        text: { format: { type: "json_schema", name: "n", schema: { type: "object" }, strict: true }, verbosity: "low" },
        include: ["reasoning.encrypted_content", "message.output_text.logprobs"],
        top_logprobs: 2,
        stream: true,
      }),
    ).toMatchObject({
      sampling: { temperature: 0.5, topP: 0.9, topK: 20, stop: ["END"], maxTokens: 100, seed: null },
      parallelToolCalls: false,
      reasoning: { enabled: false, effort: "none", budgetTokens: null },
      responseFormat: { type: "json_schema", name: "n", schema: { type: "object" }, strict: true },
      logprobs: 2,
      stream: true,
      dropped: ["reasoning.summary: reasoning is given whole, not summed up", "text.verbosity: no effect here"],
    });
  });

  it("without effect are noted, unknown ones handed on, and those that need a memory refused", () => {
    const { dropped, extra } = read({ client_metadata: { a: "b" }, prompt_cache_key: "k", store: false, background: false, truncation: "disabled", user: null, novelty: { x: 1 }, __proto__: { y: 1 } });
    expect(dropped).toEqual(["client_metadata: no effect here", "prompt_cache_key: no effect here"]);
    expect(extra).toEqual({ novelty: { x: 1 } });
    expect(read({ truncation: "auto" }).dropped).toEqual(["truncation: nothing is cut here; a conversation that does not fit is answered with context_length_exceeded"]);
    for (const [name, value] of [["store", true], ["background", true], ["previous_response_id", "resp_1"], ["conversation", { id: "c" }], ["prompt", { id: "p" }], ["context_management", [{ type: "compaction" }]]] as const) {
      expect(field({ [name]: value })).toBe(name);
    }
    expect(field({ model: undefined })).toBe("model");
    expect(field({ temperature: 3 })).toBe("temperature");
    expect(field({ text: { format: { type: "yaml" } } })).toBe("text.format.type");
    expect(() => decode("x")).toThrow("object");
  });

  it("that are unknown inside an item are noted once", () => {
    const item = { role: "user", content: [{ type: "input_text", text: "x", cue: 1 }], phase: "final_answer", novelty: null };
    expect(read({ input: [item, item] }).dropped).toEqual(["input[].phase", "input[].content[].cue"]);
  });
});

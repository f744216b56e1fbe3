import { describe, expect, it } from "vitest";
import { DEFAULT_SAMPLING } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { decode } from "./decode.ts";
import { sealRider } from "./signature.ts";

const HI = [{ role: "user", parts: [{ text: "hi" }] }];
const read = (body: object): ReturnType<typeof decode> => decode({ contents: HI, ...body }, { model: "m", stream: false });
const contents = (...list: readonly object[]): ReturnType<typeof decode>["messages"] => read({ contents: list }).messages;
const model = (...parts: readonly object[]): object => ({ role: "model", parts });
const user = (...parts: readonly object[]): object => ({ role: "user", parts });
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

it("reads the least that can be asked", () => {
  expect(decode({ contents: [{ parts: [{ text: "hi" }] }] }, { model: "models/m", stream: true })).toEqual({
    dialect: "gemini",
    model: "m",
    messages: [{ role: "user", content: [text("hi")] }],
    tools: [],
    toolChoice: null,
    parallelToolCalls: null,
    sampling: DEFAULT_SAMPLING,
    reasoning: null,
    responseFormat: null,
    logprobs: null,
    stream: true,
    streamUsage: true,
    extra: {},
    dropped: [],
  });
});

describe("contents", () => {
  it("are read in either spelling", () => {
    expect(
      decode({ system_instruction: { parts: [{ text: "be" }, { text: "brief" }] }, contents: [user({ inline_data: { mime_type: "image/png", data: "AAAA" } })] }, { model: "m", stream: null }).messages,
    ).toEqual([
      { role: "system", name: "system", content: [text("be"), text("brief")] },
      { role: "user", content: [{ type: "image", source: { kind: "base64", mediaType: "image/png", data: "AAAA" } }] },
    ]);
    expect(field({ generationConfig: {}, generation_config: {} })).toBe("generationConfig");
  });

  it("of the model, however cut, are one message", () => {
    expect(contents(user({ text: "q" }), model({ text: "h", thought: true }), model({ text: "m", thought: true }, { text: "I " }), model({ text: "look" }, { functionCall: { name: "f", args: { a: 1 } } }), model({ text: "" }))).toEqual([
      { role: "user", content: [text("q")] },
      { role: "assistant", content: [{ type: "reasoning", text: "hm", signature: null }, text("I look"), { type: "tool_call", id: "call_1", name: "f", arguments: '{"a":1}' }] },
    ]);
  });

  it("answer calls by id, else by name in their order; results stand before what the user says beside them", () => {
    const call = (name: string, id?: string): object => ({ functionCall: { name, args: {}, ...(id === undefined ? {} : { id }) } });
    const result = (name: string, response: object, id?: string): object => ({ functionResponse: { name, response, ...(id === undefined ? {} : { id }) } });
    expect(
      contents(
        model(call("f"), call("g", "x"), call("f")),
        user({ text: "and?" }, result("f", { output: "1" }), result("g", { error: "broken" }, "x"), result("f", { output: { n: 2 } })),
        model(call("f")),
        { role: "function", parts: [result("f", { a: 1, b: "two" })] },
        user({ functionResponse: { name: "f", id: "elsewhere", response: {}, parts: [{ inlineData: { mimeType: "image/png", data: "AAAA" } }] } }),
      ).filter(({ role }) => role !== "assistant"),
    ).toEqual([
      { role: "tool", callId: "call_1", name: "f", content: [text("1")], isError: false },
      { role: "tool", callId: "x", name: "g", content: [text("broken")], isError: true },
      { role: "tool", callId: "call_3", name: "f", content: [text('{"n":2}')], isError: false },
      { role: "user", content: [text("and?")] },
      { role: "tool", callId: "call_4", name: "f", content: [text('{"a":1,"b":"two"}')], isError: false },
      { role: "tool", callId: "elsewhere", name: "f", content: [text("{}"), { type: "image", source: { kind: "base64", mediaType: "image/png", data: "AAAA" } }], isError: false },
    ]);
    expect(field({ contents: [user(result("f", {}))] })).toBe("contents[0].parts[0].functionResponse");
  });

  it("give back what rode along, unless the client has changed it", () => {
    const thoughts = [{ type: "reasoning" as const, text: " hm\n", signature: null }];
    const called = (args: object, rider: Parameters<typeof sealRider>[0]): unknown => {
      const [message] = contents(model({ functionCall: { id: "c", name: "f", args }, thoughtSignature: sealRider(rider) }));
      return message?.role === "assistant" ? message.content : null;
    };
    const block = (written: string): object => ({ type: "tool_call", id: "c", name: "f", arguments: written });
    expect(called({ a: 1 }, { thoughts, arguments: '{ "a": 1.0 }' })).toEqual([...thoughts, block('{ "a": 1.0 }')]);
    expect(called({ a: 2 }, { arguments: '{ "a": 1.0 }' })).toEqual([block('{"a":2}')]);
    expect(called({ INVALID_JSON: '{"a":' }, {})).toEqual([block('{"a":')]);
    expect(called({}, { arguments: " " })).toEqual([block(" ")]);
    expect(called({}, { signature: "c2ln" })).toEqual([{ ...block("{}"), signature: "c2ln" }]);
  });

  it("may carry signatures of others", () => {
    expect(contents(model({ text: "hm", thought: true, thoughtSignature: "c2ln" }, { functionCall: { id: "c", name: "f" }, thoughtSignature: "skip_thought_signature_validator" }, { functionCall: { id: "d", name: "f" }, thoughtSignature: "c2ln" }))).toEqual([
      {
        role: "assistant",
        content: [{ type: "reasoning", text: "hm", signature: "c2ln" }, { type: "tool_call", id: "c", name: "f", arguments: "{}" }, { type: "tool_call", id: "d", name: "f", arguments: "{}", signature: "c2ln" }],
      },
    ]);
    const broken = Buffer.from('{"mw":1,"thoughts":[{"type":"text"},7],"arguments":3}').toString("base64");
    expect(contents(model({ text: "a", thoughtSignature: broken }))).toEqual([{ role: "assistant", content: [text("a")] }]);
  });

  it("name what they cannot hold", () => {
    expect(field({ contents: undefined })).toBe("contents");
    expect(field({ contents: [user({ fileData: { fileUri: "gs://x" } })] })).toBe("contents[0].parts[0].fileData");
    expect(field({ contents: [model({ executable_code: { code: "1" } })] })).toBe("contents[0].parts[0].executableCode");
    expect(field({ contents: [user({ inlineData: { mimeType: "audio/wav", data: "AAAA" } })] })).toBe("contents[0].parts[0].inlineData.mimeType");
    expect(field({ contents: [user({})] })).toBe("contents[0].parts[0]");
    expect(field({ contents: [model({ functionCall: { name: "f", args: [1] } })] })).toBe("contents[0].parts[0].functionCall.args");
    expect(field({ contents: [{ role: "robot", parts: [] }] })).toBe("contents[0].role");
    expect(field({ contents: [{ role: "user", parts: "hi" }] })).toBe("contents[0].parts");
    expect(field({ systemInstruction: { parts: [{ fileData: {} }] } })).toBe("systemInstruction.parts[0].fileData");
  });
});

describe("tools", () => {
  it("are declarations; their schemas become JSON schema, whichever they were", () => {
    const parameters = {
      type: "OBJECT",
      required: ["a"],
      property_ordering: ["b", "a"],
      properties: {
        a: { type: "STRING", nullable: true, enum: ["x"], min_length: "1", example: "x" },
        b: { type: "ARRAY", maxItems: "3", items: { anyOf: [{ type: "INTEGER" }, { type: "OBJECT", properties: { snake_case: { type: "BOOLEAN" } } }], nullable: true } },
        type: { type: "NUMBER", format: "float" },
      },
    };
    const converted = {
      type: "object",
      required: ["a"],
      properties: {
        b: { type: "array", maxItems: 3, items: { anyOf: [{ type: "integer" }, { type: "object", properties: { snake_case: { type: "boolean" } } }, { type: "null" }] } },
        a: { type: ["string", "null"], enum: ["x", null], minLength: 1, examples: ["x"] },
        type: { type: "number", format: "float" },
      },
    };
    const jsonSchema = { type: "object", properties: { a: { $ref: "#/$defs/x" } }, additionalProperties: false, $defs: { x: { type: "string" } } };
    const { tools, dropped } = read({ tools: [{ function_declarations: [{ name: "f", description: "d", parameters }, { name: "g", parametersJsonSchema: jsonSchema }, { name: "h" }] }, { googleSearch: {} }, { codeExecution: {}, urlContext: {} }] });
    expect(tools).toEqual([
      { name: "f", description: "d", parameters: converted },
      { name: "g", description: null, parameters: jsonSchema },
      { name: "h", description: null, parameters: null },
    ]);
    expect(JSON.stringify(tools[0]?.parameters)).toMatch(/"properties":\{"b":.*"a":.*"type":/);
    expect(read({ tools: [{ functionDeclarations: [{ name: "f", parameters: jsonSchema }] }] }).tools[0]?.parameters).toEqual(jsonSchema);
    expect(dropped).toEqual(["googleSearch", "codeExecution", "urlContext"].map((name) => `tools(${name}): a tool of the provider's own, not offered to the model`));
    expect(field({ tools: [{ telepathy: {} }] })).toBe("tools[0].telepathy");
    expect(field({ tools: [{ functionDeclarations: [{ description: "d" }] }] })).toBe("tools[0].functionDeclarations[0].name");
    expect(field({ tools: [{ functionDeclarations: [{ name: "f", parameters: {}, parametersJsonSchema: {} }] }] })).toBe("tools[0].functionDeclarations[0].parametersJsonSchema");
  });

  it("are chosen by mode and name", () => {
    const tools = [{ functionDeclarations: [{ name: "f" }, { name: "g" }, { name: "h" }] }];
    const choose = (mode: string, allowedFunctionNames?: readonly string[]): unknown => {
      const request = read({ tools, toolConfig: { functionCallingConfig: { mode, ...(allowedFunctionNames === undefined ? {} : { allowedFunctionNames }) } } });
      return [request.toolChoice, request.tools.map(({ name }) => name).join("")];
    };
    expect(choose("AUTO")).toEqual([{ type: "auto" }, "fgh"]);
    expect(choose("NONE")).toEqual([{ type: "none" }, "fgh"]);
    expect(choose("ANY")).toEqual([{ type: "required" }, "fgh"]);
    expect(choose("ANY", ["g"])).toEqual([{ type: "tool", name: "g" }, "g"]);
    expect(choose("ANY", ["g", "h"])).toEqual([{ type: "required" }, "gh"]);
    expect(choose("MODE_UNSPECIFIED")).toEqual([null, "fgh"]);
    expect(field({ tools, toolConfig: { functionCallingConfig: { mode: "SOME" } } })).toBe("toolConfig.functionCallingConfig.mode");
    expect(field({ tools, toolConfig: { functionCallingConfig: { mode: "ANY", allowedFunctionNames: ["z"] } } })).toBe("toolConfig.functionCallingConfig.allowedFunctionNames");
  });
});

describe("settings", () => {
  it("that shape the answer are read", () => {
    const generationConfig = {
      temperature: 1,
      top_p: 0.9,
      topK: 40,
      maxOutputTokens: 100,
      stopSequences: ["x"],
      seed: 7,
      presencePenalty: 0.1,
      frequencyPenalty: 0.2,
      candidateCount: 1,
      responseMimeType: "application/json",
      responseSchema: { type: "OBJECT" },
      thinkingConfig: { includeThoughts: true, thinkingBudget: -1, thinkingLevel: "HIGH" },
      responseLogprobs: true,
      logprobs: 3,
    };
    expect(read({ generationConfig })).toMatchObject({
      sampling: { temperature: 1, topP: 0.9, topK: 40, maxTokens: 100, stop: ["x"], seed: 7, presencePenalty: 0.1, frequencyPenalty: 0.2 },
      reasoning: { enabled: true, effort: "high", budgetTokens: null },
      responseFormat: { type: "json_schema", name: null, schema: { type: "object" }, strict: null },
      logprobs: 3,
      extra: {},
      dropped: [],
    });
    expect(read({ generationConfig: { thinkingConfig: { thinkingBudget: 0 } } }).reasoning).toEqual({ enabled: false, effort: null, budgetTokens: null });
    expect(read({ generationConfig: { thinkingConfig: { thinkingBudget: 512 } } }).reasoning).toEqual({ enabled: true, effort: null, budgetTokens: 512 });
    expect(read({ generationConfig: { responseMimeType: "application/json" } }).responseFormat).toEqual({ type: "json_object" });
    expect(read({ generationConfig: { responseMimeType: "application/json", responseJsonSchema: { type: "array" } } }).responseFormat).toMatchObject({ schema: { type: "array" } });
  });

  it("without effect are noted, unknown ones handed on, and what is not made here refused", () => {
    const { dropped, extra } = read({ safetySettings: [{ category: "x" }], labels: { a: "b" }, novelty: 1, generationConfig: { mediaResolution: "LOW", quirk: [2], responseModalities: ["TEXT"], thinkingConfig: { includeThoughts: false } } });
    expect(dropped).toEqual(["safetySettings: no effect here", "labels: no effect here", "generationConfig.mediaResolution: no effect here", "generationConfig.thinkingConfig.includeThoughts: thoughts are always given, marked as such"]);
    expect(extra).toEqual({ novelty: 1, "generationConfig.quirk": [2] });
    expect(read({ safetySettings: [], tools: [], toolConfig: null }).dropped).toEqual([]);
    expect(field({ cachedContent: "cachedContents/x" })).toBe("cachedContent");
    for (const [name, value] of [["candidateCount", 2], ["responseModalities", ["AUDIO"]], ["responseMimeType", "text/x.enum"], ["temperature", 9], ["maxOutputTokens", 0], ["stopSequences", "x"]] as const) {
      expect(field({ generationConfig: { [name]: value } })?.replace(/\[\d\]$/, "")).toBe(`generationConfig.${name}`);
    }
    expect(field({ generationConfig: { responseSchema: { type: "OBJECT" } } })).toBe("generationConfig.responseMimeType");
    expect(() => decode({ contents: HI }, { model: null, stream: null })).toThrow("model");
  });
});

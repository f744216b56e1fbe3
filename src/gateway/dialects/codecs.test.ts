import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Dialect } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";
import { CODECS } from "./codecs.ts";

const schema = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const PIXEL = "iVBORw0KGgo=";

type Tried = Extract<Dialect, "openai-responses" | "gemini">;

/** A body that uses most of what the dialect reads: what is mutated. */
const BODIES: Readonly<Record<Tried, unknown>> = {
  "openai-responses": {
    model: "m",
    instructions: "i",
    input: [
      { type: "additional_tools", role: "developer", tools: [{ type: "namespace", name: "functions", description: "d", tools: [{ type: "custom", name: "exec", format: { type: "grammar", syntax: "lark", definition: "start: /x/" } }] }] },
      { role: "developer", content: "d" },
      { type: "message", role: "user", content: [{ type: "input_text", text: "t" }, { type: "input_image", image_url: `data:image/png;base64,${PIXEL}`, detail: "auto" }] },
      { type: "reasoning", summary: [{ type: "summary_text", text: "s" }], content: [{ type: "reasoning_text", text: "r" }], encrypted_content: "mw1.WyJyIixudWxsXQ" },
      { type: "message", role: "assistant", content: [{ type: "output_text", text: "o", annotations: [] }, { type: "refusal", refusal: "no" }] },
      { type: "function_call", call_id: "c", name: "f", arguments: "{}", namespace: "n" },
      { type: "function_call_output", call_id: "c", output: [{ type: "input_text", text: "ok" }] },
      { type: "custom_tool_call", call_id: "d", name: "exec", input: "x" },
      { type: "custom_tool_call_output", call_id: "d", output: "ok" },
    ],
    tools: [{ type: "function", name: "f", description: "d", parameters: schema, strict: false }, { type: "web_search" }],
    tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "f" }] },
    text: { format: { type: "json_schema", name: "n", schema, strict: true }, verbosity: "low" },
    reasoning: { effort: "high", summary: "auto" },
    include: ["reasoning.encrypted_content"],
    stream: true,
    store: false,
    max_output_tokens: 10,
  },
  gemini: {
    system_instruction: { parts: [{ text: "s" }] },
    contents: [
      { role: "user", parts: [{ text: "t" }, { inline_data: { mime_type: "image/png", data: PIXEL } }] },
      { role: "model", parts: [{ text: "r", thought: true }, { functionCall: { id: "c", name: "f", args: { command: "ls" } }, thoughtSignature: "eyJtdyI6MSwicmVmdXNhbCI6dHJ1ZX0=" }] },
      { role: "user", parts: [{ functionResponse: { id: "c", name: "f", response: { output: "ok" } } }] },
    ],
    tools: [{ functionDeclarations: [{ name: "f", description: "d", parameters: { type: "OBJECT", properties: { a: { type: "STRING", nullable: true, minLength: "1" } } } }] }, { googleSearch: {} }],
    toolConfig: { functionCallingConfig: { mode: "ANY", allowedFunctionNames: ["f"] } },
    generationConfig: { temperature: 1, topK: 3, responseMimeType: "application/json", responseSchema: { type: "OBJECT" }, thinkingConfig: { thinkingBudget: -1 } },
    safetySettings: [{ category: "x", threshold: "y" }],
  },
};

const ROUTES: Readonly<Record<Tried, string | null>> = { "openai-responses": null, gemini: "m" };

function attempt(dialect: Tried, body: unknown): void {
  try {
    CODECS[dialect].decode(body, { model: ROUTES[dialect], stream: dialect === "gemini" ? true : null });
  } catch (error) {
    if (!(error instanceof GatewayFailure) || error.kind !== "invalid_request") throw error;
    expect(error.message).not.toBe("");
  }
}

/** `value` with the subtree that `steps` lead to replaced, or taken out. */
function mutate(value: unknown, steps: readonly number[], replacement: unknown): unknown {
  const [step, ...rest] = steps;
  if (step === undefined || typeof value !== "object" || value === null) return replacement;
  const entries = Object.entries(value);
  if (entries.length === 0) return replacement;
  const at = step % entries.length;
  const changed = entries.flatMap(([key, entry], index): [string, unknown][] => {
    if (index !== at) return [[key, entry]];
    const next = mutate(entry, rest, replacement);
    return next === undefined ? [] : [[key, next]];
  });
  return Array.isArray(value) ? changed.map(([, entry]) => entry) : Object.fromEntries(changed);
}

const strange = fc.oneof(fc.jsonValue({ maxDepth: 3 }), fc.constantFrom<unknown>(undefined, null, "", 0, -1, 1e308, [], {}, [[]], [null], { type: "text" }, { type: "__proto__" }, JSON.parse('{"__proto__":{"a":1},"constructor":1}')));

describe.each(Object.keys(BODIES) as Tried[])("%s", (dialect) => {
  it("reads the body that the mutants come from", () => {
    const request = CODECS[dialect].decode(BODIES[dialect], { model: ROUTES[dialect], stream: null });
    expect(request).toMatchObject({ dialect, model: "m", extra: {} });
  });

  it("refuses any other JSON with a failure that says why, and nothing else", () => {
    fc.assert(fc.property(fc.jsonValue({ maxDepth: 6 }), (body) => attempt(dialect, body)), { numRuns: 500 });
    fc.assert(fc.property(fc.array(fc.nat(20), { minLength: 1, maxLength: 9 }), strange, (steps, replacement) => attempt(dialect, mutate(BODIES[dialect], steps, replacement))), { numRuns: 2000 });
  });

});

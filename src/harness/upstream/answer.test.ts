import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { readAnswer } from "./answer.ts";
import { withoutKey } from "./secret.ts";

const choice = (fields: Readonly<Record<string, unknown>>, message: Readonly<Record<string, unknown>> = {}): unknown => ({ choices: [{ message: { role: "assistant", content: "x", ...message }, ...fields }] });

describe("an answer", () => {
  it("is read, or is none, whatever JSON a server sends", () => {
    // Arbitrary values at each place that is looked at.
    const any = fc.jsonValue();
    const shaped = fc.record({
      choices: fc.oneof(any, fc.array(fc.record({ message: fc.oneof(any, fc.record({ content: any, tool_calls: any, refusal: any, reasoning: any })), finish_reason: any, token_ids: any, logprobs: any, meta_info: any }))),
      usage: any,
      prompt_token_ids: any,
    });
    fc.assert(
      fc.property(fc.oneof(any, shaped), (body) => {
        const answer = readAnswer(body);
        expect(answer === null || (Array.isArray(answer.toolCalls) && (answer.content === null || typeof answer.content === "string"))).toBe(true);
      }),
      { numRuns: 2_000 },
    );
  });

  it.each([null, 3, "text", [], {}, { choices: [] }, { choices: [{}] }, { choices: [{ message: null }] }, { choices: [{ message: { content: "x", tool_calls: "no" } }] }, { error: { message: "overloaded" } }])(
    "is none: %j",
    (body) => {
      expect(readAnswer(body)).toBeNull();
    },
  );

  it("reads content parts, arguments as objects, and both names of reasoning", () => {
    expect(readAnswer(choice({}, { content: [{ type: "text", text: "a" }, { type: "image" }, { type: "text", text: "b" }] }))?.content).toBe("ab");
    expect(readAnswer(choice({}, { tool_calls: [{ function: { name: "bash", arguments: { command: "ls" } } }, {}] }))?.toolCalls).toEqual([
      { id: null, name: "bash", arguments: '{"command":"ls"}' },
      { id: null, name: "", arguments: "" },
    ]);
    expect(readAnswer(choice({}, { reasoning: "r", reasoning_content: "c" }))?.reasoning).toEqual({ reasoning: "r", reasoning_content: "c" });
  });
});

describe("tokens", () => {
  const logprobs = { content: [{ token: "a", logprob: -1 }, { token: "b", logprob: -2 }] };

  it("are taken as vLLM and SGLang spell them", () => {
    const vllm = readAnswer({ ...(choice({ token_ids: [5, 6], logprobs }) as object), prompt_token_ids: [1] });
    expect(vllm?.tokens).toEqual({ prompt: [1], completion: [5, 6], logprobs: [-1, -2] });
    expect(JSON.stringify(vllm?.response)).not.toMatch(/token_ids|logprob/);
    const sglang = readAnswer(choice({ prompt_token_ids: [1], meta_info: { weight_version: "3", output_token_logprobs: [[-1, 5, null], [-2, 6, null]] } }));
    expect(sglang?.tokens).toEqual({ prompt: [1], completion: [5, 6], logprobs: [-1, -2] });
    expect(JSON.stringify(sglang?.response)).toContain('"weight_version":"3"');
    expect(readAnswer(choice({ logprobs: { content: [{ token: "token_id:7", logprob: -1 }] } }))?.tokens.completion).toEqual([7]);
  });

  it("are dropped where they cannot be right, and the response keeps them as evidence", () => {
    const uneven = readAnswer(choice({ token_ids: [5], logprobs }));
    expect(uneven?.tokens).toEqual({ prompt: null, completion: [5], logprobs: null });
    expect(JSON.stringify(uneven?.response)).toContain('"logprob":-1');
    for (const ids of [[1.5], [-1], ["5"], [null], "5", [2 ** 60]]) expect(readAnswer(choice({ token_ids: ids }))?.tokens.completion).toBeNull();
    expect(readAnswer(choice({ token_ids: [5], logprobs: { content: [{ logprob: null }] } }))?.tokens.logprobs).toBeNull();
  });

  it("stand in for a missing usage", () => {
    expect(readAnswer({ ...(choice({ token_ids: [5, 6] }) as object), prompt_token_ids: [1, 2, 3] })?.usage).toEqual({ promptTokens: 3, completionTokens: 2 });
    expect(readAnswer({ ...(choice({}) as object), usage: { prompt_tokens: -4, completion_tokens: 2 } })?.usage).toEqual({ promptTokens: 0, completionTokens: 2 });
    expect(readAnswer(choice({}))?.usage).toBeNull();
  });
});

describe("the key", () => {
  it("is taken out of what a server says, unless it is a placeholder", () => {
    expect(withoutKey("x sk-12345678 y sk-12345678", "sk-12345678")).toBe("x [key removed] y [key removed]");
    expect(withoutKey("an EMPTY list", "EMPTY")).toBe("an EMPTY list");
    expect(withoutKey("text", null)).toBe("text");
  });
});

/** The official Anthropic client against the Messages codec, over real HTTP. */
import * as fc from "fast-check";
import Anthropic, { APIError } from "@anthropic-ai/sdk";
import { afterEach, describe, expect, test } from "vitest";
import type { AnswerBlock } from "../../../src/gateway/conversation.ts";
import { anthropic } from "../../../src/gateway/dialects/anthropic/codec.ts";
import { GatewayFailure } from "../../../src/gateway/failure.ts";
import { blocksArbitrary } from "../../support/answer-blocks.ts";
import { ANSWERS, answerOf, call } from "../../support/answers.ts";
import { serveCodec, type CodecServer, type CodecServerOptions } from "../../support/codec-server.ts";

let server: CodecServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

async function client(options: Omit<CodecServerOptions, "codec">, maxRetries = 0): Promise<Anthropic> {
  // A getter each, so that a test can change what it gave.
  server = await serveCodec(Object.create(options, { codec: { value: anthropic } }) as CodecServerOptions);
  return new Anthropic({ apiKey: "token", baseURL: server.url, maxRetries });
}

const ASK = { model: "model", max_tokens: 100, messages: [{ role: "user" as const, content: "hi" }] };

describe("an answer streamed and joined by the client is the answer sent whole", () => {
  const cases = {
    ...ANSWERS,
    "signed and redacted thinking": answerOf([
      { type: "reasoning", text: "a", signature: "sig" },
      { type: "reasoning", text: "", signature: "hidden" },
      { type: "reasoning", text: "", signature: "opaque", redacted: true },
      { type: "text", text: "b" },
    ]),
  };
  for (const [name, answer] of Object.entries(cases)) {
    for (const how of [{}, { deltaLength: 1 }, { deltaLength: 3, writeBytes: 1 }]) {
      test(`${name}, ${JSON.stringify(how)}`, async () => {
        const sdk = await client({ answer: () => answer, ...how });
        const { parsed_output: _, ...joined } = await sdk.messages.stream(ASK).finalMessage();
        const whole = await sdk.messages.create(ASK);
        // The id is the call's.
        expect({ ...joined, id: "" }).toEqual({ ...whole, id: "" });
      });
    }
  }
});

test("any answer, cut anywhere, is joined to the whole one, and comes back as it was sampled", async () => {
  const options = { answer: () => answerOf([]), deltaLength: 1 };
  const sdk = await client(options);
  const property = fc.asyncProperty(blocksArbitrary({ refusal: false, custom: false, signature: true }), fc.integer({ min: 1, max: 9 }), async (blocks, deltaLength) => {
    Object.assign(options, { answer: () => answerOf(blocks), deltaLength });
    const whole = await sdk.messages.create(ASK);
    expect((await sdk.messages.stream(ASK).finalMessage()).content).toEqual(whole.content);
    await sdk.messages.create({ ...ASK, messages: [...ASK.messages, { role: "assistant", content: whole.content }, { role: "user", content: "go on" }] });
    const sent = server?.requests.at(-1)?.messages[1];
    expect(sent?.role === "assistant" ? sent.content.map(respelled) : null).toEqual(blocks.map(respelled));
  });
  await fc.assert(property, { numRuns: 200 });
});

/** An object loses its spacing on the way, its double keys and the digits that no number holds. */
function respelled(block: AnswerBlock): AnswerBlock {
  if (block.type !== "tool_call") return block;
  try {
    const value: unknown = JSON.parse(block.arguments.trim() === "" ? "{}" : block.arguments);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...block, arguments: JSON.stringify(value) } : block;
  } catch {
    return block;
  }
}

test("parallel calls are blocks of their own, each started and stopped once", async () => {
  const sdk = await client({ answer: () => answerOf([{ type: "text", text: "go" }, call("a", "x", '{"n":1}'), call("b", "x", '{"n":2}'), call("c", "y", "")]), deltaLength: 2 });
  const events: string[] = [];
  const message = await sdk.messages
    .stream(ASK)
    .on("streamEvent", (event) => {
      if (event.type === "content_block_start") events.push(`start ${event.index} ${event.content_block.type}`);
      else if (event.type === "content_block_stop") events.push(`stop ${event.index}`);
      else if (event.type !== "content_block_delta") events.push(event.type);
    })
    .finalMessage();
  expect(events).toEqual(["message_start", "start 0 text", "stop 0", "start 1 tool_use", "stop 1", "start 2 tool_use", "stop 2", "start 3 tool_use", "stop 3", "message_delta", "message_stop"]);
  expect(message.content.filter((block) => block.type === "tool_use").map(({ id, name, input }) => [id, name, input])).toEqual([["a", "x", { n: 1 }], ["b", "x", { n: 2 }], ["c", "y", {}]]);
  expect(message.stop_reason).toBe("tool_use");
});

test("what the model said comes back as it was, arguments that are no JSON included", async () => {
  const blocks: readonly AnswerBlock[] = [
    { type: "reasoning", text: " why\n", signature: null },
    { type: "text", text: " x " },
    call("a", "bash", '{"command":"ls"}'),
    call("b", "bash", '{"command": "echo'),
    call("c", "now", "{}"),
  ];
  const sdk = await client({ answer: () => answerOf(blocks), deltaLength: 2 });
  const { content } = await sdk.messages.stream(ASK).finalMessage();
  await sdk.messages.create({ ...ASK, messages: [...ASK.messages, { role: "assistant", content }, { role: "user", content: [{ type: "tool_result", tool_use_id: "a" }] }] });
  expect(server?.requests[1]?.messages.slice(1)).toEqual([
    { role: "assistant", content: blocks },
    { role: "tool", callId: "a", name: "bash", content: [{ type: "text", text: "" }], isError: false },
  ]);
});

describe("failures", () => {
  test("an error in the middle of a stream is raised", async () => {
    const sdk = await client({ answer: () => answerOf([{ type: "text", text: "a long text" }]), deltaLength: 1, failAfter: { deltas: 3, failure: new GatewayFailure("truncated", "the stream broke off") } });
    await expect(sdk.messages.stream(ASK).finalMessage()).rejects.toThrow("the stream broke off");
  });

  test("what may pass is tried again, what cannot is not", async () => {
    for (const [kind, tries] of [["rate_limited", 3], ["overloaded", 3], ["upstream", 3], ["timeout", 3], ["budget", 1], ["closed", 1], ["invalid_request", 1], ["context_overflow", 1], ["unauthorized", 1]] as const) {
      const sdk = await client({ answer: () => new GatewayFailure(kind, "no", { retryAfterMs: 5 }) }, 2);
      await expect(sdk.messages.create(ASK), kind).rejects.toBeInstanceOf(APIError);
      expect(server?.requests.length, kind).toBe(tries);
      await server?.close();
    }
  });

  test("a context overflow is in the words that Claude Code looks for", async () => {
    const sdk = await client({ answer: () => new GatewayFailure("context_overflow", "too long", { promptTokens: 5000, contextTokens: 4096 }) });
    await expect(sdk.messages.create(ASK)).rejects.toMatchObject({ status: 400, type: "invalid_request_error", apiMessage: "prompt is too long: 5000 tokens > 4096 maximum" });
  });
});

test("token counts and models", async () => {
  const sdk = await client({ answer: () => answerOf([]) });
  expect(await sdk.messages.countTokens({ model: "model", messages: ASK.messages })).toEqual({ input_tokens: 42 });
  expect((await sdk.models.list()).data).toMatchObject([{ id: "model", type: "model", max_input_tokens: 4096 }]);
});

/** The official OpenAI client against the chat codec, over real HTTP. */
import * as fc from "fast-check";
import OpenAI, { APIError } from "openai";
import { afterEach, describe, expect, test } from "vitest";
import type { Answer, AnswerBlock } from "../../../src/gateway/conversation.ts";
import { openaiChat } from "../../../src/gateway/dialects/openai-chat/codec.ts";
import { GatewayFailure } from "../../../src/gateway/failure.ts";
import { blocksArbitrary } from "../../support/answer-blocks.ts";
import { ANSWERS, answerOf, call } from "../../support/answers.ts";
import { serveCodec, type CodecServer, type CodecServerOptions } from "../../support/codec-server.ts";

let server: CodecServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

async function client(options: Omit<CodecServerOptions, "codec">, maxRetries = 0): Promise<OpenAI> {
  // A getter each, so that a test can change what it gave.
  server = await serveCodec(Object.create(options, { codec: { value: openaiChat } }) as CodecServerOptions);
  return new OpenAI({ apiKey: "token", baseURL: `${server.url}/v1`, maxRetries });
}

const ASK = { model: "model", messages: [{ role: "user" as const, content: "hi" }], stream_options: { include_usage: true } };

/** Reasoning is no part of the official types: the accumulator keeps only its last piece. */
function withoutReasoning(message: object): object {
  const { reasoning_content: _, ...rest } = message as { reasoning_content?: string };
  return rest;
}

async function streamed(openai: OpenAI): Promise<{ readonly choice: object; readonly usage: unknown; readonly reasoning: string }> {
  let reasoning = "";
  const stream = openai.chat.completions.stream(ASK);
  stream.on("chunk", (chunk) => (reasoning += (chunk.choices[0]?.delta as { reasoning_content?: string } | undefined)?.reasoning_content ?? ""));
  const { choices, usage } = await stream.finalChatCompletion();
  // `parsed` is the accumulator's own.
  const { parsed: _, ...message } = choices[0]?.message ?? { parsed: null };
  return { choice: { ...choices[0], message: withoutReasoning(message) }, usage: usage ?? null, reasoning };
}

async function whole(openai: OpenAI): Promise<{ readonly choice: object; readonly usage: unknown; readonly reasoning: string }> {
  const { stream_options: _, ...ask } = ASK;
  const { choices, usage } = await openai.chat.completions.create(ask);
  const message = choices[0]?.message as { reasoning_content?: string };
  return { choice: { ...choices[0], message: withoutReasoning(message) }, usage: usage ?? null, reasoning: message.reasoning_content ?? "" };
}

describe("an answer streamed and joined by the client is the answer sent whole", () => {
  const cases: Readonly<Record<string, Answer>> = {
    ...ANSWERS,
    logprobs: answerOf([{ type: "text", text: "ab" }], {
      logprobs: ["a", "b"].map((token) => ({ token, logprob: -0.5, bytes: [token.charCodeAt(0)], top: [{ token, logprob: -0.5, bytes: null }] })),
    }),
  };
  for (const [name, answer] of Object.entries(cases)) {
    for (const how of [{}, { deltaLength: 1 }, { deltaLength: 3, writeBytes: 1 }]) {
      test(`${name}, ${JSON.stringify(how)}`, async () => {
        const openai = await client({ answer: () => answer, ...how });
        expect(await streamed(openai)).toEqual(await whole(openai));
      });
    }
  }
});

test("any answer, cut anywhere, is joined to the whole one, and comes back as it was sampled", async () => {
  const options = { answer: () => answerOf([]), deltaLength: 1 };
  const openai = await client(options);
  const property = fc.asyncProperty(blocksArbitrary({ refusal: true, custom: false, signature: false }), fc.integer({ min: 1, max: 9 }), async (blocks, deltaLength) => {
    Object.assign(options, { answer: () => answerOf(blocks), deltaLength });
    expect(await streamed(openai)).toEqual(await whole(openai));
    const { choices } = await openai.chat.completions.create({ model: "model", messages: ASK.messages });
    const message = choices[0]?.message as OpenAI.ChatCompletionMessageParam;
    await openai.chat.completions.create({ model: "model", messages: [...ASK.messages, message] });
    const sent = server?.requests.at(-1)?.messages[1];
    expect(sent?.role === "assistant" ? sent.content : null).toEqual(flat(blocks));
  });
  await fc.assert(property, { numRuns: 200 });
});

/** As a flat message holds it: reasoning, text, refusal, calls; no arguments are an empty object. */
function flat(blocks: readonly AnswerBlock[]): readonly AnswerBlock[] {
  const joined = (type: "reasoning" | "text" | "refusal"): AnswerBlock[] => {
    const text = blocks.map((block) => (block.type === type ? block.text : "")).join("");
    return text === "" ? [] : [type === "reasoning" ? { type, text, signature: null } : { type, text }];
  };
  const calls = blocks.flatMap((block) => (block.type !== "tool_call" ? [] : /[^ \t\r\n]/.test(block.arguments) ? [block] : [{ ...block, arguments: "{}" }]));
  return [...joined("reasoning"), ...joined("text"), ...joined("refusal"), ...calls];
}

describe("failures", () => {
  test("an error in the middle of a stream is raised", async () => {
    const openai = await client({ answer: () => ANSWERS["text"] ?? answerOf([]), deltaLength: 1, failAfter: { deltas: 3, failure: new GatewayFailure("truncated", "the stream broke off") } });
    await expect(streamed(openai)).rejects.toThrow("the stream broke off");
  });

  test("what may pass is tried again, what cannot is not", async () => {
    for (const [kind, tries] of [["rate_limited", 3], ["overloaded", 3], ["upstream", 3], ["timeout", 3], ["budget", 1], ["closed", 1], ["invalid_request", 1], ["context_overflow", 1], ["unauthorized", 1]] as const) {
      const openai = await client({ answer: () => new GatewayFailure(kind, "no", { retryAfterMs: 5 }) }, 2);
      await expect(whole(openai), kind).rejects.toBeInstanceOf(APIError);
      expect(server?.requests.length, kind).toBe(tries);
      await server?.close();
    }
  });

  test("a context overflow has the code that agents look for", async () => {
    const openai = await client({ answer: () => new GatewayFailure("context_overflow", "too long", { promptTokens: 5000, contextTokens: 4096 }) });
    await expect(whole(openai)).rejects.toMatchObject({ status: 400, code: "context_length_exceeded", param: "messages", message: expect.stringContaining("maximum context length is 4096 tokens") as string });
  });

  test("a field that is refused is named", async () => {
    const openai = await client({ answer: () => answerOf([]) });
    const asked = openai.chat.completions.create({ model: "model", messages: [{ role: "user", content: [{ type: "input_audio", input_audio: { data: "", format: "wav" } }] }] });
    await expect(asked).rejects.toMatchObject({ status: 400, type: "invalid_request_error", param: "messages[0].content[0]" });
  });
});

test("what the model said comes back as it was", async () => {
  const blocks = [{ type: "reasoning" as const, text: " why\n", signature: null }, { type: "text" as const, text: " x " }, call("call_1", "bash", '{ "command":"\\u0065" }')];
  const openai = await client({ answer: () => answerOf(blocks) });
  const { choices } = await openai.chat.completions.create({ model: "model", messages: [{ role: "user", content: "hi" }] });
  const message = choices[0]?.message;
  if (message === undefined) throw new Error("no message");
  await openai.chat.completions.create({ model: "model", messages: [{ role: "user", content: "hi" }, message, { role: "tool", tool_call_id: "call_1", content: "" }] });
  expect(server?.requests[1]?.messages.slice(1)).toEqual([
    { role: "assistant", content: blocks },
    { role: "tool", callId: "call_1", name: "bash", content: [{ type: "text", text: "" }], isError: false },
  ]);
});

test("calls of custom tools carry text, which the client gives out as it streams", async () => {
  const custom: AnswerBlock = { type: "tool_call", id: "c", name: "exec", arguments: " 北\n", kind: "custom" };
  const openai = await client({ answer: () => answerOf([custom]), deltaLength: 1 });
  const message = (await openai.chat.completions.create({ model: "model", messages: ASK.messages })).choices[0]?.message;
  expect(message?.tool_calls).toEqual([{ id: "c", type: "custom", custom: { name: "exec", input: " 北\n" } }]);
  let input = "";
  // The client's accumulator knows functions only.
  for await (const chunk of await openai.chat.completions.create({ model: "model", messages: ASK.messages, stream: true })) {
    for (const piece of chunk.choices[0]?.delta.tool_calls ?? []) input += (piece as { custom?: { input?: string } }).custom?.input ?? "";
  }
  expect(input).toBe(" 北\n");
  await openai.chat.completions.create({ model: "model", messages: [...ASK.messages, message as OpenAI.ChatCompletionMessageParam] });
  expect(server?.requests.at(-1)?.messages[1]).toEqual({ role: "assistant", content: [custom] });
});

test("models", async () => {
  const openai = await client({ answer: () => answerOf([]) });
  expect((await openai.models.list()).data).toEqual([{ id: "model", object: "model", created: 0, owned_by: "manyworlds", max_model_len: 4096 }]);
});

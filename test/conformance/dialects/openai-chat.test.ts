/** The official OpenAI client against the chat codec, over real HTTP. */
import OpenAI, { APIError } from "openai";
import { afterEach, describe, expect, test } from "vitest";
import type { Answer } from "../../../src/gateway/conversation.ts";
import { openaiChat } from "../../../src/gateway/dialects/openai-chat/codec.ts";
import { GatewayFailure } from "../../../src/gateway/failure.ts";
import { ANSWERS, answerOf, call } from "../../support/answers.ts";
import { serveCodec, type CodecServer, type CodecServerOptions } from "../../support/codec-server.ts";

let server: CodecServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

async function client(options: Omit<CodecServerOptions, "codec">, maxRetries = 0): Promise<OpenAI> {
  server = await serveCodec({ codec: openaiChat, ...options });
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

test("models", async () => {
  const openai = await client({ answer: () => answerOf([]) });
  expect((await openai.models.list()).data).toEqual([{ id: "model", object: "model", created: 0, owned_by: "manyworlds", max_model_len: 4096 }]);
});

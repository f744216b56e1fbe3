/** The official OpenAI client against the Responses codec, over real HTTP. */
import * as fc from "fast-check";
import OpenAI, { APIError } from "openai";
import { afterEach, describe, expect, test } from "vitest";
import type { Answer, AnswerBlock } from "../../../src/gateway/conversation.ts";
import { openaiResponses } from "../../../src/gateway/dialects/openai-responses/codec.ts";
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
  server = await serveCodec(Object.create(options, { codec: { value: openaiResponses } }) as CodecServerOptions);
  return new OpenAI({ apiKey: "token", baseURL: `${server.url}/v1`, maxRetries });
}

const ASK = { model: "model", input: "hi", store: false };

/** Without the id of the call, and what the client's accumulator adds. */
function plain(response: object): unknown {
  const added = new Set(["parsed", "parsed_arguments", "output_parsed"]);
  return JSON.parse(JSON.stringify(response, (key, value: unknown) => (added.has(key) ? undefined : value)).replaceAll(/call-\d+/g, "call")) as unknown;
}

const streamed = async (openai: OpenAI): Promise<object> => await openai.responses.stream({ ...ASK, stream: true }).finalResponse();
const whole = async (openai: OpenAI): Promise<OpenAI.Responses.Response> => await openai.responses.create(ASK);

async function events(openai: OpenAI): Promise<OpenAI.Responses.ResponseStreamEvent[]> {
  const seen: OpenAI.Responses.ResponseStreamEvent[] = [];
  for await (const event of await openai.responses.create({ ...ASK, stream: true })) seen.push(event);
  return seen;
}

/** What the gateway reads when the client appends an answer to its conversation. */
async function sentBack(openai: OpenAI, output: unknown): Promise<readonly AnswerBlock[]> {
  await openai.responses.create({ ...ASK, input: [{ role: "user", content: "hi" }, ...(output as OpenAI.Responses.ResponseInput)] });
  const message = server?.requests.at(-1)?.messages[1];
  return message?.role === "assistant" ? message.content : [];
}

/** As it comes back: a function called without arguments has an empty object. */
function completed(block: AnswerBlock): AnswerBlock {
  return block.type === "tool_call" && block.kind === undefined && /^[ \t\r\n]*$/.test(block.arguments) ? { ...block, arguments: "{}" } : block;
}

describe("an answer streamed and joined by the client is the answer sent whole", () => {
  const cases: Readonly<Record<string, Answer>> = {
    ...ANSWERS,
    "a custom tool in a namespace": answerOf([{ type: "tool_call", id: "c", name: "exec", arguments: "text(\"北\");\n", kind: "custom", namespace: "functions" }]),
    logprobs: answerOf([{ type: "reasoning", text: "a", signature: null }, { type: "text", text: "ab" }], {
      logprobs: ["<", "a", ">", "a", "b"].map((token) => ({ token, logprob: -0.5, bytes: null, top: [{ token, logprob: -0.5, bytes: null }] })),
    }),
  };
  for (const [name, answer] of Object.entries(cases)) {
    for (const how of [{}, { deltaLength: 1 }, { deltaLength: 3, writeBytes: 1 }]) {
      test(`${name}, ${JSON.stringify(how)}`, async () => {
        const openai = await client({ answer: () => answer, ...how });
        expect(plain(await streamed(openai))).toEqual(plain(await whole(openai)));
      });
    }
  }

  test("any answer, cut anywhere, and it comes back as it was sampled", async () => {
    const options = { answer: () => answerOf([]), deltaLength: 1 };
    const openai = await client(options);
    const property = fc.asyncProperty(blocksArbitrary({ refusal: true, custom: true, signature: true }), fc.integer({ min: 1, max: 9 }), async (blocks, deltaLength) => {
      Object.assign(options, { answer: () => answerOf(blocks), deltaLength });
      const response = await whole(openai);
      expect(plain(await streamed(openai))).toEqual(plain(response));
      expect(await sentBack(openai, response.output)).toEqual(blocks.map(completed));
      // Codex leaves out the content of reasoning.
      expect(await sentBack(openai, response.output.map((item) => (item.type === "reasoning" ? { type: "reasoning", summary: [], encrypted_content: item.encrypted_content } : item)))).toEqual(blocks.map(completed));
    });
    await fc.assert(property, { numRuns: 60 });
  });
});

describe("events", () => {
  test("are numbered, and their items are those of the response at the end", async () => {
    const answer = answerOf([{ type: "reasoning", text: "hm", signature: null }, { type: "text", text: "look" }, call("c1", "exec", '{"cmd": "ls"}'), call("c2", "exec", "")]);
    const seen = await events(await client({ answer: () => answer, deltaLength: 2 }));
    expect(seen.map((event) => event.sequence_number)).toEqual(seen.map((_, index) => index));
    expect(seen.slice(0, 2).map(({ type }) => type)).toEqual(["response.created", "response.in_progress"]);
    const last = seen.at(-1);
    expect(last?.type === "response.completed" && last.response.output).toEqual(seen.flatMap((event) => (event.type === "response.output_item.done" ? [event.item] : [])));
  });

  test.each([["length", "max_output_tokens"], ["context", "max_output_tokens"], ["content_filter", "content_filter"]] as const)("an answer that ends with %s is incomplete", async (finish, reason) => {
    const openai = await client({ answer: () => answerOf([{ type: "text", text: "and then" }], { finish }) });
    for (const response of [await whole(openai), await streamed(openai)]) expect(response).toMatchObject({ status: "incomplete", incomplete_details: { reason }, output_text: "and then", output: [{ status: "incomplete" }] });
    expect((await events(openai)).at(-1)?.type).toBe("response.incomplete");
  });
});

describe("failures", () => {
  test("in the middle of a stream make a failed response", async () => {
    const openai = await client({ answer: () => answerOf([{ type: "text", text: "half of it" }]), deltaLength: 4, failAfter: { deltas: 1, failure: new GatewayFailure("truncated", "the stream broke off") } });
    expect((await events(openai)).at(-1)).toMatchObject({
      type: "response.failed",
      response: { status: "failed", error: { code: "server_error", message: "Upstream connection error: the stream broke off" }, output: [{ status: "incomplete", content: [{ text: "half" }] }] },
    });
  });

  test("what may pass is tried again, what cannot is not", async () => {
    for (const [kind, tries] of [["rate_limited", 3], ["overloaded", 3], ["upstream", 3], ["timeout", 3], ["budget", 1], ["closed", 1], ["invalid_request", 1], ["context_overflow", 1], ["unauthorized", 1]] as const) {
      const openai = await client({ answer: () => new GatewayFailure(kind, "no", { retryAfterMs: 5 }) }, 2);
      await expect(whole(openai), kind).rejects.toBeInstanceOf(APIError);
      expect(server?.requests.length, kind).toBe(tries);
      await server?.close();
    }
  });

  test("a context overflow has the code that agents look for, a spent budget the one that ends them", async () => {
    let openai = await client({ answer: () => new GatewayFailure("context_overflow", "too long", { promptTokens: 5000, contextTokens: 4096 }) });
    await expect(whole(openai)).rejects.toMatchObject({ status: 400, code: "context_length_exceeded" });
    await server?.close();
    openai = await client({ answer: () => new GatewayFailure("budget", "used up") });
    const error = await whole(openai).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ status: 400, code: "insufficient_quota" });
    expect((error as APIError).headers?.get("retry-after")).toBeNull();
  });

  test("a field that is refused is named", async () => {
    const openai = await client({ answer: () => answerOf([]) });
    await expect(openai.responses.create({ ...ASK, store: true })).rejects.toMatchObject({ status: 400, type: "invalid_request_error", param: "store" });
    await expect(openai.responses.create({ ...ASK, input: [{ role: "user", content: [{ type: "input_file", file_id: "f" }] }] })).rejects.toMatchObject({ param: "input[0].content[0].type" });
  });
});

test("tokens of the input are counted, models listed", async () => {
  const openai = await client({ answer: () => answerOf([]) });
  expect(await openai.responses.inputTokens.count({ model: "model", input: "hi" })).toEqual({ object: "response.input_tokens", input_tokens: 42 });
  expect((await openai.models.list()).data).toEqual([{ id: "model", object: "model", created: 0, owned_by: "manyworlds", max_model_len: 4096 }]);
});

/** The official Google client against the Gemini codec, over real HTTP. */
import { ApiError, GoogleGenAI, type Content, type GenerateContentResponse, type Part } from "@google/genai";
import * as fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type { Answer, AnswerBlock } from "../../../src/gateway/conversation.ts";
import { gemini } from "../../../src/gateway/dialects/gemini/codec.ts";
import { GatewayFailure } from "../../../src/gateway/failure.ts";
import { blocksArbitrary } from "../../support/answer-blocks.ts";
import { ANSWERS, answerOf } from "../../support/answers.ts";
import { serveCodec, type CodecServer, type CodecServerOptions } from "../../support/codec-server.ts";

let server: CodecServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

async function client(options: Omit<CodecServerOptions, "codec">): Promise<GoogleGenAI> {
  // A getter each, so that a test can change what it gave.
  server = await serveCodec(Object.create(options, { codec: { value: gemini } }) as CodecServerOptions);
  return new GoogleGenAI({ apiKey: "token", httpOptions: { baseUrl: server.url } });
}

const ASK = { model: "model", contents: "hi" };

const whole = async (genai: GoogleGenAI): Promise<GenerateContentResponse> => await genai.models.generateContent(ASK);

async function chunks(genai: GoogleGenAI): Promise<GenerateContentResponse[]> {
  const seen: GenerateContentResponse[] = [];
  for await (const chunk of await genai.models.generateContentStream(ASK)) seen.push(chunk);
  return seen;
}

const partsOf = (response: GenerateContentResponse): Part[] => response.candidates?.[0]?.content?.parts ?? [];

/** Marks each piece of a refusal. */
const REFUSAL = Buffer.from('{"mw":1,"refusal":true}').toString("base64");

/** What a reader of the parts sees: neighbouring texts joined. */
function join(parts: readonly Part[]): readonly Part[] {
  const joined: Part[] = [];
  for (const part of parts) {
    const last = joined.at(-1);
    const goesOn = part.text === "" || part.thoughtSignature === undefined || part.thoughtSignature === REFUSAL;
    if (goesOn && last?.text !== undefined && part.text !== undefined && last.thought === part.thought) joined[joined.length - 1] = { ...part, ...last, text: last.text + part.text };
    else if (part.text !== "" || part.thoughtSignature !== undefined) joined.push(part);
  }
  return joined;
}

/** The answer as a client sees it: parts, how it ended, what it took. */
function seenOf(parts: readonly Part[], last: GenerateContentResponse | undefined): unknown {
  const { content: _, ...candidate } = last?.candidates?.[0] ?? {};
  return { parts: join(parts), candidate, usage: last?.usageMetadata, model: last?.modelVersion };
}

async function sameWholeAndStreamed(genai: GoogleGenAI): Promise<readonly (readonly Part[])[]> {
  const response = await whole(genai);
  const pieces = await chunks(genai);
  expect(seenOf(pieces.flatMap(partsOf), pieces.at(-1))).toEqual(seenOf(partsOf(response), response));
  return [partsOf(response), pieces.flatMap(partsOf)];
}

/** What the gateway reads when the client appends an answer to its conversation. */
async function sentBack(genai: GoogleGenAI, contents: Content[]): Promise<readonly AnswerBlock[]> {
  await genai.models.generateContent({ model: "model", contents: [{ role: "user", parts: [{ text: "hi" }] }, ...contents] });
  const message = server?.requests.at(-1)?.messages[1];
  return message?.role === "assistant" ? message.content : [];
}

describe("an answer streamed and joined by the client is the answer sent whole", () => {
  const cases: Readonly<Record<string, Answer>> = {
    ...ANSWERS,
    logprobs: answerOf([{ type: "text", text: "ab" }], { logprobs: ["a", "b"].map((token) => ({ token, logprob: -0.5, bytes: null, top: [{ token, logprob: -0.5, bytes: null }] })) }),
  };
  for (const [name, answer] of Object.entries(cases)) {
    for (const how of [{}, { deltaLength: 1 }, { deltaLength: 3, writeBytes: 1 }]) {
      test(`${name}, ${JSON.stringify(how)}`, async () => {
        await sameWholeAndStreamed(await client({ answer: () => answer, ...how }));
      });
    }
  }

  test("any answer, cut anywhere, and it comes back as it was sampled, with its thoughts and without", async () => {
    const options = { answer: () => answerOf([]), deltaLength: 1 };
    const genai = await client(options);
    const property = fc.asyncProperty(blocksArbitrary({ refusal: true, custom: false, signature: true }), fc.integer({ min: 1, max: 9 }), async (blocks, deltaLength) => {
      Object.assign(options, { answer: () => answerOf(blocks), deltaLength });
      for (const parts of await sameWholeAndStreamed(genai)) {
        expect(await sentBack(genai, [{ role: "model", parts: [...parts] }])).toEqual(blocks);
        expect(await sentBack(genai, [{ role: "model", parts: parts.filter(({ thought }) => thought !== true) }])).toEqual(blocks);
        expect(await sentBack(genai, parts.map((part) => ({ role: "model", parts: [part] })))).toEqual(blocks);
      }
    });
    await fc.assert(property, { numRuns: 40 });
  });

  test("as a JSON array too", async () => {
    const blocks: AnswerBlock[] = [{ type: "reasoning", text: "hm", signature: null }, { type: "text", text: "one two" }];
    await client({ answer: () => answerOf(blocks), deltaLength: 2 });
    const response = await fetch(`${server?.url}/v1beta/models/model:streamGenerateContent`, { method: "POST", body: JSON.stringify({ contents: [{ parts: [{ text: "hi" }] }] }) });
    const pieces = (await response.json()) as GenerateContentResponse[];
    expect(pieces.length).toBeGreaterThan(3);
    expect(pieces.flatMap(partsOf).map(({ text }) => text).join("")).toBe("hmone two");
    expect(pieces.at(-1)?.candidates?.[0]?.finishReason).toBe("STOP");
  });
});

test("the client's own chat keeps what was said", async () => {
  const blocks: AnswerBlock[] = [{ type: "reasoning", text: "hm", signature: null }, { type: "text", text: "hello there" }];
  const genai = await client({ answer: () => answerOf(blocks), deltaLength: 3 });
  const chat = genai.chats.create({ model: "model" });
  for await (const chunk of await chat.sendMessageStream({ message: "one" })) expect(chunk.candidates).toHaveLength(1);
  await chat.sendMessage({ message: "two" });
  expect(server?.requests.at(-1)?.messages).toEqual([
    { role: "user", content: [{ type: "text", text: "one" }] },
    { role: "assistant", content: blocks },
    { role: "user", content: [{ type: "text", text: "two" }] },
  ]);
});

describe("failures", () => {
  test("in the middle of a stream are raised", async () => {
    const genai = await client({ answer: () => answerOf([{ type: "text", text: "half of it" }]), deltaLength: 4, failAfter: { deltas: 1, failure: new GatewayFailure("truncated", "the stream broke off") } });
    await expect(chunks(genai)).rejects.toThrow("the stream broke off");
  });

  test.each([["budget", 429, "QuotaFailure"], ["closed", 410, "FAILED_PRECONDITION"], ["rate_limited", 429, '"retryDelay":"1.000s"'], ["unauthorized", 401, "UNAUTHENTICATED"]] as const)("%s has its status and its details", async (kind, status, words) => {
    const genai = await client({ answer: () => new GatewayFailure(kind, "no") });
    const error = (await whole(genai).catch((thrown: unknown) => thrown)) as ApiError;
    expect(error).toBeInstanceOf(ApiError);
    expect(error.status).toBe(status);
    expect(error.message).toContain(words);
  });

  test("a context overflow is told in the API's words", async () => {
    const genai = await client({ answer: () => new GatewayFailure("context_overflow", "too long", { promptTokens: 5000, contextTokens: 4096 }) });
    await expect(whole(genai)).rejects.toThrow("The input token count (5000) exceeds the maximum number of tokens allowed (4096).");
  });

  test("a field that is refused is named", async () => {
    const genai = await client({ answer: () => answerOf([]) });
    await expect(genai.models.generateContent({ ...ASK, config: { candidateCount: 2 } })).rejects.toThrow("generationConfig.candidateCount: only one candidate");
  });
});

test("tokens are counted, models listed", async () => {
  const genai = await client({ answer: () => answerOf([]) });
  expect(await genai.models.countTokens(ASK)).toMatchObject({ totalTokens: 42 });
  const models: (string | undefined)[] = [];
  for await (const model of await genai.models.list()) models.push(model.name);
  expect(models).toEqual(["models/model"]);
});

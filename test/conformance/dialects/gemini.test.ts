import { ApiError, GoogleGenAI, type Content, type GenerateContentResponse, type Part } from "@google/genai";
import * as fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { gemini } from "../../../src/gateway/dialects/gemini/index.ts";
import { GatewayFailure, type AnswerBlock } from "../../../src/gateway/index.ts";
import { answerOf, blocksArbitrary, cutDeltas } from "../../support/answers.ts";
import { startDialectServer, type DialectServer } from "../../support/dialect-server.ts";

let server: DialectServer;
let client: GoogleGenAI;
beforeAll(async () => {
  server = await startDialectServer(gemini);
  client = new GoogleGenAI({ apiKey: "token", httpOptions: { baseUrl: server.url } });
});
afterAll(async () => await server.close());

const ASK = { model: "m", contents: "hi" };

async function collect(): Promise<GenerateContentResponse[]> {
  const chunks: GenerateContentResponse[] = [];
  for await (const chunk of await client.models.generateContentStream(ASK)) chunks.push(chunk);
  return chunks;
}

const partsOf = (response: GenerateContentResponse | undefined): Part[] => response?.candidates?.[0]?.content?.parts ?? [];

async function sendBack(contents: Content[]): Promise<readonly AnswerBlock[]> {
  await client.models.generateContent({ model: "m", contents: [{ role: "user", parts: [{ text: "hi" }] }, ...contents] });
  const sent = server.requests.at(-1)?.messages[1];
  return sent?.role === "assistant" ? sent.content : [];
}

describe("the official client", () => {
  it("joins any stream to the answer that it gets whole, and sends it back as it was sampled, also without the thoughts", async () => {
    await fc.assert(
      fc.asyncProperty(blocksArbitrary({ refusal: true, custom: false, signature: true }), fc.array(fc.integer({ min: 1, max: 6 })), async (blocks, cuts) => {
        server.script({ answer: answerOf(blocks), deltas: cutDeltas(blocks, cuts) });
        const chunks = await collect();
        const whole = await client.models.generateContent(ASK);
        const streamed = chunks.flatMap(partsOf);
        expect(join(streamed)).toEqual(join(partsOf(whole)));
        expect(chunks.at(-1)?.candidates?.[0]?.finishReason).toBe(whole.candidates?.[0]?.finishReason);
        expect(chunks.at(-1)?.usageMetadata).toEqual(whole.usageMetadata);
        for (const parts of [streamed, partsOf(whole), streamed.filter(({ thought }) => thought !== true), partsOf(whole).filter(({ thought }) => thought !== true)]) {
          expect(await sendBack([{ role: "model", parts }])).toEqual(blocks);
        }
        expect(await sendBack(streamed.map((part) => ({ role: "model", parts: [part] })))).toEqual(blocks);
      }),
      { numRuns: 60 },
    );
  });

  it("keeps a conversation by itself", async () => {
    const chat = client.chats.create({ model: "m" });
    const blocks: AnswerBlock[] = [{ type: "reasoning", text: "hm", signature: null }, { type: "text", text: "hello there" }];
    server.script({ answer: answerOf(blocks), deltas: cutDeltas(blocks, [3]) });
    for await (const chunk of await chat.sendMessageStream({ message: "one" })) expect(chunk.candidates).toHaveLength(1);
    await chat.sendMessage({ message: "two" });
    expect(server.requests.at(-1)?.messages).toEqual([
      { role: "user", content: [{ type: "text", text: "one" }] },
      { role: "assistant", content: blocks },
      { role: "user", content: [{ type: "text", text: "two" }] },
    ]);
  });

  it("sees a failure in the middle of a stream", async () => {
    server.script({ answer: answerOf([]), deltas: [{ type: "text", text: "half" }], failure: new GatewayFailure("truncated", "The model server broke off.") });
    await expect(collect()).rejects.toThrow(/broke off/);
  });

  it("gets failures with status and details", async () => {
    for (const [kind, status] of [["budget", 429], ["closed", 410], ["context_overflow", 400], ["rate_limited", 429], ["unauthorized", 401]] as const) {
      server.script({ answer: answerOf([]), failure: new GatewayFailure(kind, "no") });
      const error = await client.models.generateContent(ASK).catch((thrown: unknown) => thrown);
      expect(error).toBeInstanceOf(ApiError);
      expect((error as ApiError).status).toBe(status);
    }
  });
});

/** Marks each piece of a refusal. */
const REFUSAL = Buffer.from('{"mw":1,"refusal":true}').toString("base64");

/** What a reader of the parts sees: texts of a kind joined, what rides along put together. */
function join(parts: readonly Part[]): readonly unknown[] {
  const joined: Part[] = [];
  for (const part of parts) {
    const last = joined.at(-1);
    if (last?.text !== undefined && part.text !== undefined && last.thought === part.thought && (part.text === "" || part.thoughtSignature === undefined || part.thoughtSignature === REFUSAL)) {
      joined[joined.length - 1] = { ...part, ...last, text: last.text + part.text };
    } else if (part.text !== "" || part.thoughtSignature !== undefined) joined.push(part);
  }
  return joined;
}

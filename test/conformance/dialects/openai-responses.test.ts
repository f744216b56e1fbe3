import * as fc from "fast-check";
import OpenAI, { APIError } from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openaiResponses } from "../../../src/gateway/dialects/openai-responses/index.ts";
import { GatewayFailure, type AnswerBlock } from "../../../src/gateway/index.ts";
import { answerOf, blocksArbitrary, cutDeltas } from "../../support/answers.ts";
import { startDialectServer, type DialectServer } from "../../support/dialect-server.ts";

let server: DialectServer;
let client: OpenAI;
beforeAll(async () => {
  server = await startDialectServer(openaiResponses);
  client = new OpenAI({ apiKey: "token", baseURL: `${server.url}/v1`, maxRetries: 0 });
});
afterAll(async () => await server.close());

const ASK = { model: "m", input: "hi", store: false };

describe("the official client", () => {
  it("joins any stream to the answer that it gets whole, and sends it back as it was sampled", async () => {
    await fc.assert(
      fc.asyncProperty(blocksArbitrary({ refusal: true, custom: true, signature: true }), fc.array(fc.integer({ min: 1, max: 6 })), async (blocks, cuts) => {
        server.script({ answer: answerOf(blocks), deltas: cutDeltas(blocks, cuts) });
        const streamed = await client.responses.stream({ ...ASK, stream: true }).finalResponse();
        const whole = await client.responses.create(ASK);
        const content = (response: OpenAI.Responses.Response): unknown =>
          JSON.parse(JSON.stringify(response.output, (key, value: unknown) => (key === "parsed" || key === "parsed_arguments" ? undefined : value)).replaceAll(/call\d+_/g, "call_")) as unknown;
        expect(content(streamed as OpenAI.Responses.Response)).toEqual(content(whole));
        await client.responses.create({ ...ASK, input: [{ role: "user", content: "hi" }, ...whole.output] as OpenAI.Responses.ResponseInput });
        const sent = server.requests.at(-1)?.messages[1];
        expect(sent?.role === "assistant" ? sent.content : []).toEqual(blocks.map(completed));
      }),
      { numRuns: 60 },
    );
  });

  it("gets the same objects from the events as from the response at the end", async () => {
    const blocks: AnswerBlock[] = [
      { type: "reasoning", text: "hm", signature: null },
      { type: "text", text: "let me see" },
      { type: "tool_call", id: "c1", name: "exec", arguments: '{"cmd": "ls"}' },
      { type: "tool_call", id: "c2", name: "exec", arguments: "" },
    ];
    server.script({ answer: answerOf(blocks) });
    const items: unknown[] = [];
    let sequence = 0;
    const stream = await client.responses.create({ ...ASK, stream: true });
    for await (const event of stream) {
      expect(event.sequence_number).toBe(sequence++);
      if (event.type === "response.output_item.done") items.push(event.item);
      if (event.type === "response.completed") expect(event.response.output).toEqual(items);
    }
    expect(items).toMatchObject([{ type: "reasoning" }, { type: "message" }, { arguments: '{"cmd": "ls"}' }, { arguments: "{}" }]);
  });

  it("tells an answer cut short from a whole one", async () => {
    const blocks: AnswerBlock[] = [{ type: "text", text: "and then" }];
    for (const [finish, reason] of [["length", "max_output_tokens"], ["context", "max_output_tokens"], ["content_filter", "content_filter"]] as const) {
      server.script({ answer: answerOf(blocks, { finish }) });
      const whole = await client.responses.create(ASK);
      const streamed = await client.responses.stream({ ...ASK, stream: true }).finalResponse();
      for (const response of [whole, streamed]) expect(response).toMatchObject({ status: "incomplete", incomplete_details: { reason }, output_text: "and then" });
    }
  });

  it("sees a failure in the middle of a stream", async () => {
    server.script({ answer: answerOf([]), deltas: [{ type: "text", text: "half" }], failure: new GatewayFailure("truncated", "The model server broke off.") });
    const seen: OpenAI.Responses.ResponseStreamEvent[] = [];
    const read = async (): Promise<void> => {
      for await (const event of await client.responses.create({ ...ASK, stream: true })) seen.push(event);
    };
    await read().catch(() => undefined);
    expect(seen.at(-1)).toMatchObject({ type: "response.failed", response: { status: "failed", error: { code: "server_error", message: "The model server broke off." }, output: [{ status: "incomplete" }] } });
  });

  it("retries what may pass and nothing else", async () => {
    const patient = new OpenAI({ apiKey: "token", baseURL: `${server.url}/v1`, maxRetries: 1 });
    const answer = answerOf([{ type: "text", text: "ok" }]);
    for (const [kind, tries] of [["rate_limited", 2], ["overloaded", 2], ["upstream", 2], ["budget", 1], ["closed", 1], ["context_overflow", 1], ["invalid_request", 1]] as const) {
      server.script({ answer, failure: new GatewayFailure(kind, "no", { retryAfterMs: 1 }) }, { answer });
      const before = server.headers.length;
      const result = await patient.responses.create(ASK).catch((error: unknown) => error);
      expect([kind, server.headers.length - before]).toEqual([kind, tries]);
      if (tries === 1) expect(result).toBeInstanceOf(APIError);
    }
  });
});

/** As it comes back: a call without arguments has an empty object. */
function completed(block: AnswerBlock): AnswerBlock {
  return block.type === "tool_call" && block.kind === undefined && block.arguments.trim() === "" ? { ...block, arguments: `${block.arguments}{}` } : block;
}

/** Inference servers that lie, never end, or want the key for somebody else: nothing of it is taken for an answer's tokens, and nothing of it costs more than its call. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { gzipSync } from "node:zlib";
import { afterEach, describe, expect, it } from "vitest";
import { EMPTY_TURN, type TurnRequest } from "../../../src/gateway/conversation.ts";
import { connect, failureOf, generate, KEY } from "../../support/upstreams.ts";

const servers: Server[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

async function listen(answer: (request: IncomingMessage, response: ServerResponse) => void): Promise<string> {
  const server = createServer((request, response) => {
    request.resume();
    response.on("error", () => undefined);
    answer(request, response);
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const TURN: TurnRequest = { ...EMPTY_TURN, model: "m", messages: [{ role: "user", content: [{ type: "text", text: "hi" }] }] };
const json = (value: unknown) => (_request: IncomingMessage, response: ServerResponse): void => void response.writeHead(200, { "content-type": "application/json" }).end(typeof value === "string" ? value : JSON.stringify(value));
const completion = (choice: object, body: object = {}) => ({ id: "x", object: "chat.completion", choices: [{ index: 0, message: { role: "assistant", content: "ab" }, finish_reason: "stop", ...choice }], ...body });
const logprobs = (...values: unknown[]) => ({ content: values.map((logprob) => ({ token: "a", logprob })) });

describe("a hostile inference server", () => {
  it.each([301, 302, 303, 307, 308])("that sends us on with %i is not followed, and the key goes nowhere else", async (status) => {
    const elsewhere: IncomingMessage[] = [];
    const other = await listen((request, response) => {
      elsewhere.push(request);
      json(completion({}))(request, response);
    });
    const keys: (string | undefined)[] = [];
    const url = await listen((request, response) => {
      keys.push(request.headers.authorization);
      response.writeHead(status, { location: `${other}/v1/chat/completions` }).end(KEY);
    });
    for (const stream of [false, true]) {
      const failure = await failureOf(generate(connect(`vllm=${url}`), { ...TURN, stream }));
      expect(failure).toMatchObject({ kind: "upstream" });
      expect(failure.message).not.toMatch(/sk-secret|127\.0\.0\.1/);
    }
    expect([elsewhere.length, new Set(keys)]).toEqual([0, new Set([`Bearer ${KEY}`])]);
  });

  it.each<[what: string, choice: object, body: object]>([
    ["negative", { token_ids: [1, -2] }, { prompt_token_ids: [1] }],
    ["beyond 31 bits", { token_ids: [1, 2 ** 31] }, { prompt_token_ids: [1] }],
    ["huge", { token_ids: [1, 2 ** 53] }, { prompt_token_ids: [1] }],
    ["fractions", { token_ids: [1, 1.5] }, { prompt_token_ids: [1] }],
    ["texts", { token_ids: ["1", "2"] }, { prompt_token_ids: [1] }],
    ["an object", { token_ids: { length: 2, 0: 1, 1: 2 } }, { prompt_token_ids: [1] }],
    ["of a prompt that is none", { token_ids: [1, 2] }, { prompt_token_ids: [1, 2 ** 32 + 1] }],
    ["more than it counts", { token_ids: [1, 2, 3] }, { prompt_token_ids: [1], usage: { prompt_tokens: 1, completion_tokens: 2 } }],
    ["of another prompt than it counts", { token_ids: [1, 2] }, { prompt_token_ids: [1], usage: { prompt_tokens: 2, completion_tokens: 2 } }],
  ])("whose token ids are %s has none kept, and the call says why", async (_what, choice, body) => {
    const url = await listen(json(completion({ logprobs: logprobs(-1, -1), ...choice }, body)));
    const { tokens, notes, answer } = await generate(connect(`vllm=${url}`), TURN);
    expect([tokens, answer.blocks]).toEqual([null, [{ type: "text", text: "ab" }]]);
    expect(notes.join("\n")).toMatch(/not kept/);
  });

  it.each<[what: string, logprobs: unknown]>([
    ["texts", logprobs("-1", "-2")],
    ["null", logprobs(null, -1)],
    ["too few", logprobs(-1)],
    ["too many", logprobs(-1, -1, -1)],
    ["infinite", "INFINITE"],
  ])("whose logprobs are %s has none kept", async (_what, given) => {
    // 1e999 is JSON, and infinite.
    const text = JSON.stringify(completion({ token_ids: [1, 2], logprobs: given === "INFINITE" ? logprobs(-1, "INFINITE") : given }, { prompt_token_ids: [1] })).replace('"INFINITE"', "-1e999");
    const url = await listen(json(text));
    const { tokens, notes } = await generate(connect(`vllm=${url}`), TURN);
    expect(tokens).toMatchObject({ completionIds: [1, 2], logprobs: null });
    expect(notes.join("\n")).toMatch(/not kept/);
  });

  it.each<[what: string, usage: unknown]>([
    ["negative", { prompt_tokens: 1, completion_tokens: -1_000_000 }],
    ["no numbers", { prompt_tokens: "1", completion_tokens: {} }],
    ["fractions", { prompt_tokens: 1.5, completion_tokens: 0.5 }],
    ["infinite", "INFINITE"],
  ])("whose counts are %s is not believed: they are a budget's", async (_what, usage) => {
    const text = JSON.stringify(completion({}, { usage })).replace('"INFINITE"', '{"prompt_tokens":1e999,"completion_tokens":1e999}');
    const { answer } = await generate(connect(`vllm=${await listen(json(text))}`), TURN);
    expect(answer.usage).toBeNull();
  });

  it("whose bodies are no text, no JSON, packed, or NaN gives no answer", async () => {
    for (const body of [Buffer.from([0xff, 0xfe, 0x80]), Buffer.from('{"choices":[{"message":{"content":"a"},"logprobs":NaN}]}'), Buffer.from("[".repeat(100_000)), gzipSync(JSON.stringify(completion({})))]) {
      const url = await listen((_request, response) => void response.writeHead(200, { "content-type": "application/json", ...(body[0] === 0x1f ? { "content-encoding": "gzip" } : {}) }).end(body));
      expect(await failureOf(generate(connect(`vllm=${url}`), TURN))).toMatchObject({ kind: "upstream" });
    }
  });

  it("whose stream holds bytes that are no text is read with what stands for them, tokens untouched", async () => {
    const [before, after] = JSON.stringify({ choices: [{ index: 0, delta: { content: "a?b" }, token_ids: [7], logprobs: logprobs(-0.5), finish_reason: "stop" }], prompt_token_ids: [1] }).split("?");
    const url = await listen((_request, response) => void response.writeHead(200, { "content-type": "text/event-stream" }).end(Buffer.concat([Buffer.from(`data: ${before}`), Buffer.from([0xff, 0xc3]), Buffer.from(`${after}\n\n`)])));
    const { answer, tokens } = await generate(connect(`vllm=${url}`), { ...TURN, stream: true });
    expect(answer.blocks).toEqual([{ type: "text", text: "a��b" }]);
    expect(tokens).toMatchObject({ promptIds: [1], completionIds: [7], logprobs: [-0.5] });
  });

  it("whose headers or events have no end is given up", async () => {
    const headers = await listen((_request, response) => {
      response.socket?.write("HTTP/1.1 200 OK\r\n");
      const more = (): void => {
        if (response.socket?.writable === true) response.socket.write(`x-${"y".repeat(1000)}: ${"z".repeat(1000)}\r\n`, () => setImmediate(more));
      };
      more();
    });
    expect(await failureOf(generate(connect(`vllm=${headers}`), TURN))).toMatchObject({ kind: "upstream" });
    let sent = 0;
    const piece = Buffer.alloc(1 << 20, "x");
    const event = await listen((_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" }).write("data: ");
      const more = (): void => {
        sent += piece.length;
        if (!response.destroyed) response.write(piece, () => setImmediate(more));
      };
      more();
    });
    expect(await failureOf(generate(connect(`vllm=${event}`), { ...TURN, stream: true }))).toMatchObject({ kind: "upstream", message: expect.stringContaining("an event of more than") as unknown });
    expect(sent).toBeLessThan(1 << 28);
  });

  it("that tells of windows that are none is not believed", async () => {
    const models = { data: [-1, 0, 1.5, "9"].map((size, at) => ({ id: `m${at}`, max_model_len: size })).concat([{ id: "good", max_model_len: 4096 }]) };
    const url = await listen((request, response) => json(request.url?.endsWith("/models") === true ? models : completion({}))(request, response));
    const { models: found } = await connect(`vllm=${url}`).probe("good", new AbortController().signal);
    expect(found?.map(({ contextTokens }) => contextTokens)).toEqual([null, null, null, null, 4096]);
  });
});

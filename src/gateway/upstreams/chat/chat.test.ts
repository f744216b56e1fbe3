import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { describe, expect, it } from "vitest";
import type { Reply } from "../../../../test/support/engine/index.ts";
import { BASH, turn } from "../../../../test/support/turns.ts";
import { connect, failureOf, generate, KEY, serve } from "../../../../test/support/upstreams.ts";
import type { Delta } from "../../conversation.ts";

describe.each([false, true])("an answer, streamed: %s", (stream) => {
  it.each<Reply>([
    { content: "Hallo 北京 😀, wie geht's?" },
    { reasoning: "let me think 😀", content: "done" },
    { reasoning: "only that" },
    { calls: [{ command: "ls -la" }] },
    { reasoning: "r", content: "I will look.", calls: [{ command: "ls" }, { name: "edit", arguments: '{"path": "/é北", "text": "a\\nb"}' }, { command: "pwd" }] },
    { content: "" },
  ])("has its blocks and its exact tokens: %j", async (reply) => {
    const { engine, upstream } = await serve([reply], { drift: 0.3 });
    const { answer, tokens, notes } = await generate(upstream, turn({ stream, tools: [BASH] }));
    expect(answer.blocks).toEqual([
      ...(reply.reasoning === undefined ? [] : [{ type: "reasoning", text: reply.reasoning, signature: null }]),
      ...((reply.content ?? "") === "" ? [] : [{ type: "text", text: reply.content }]),
      ...(reply.calls ?? []).map((call, index) => ({ type: "tool_call", id: `call-0-${index}`, name: call.name ?? "bash", arguments: call.arguments ?? `{"command": ${JSON.stringify(call.command)}}` })),
    ]);
    expect(tokens).toEqual({ ...engine.samples[0], versions: [] });
    expect(answer.finish).toBe(reply.calls === undefined ? "stop" : "tool_calls");
    expect(answer.usage).toMatchObject({ promptTokens: engine.samples[0]?.promptIds.length, completionTokens: engine.samples[0]?.completionIds.length });
    expect(notes).toEqual([]);
  });
});

describe.each([false, true])("what is no answer, streamed: %s", (stream) => {
  it.each<readonly [string, Reply, string]>([
    ["429", { status: 429, headers: { "retry-after": "2" }, raw: "slow down" }, "rate_limited"],
    ["503", { status: 503, raw: "<html>" }, "overloaded"],
    ["500", { status: 500, raw: "" }, "upstream"],
    ["504", { status: 504 }, "timeout"],
    ["404", { status: 404, raw: '{"detail":"no such model"}' }, "not_found"],
    ["a redirect", { status: 302, headers: { location: "http://10.0.0.1/" }, raw: "" }, "upstream"],
    ["a refusal", { status: 400, raw: '{"error":{"message":"tools: unsupported"}}' }, "refused_by_upstream"],
    ["a connection that breaks after the headers", { content: "fine", breakOff: "headers" }, "upstream"],
    ["garbage", { raw: "<html>502</html>" }, "upstream"],
    ["JSON cut short, in a body that ends well", { raw: '{"choices":[{"message":{"content":"fi' }, "upstream"],
    ["JSON that is no completion", { raw: '{"choices":[]}' }, "upstream"],
    ["null", { raw: "null" }, "upstream"],
    ["nothing", { raw: "" }, "upstream"],
    ["an error object with status 200", { raw: '{"error":{"message":"CUDA out of memory","code":500}}' }, "upstream"],
    ["a generation that the server aborted", { content: "hal", finishReason: "abort" }, "upstream"],
  ])("%s", async (_name, reply, kind) => {
    const { upstream } = await serve([reply]);
    const { kind: actual, details, message } = await failureOf(generate(upstream, turn({ stream })));
    expect({ actual, message }).toMatchObject({ actual: kind });
    if (kind === "rate_limited") expect(details.retryAfterMs).toBe(2000);
  });

  it("is tried once more when a connection breaks before any answer", async () => {
    const { engine, upstream } = await serve([[{ breakOff: "connection" }, { content: "fine" }]]);
    expect((await generate(upstream, turn({ stream }))).answer.blocks).toEqual([{ type: "text", text: "fine" }]);
    expect(engine.requests.length).toBe(2);
    const { upstream: dead, engine: deadEngine } = await serve([{ breakOff: "connection" }]);
    expect(await failureOf(generate(dead, turn({ stream })))).toMatchObject({ kind: "upstream" });
    expect(deadEngine.requests.length).toBe(2);
  });
});

describe("streams that end too early", () => {
  it.each<readonly [string, Reply]>([
    ["in the middle of the body", { content: "one two three four five six", breakOff: "body" }],
    ["without a reason", { content: "one two three", without: "finish" }],
    ["without a reason and without [DONE]", { content: "one two three", without: "both" }],
    ["inside a line", { raw: 'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\ndata: {"choices":[{"index":0,"delta":{"con', headers: { "content-type": "text/event-stream" } }],
    ["after a tool call whose arguments are whole", { calls: [{ command: "ls" }], without: "both" }],
  ])("%s are truncated, never an answer", async (_name, reply) => {
    const { upstream } = await serve([reply]);
    expect(await failureOf(generate(upstream, turn({ stream: true })))).toMatchObject({ kind: "truncated" });
  });

  it("are complete with a reason and no [DONE]", async () => {
    const { upstream, engine } = await serve([{ content: "one two three", without: "done" }]);
    const { answer, tokens } = await generate(upstream, turn({ stream: true }));
    expect(answer).toMatchObject({ blocks: [{ type: "text", text: "one two three" }], finish: "stop" });
    expect(tokens?.completionIds).toEqual(engine.samples[0]?.completionIds);
  });

  it("tell of an error that the server put into them", async () => {
    const { upstream } = await serve([{ content: "one two three four", streamError: { error: { message: "CUDA error", type: "InternalServerError", code: 500 } } }]);
    expect(await failureOf(generate(upstream, turn({ stream: true })))).toMatchObject({ kind: "upstream", message: expect.stringContaining("CUDA error") as string });
    const { upstream: named } = await serve([{ raw: 'event: error\ndata: {"message":"maximum context length is 10 tokens","code":400}\n\n', headers: { "content-type": "text/event-stream" } }]);
    expect(await failureOf(generate(named, turn({ stream: true })))).toMatchObject({ kind: "context_overflow", details: { contextTokens: 10 } });
  });
});

describe("servers with a mind of their own", () => {
  const words = "one two three";

  it("stream although nobody asked, and do not although somebody did", async () => {
    const { upstream, engine } = await serve([{ content: words, calls: [{ command: "ls" }], ignoreStream: true }]);
    for (const stream of [false, true]) {
      const { answer, tokens } = await generate(upstream, turn({ stream }));
      expect(answer.blocks).toMatchObject([{ type: "text", text: words }, { type: "tool_call", name: "bash" }]);
      expect(tokens?.completionIds).toEqual(engine.samples.at(-1)?.completionIds);
    }
  });

  it("refuse what they do not know: they are asked with less, once, and the record says so", async () => {
    const { upstream, engine } = await serve([{ content: words }], { flavour: "openai" });
    const first = await generate(upstream, turn({ stream: true }));
    expect(first).toMatchObject({ tokens: null, notes: [expect.stringContaining("asked again without return_token_ids"), expect.stringContaining("return_prompt_token_ids"), expect.stringContaining("return_meta_info")] });
    const tries = engine.samples.length;
    expect((await generate(upstream, turn({ stream: true }))).notes).toEqual([]);
    expect(engine.samples.length).toBe(tries + 1);
    expect(engine.requests.at(-1)?.body).toMatchObject({ logprobs: true, stream_options: { include_usage: true } });
  });

  it("are not asked with less for a request that is wrong in itself", async () => {
    const { upstream, engine } = await serve([{ content: words }, { status: 400, raw: '{"error":{"message":"bad schema"}}' }]);
    await generate(upstream, turn());
    const second = turn({ messages: [{ role: "user", content: [] }, { role: "assistant", content: [{ type: "text", text: words }] }, { role: "user", content: [] }] });
    expect(await failureOf(generate(upstream, second))).toMatchObject({ kind: "refused_by_upstream", message: expect.stringContaining("bad schema") as string });
    expect(engine.requests.length).toBe(2);
  });

  it("may learn only later what they do not know", async () => {
    const { upstream, engine } = await serve(({ body }) => ("reasoning_effort" in body ? { status: 400, raw: '{"error":{"message":"bad request"}}' } : { content: words }));
    await generate(upstream, turn());
    const request = turn({ reasoning: { enabled: null, effort: "high", budgetTokens: null } });
    const { tokens, notes } = await generate(upstream, request);
    expect(tokens?.completionIds).toEqual(engine.samples[1]?.completionIds);
    expect(notes).toEqual([expect.stringContaining("without reasoning_effort")]);
    expect((await generate(upstream, request)).notes).toEqual([]);
    expect(engine.requests.length).toBe(4);
  });

  it("refuse a value, and lose nobody else the field", async () => {
    const { upstream, engine } = await serve(({ body }) => (body["reasoning_effort"] === "banana" ? { status: 400, raw: '{"error":{"message":"reasoning_effort: no banana"}}' } : { content: words }));
    const asking = (effort: string) => generate(upstream, turn({ reasoning: { enabled: null, effort, budgetTokens: null } }));
    expect((await asking("banana")).notes).toEqual([expect.stringContaining("without reasoning_effort")]);
    for (const effort of ["high", "banana", "low"]) expect((await asking(effort)).notes).toEqual([]);
    expect(engine.requests.map(({ body }) => body["reasoning_effort"])).toEqual(["banana", undefined, "high", undefined, "low"]);
  });

  it("sample what is no text: its tokens are exact all the same", async () => {
    const { upstream, engine } = await serve(() => ({ randomTokens: 300 }));
    for (const stream of [false, true]) {
      const { tokens, answer } = await generate(upstream, turn({ stream }));
      expect(tokens).toMatchObject(engine.samples.at(-1) ?? {});
      expect(answer.blocks).toMatchObject([{ type: "text", text: expect.stringContaining("\uFFFD") as string }]);
    }
  });

  it("know the limit by its newer name alone", async () => {
    const { upstream, engine } = await serve((request) =>
      "max_tokens" in request.body ? { status: 400, raw: `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."}}` } : { content: words },
    );
    await generate(upstream, turn({ sampling: { maxTokens: 2 } }));
    const { answer } = await generate(upstream, turn({ sampling: { maxTokens: 2 } }));
    expect(answer.finish).toBe("length");
    expect(engine.requests.map(({ body }) => body["max_completion_tokens"])).toEqual([undefined, 2, 2]);
  });

  it("may be slow, one byte at a time, within characters and lines", async () => {
    const raw = `: hello\r\n\r\ndata: {"choices":[{"index":0,"delta":{"content":"北😀"},"finish_reason":"stop"}]}\r\n\r\ndata:[DONE]\r\n\r\n`;
    const server = createServer((_request, response) => {
      response.socket?.setNoDelay(true);
      response.writeHead(200, { "content-type": "text/event-stream" });
      const bytes = [...Buffer.from(raw)];
      const next = (): void => {
        const byte = bytes.shift();
        if (byte === undefined) response.end();
        else response.write(Buffer.of(byte), () => setImmediate(next));
      };
      next();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const upstream = connect(`openai=http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    expect((await generate(upstream, turn({ stream: true }))).answer.blocks).toEqual([{ type: "text", text: "北😀" }]);
    server.closeAllConnections();
    server.close();
  });

  it("may answer hugely, and no more than that", async () => {
    const { upstream } = await serve([{ bytes: 66 << 20 }]);
    expect(await failureOf(generate(upstream, turn()))).toMatchObject({ kind: "upstream", message: expect.stringContaining("larger than") as string });
    const { upstream: wordy } = await serve([{ status: 500, bytes: 66 << 20 }]);
    expect(await failureOf(generate(wordy, turn()))).toMatchObject({ kind: "upstream", message: expect.stringContaining("HTTP 500") as string });
  });

  it("may fall silent in the middle of an answer", async () => {
    const { upstream } = await serve([{ content: "one two three four", breakOff: "stall" }], { stallMs: 1_000 });
    expect(await failureOf(generate(upstream, turn({ stream: true })))).toMatchObject({ kind: "timeout", message: expect.stringContaining("silent") as string });
  });
});

describe("the end of the context", () => {
  it.each(["vllm", "sglang", "openai"] as const)("is recognised in the words of %s", async (flavour) => {
    const { upstream } = await serve([{ content: "x" }], { flavour, contextTokens: 5 });
    expect(await failureOf(generate(upstream, turn()))).toMatchObject({ kind: "context_overflow", details: { contextTokens: 5, upstreamStatus: 400 } });
  });

  it("leaves as much of the limit as there is room for", async () => {
    const { upstream, engine } = await serve(() => ({ content: "word ".repeat(500) }), { contextTokens: 100 });
    const { answer, notes, tokens } = await generate(upstream, turn({ sampling: { maxTokens: 99 } }));
    expect(notes).toEqual([expect.stringContaining("does not fit the context")]);
    expect(tokens?.completionIds.length).toBe(100 - (engine.samples[0]?.promptIds.length ?? 0));
    expect(answer.finish).toBe("length");
    await upstream.probe("test-model", new AbortController().signal);
    // Known to be more than the context: no limit is asked for, and reaching it is the context's end.
    const whole = await generate(upstream, turn({ sampling: { maxTokens: 128_000 } }));
    expect(whole.notes).toEqual([]);
    expect(whole.answer.finish).toBe("context");
    expect(engine.requests.at(-1)?.body["max_tokens"]).toBeUndefined();
  });
});

describe("what stays out of the sandbox", () => {
  it("is the key, also when the server echoes it, and the host's addresses", async () => {
    const { upstream, engine } = await serve([{ content: "x" }], { apiKey: "another-key" });
    const refused = await failureOf(generate(upstream, turn()));
    expect(refused).toMatchObject({ kind: "refused_by_upstream", details: { upstreamStatus: 401 } });
    expect(refused.message).not.toContain(KEY);
    const { upstream: chatty } = await serve((request) => ({ status: 500, raw: `backend http://10.1.2.3:9000/x at ${engine.root.slice(7)} and [fe80::1]:80 did not like ${String(request.headers["authorization"])}` }));
    const { message } = await failureOf(generate(chatty, turn()));
    expect(message).not.toContain(KEY);
    expect(message).not.toMatch(/\d+\.\d+\.\d+\.\d+|fe80/);
    const gone = await failureOf(generate(connect("vllm=http://127.0.0.1:1"), turn()));
    expect(gone).toMatchObject({ kind: "upstream", message: "The model server is not there (ECONNREFUSED)." });
  });
});

describe("a harness that hangs up", () => {
  it.each(["vllm", "sglang"] as const)("ends the generation on %s", async (flavour) => {
    const { upstream, engine } = await serve(() => ({ content: "word ".repeat(2_000), trickleMs: 5 }), { flavour });
    const abort = new AbortController();
    const reason = new Error("the harness hung up");
    const deltas: Delta[] = [];
    const job = upstream.generate({ request: turn({ stream: true }), requestId: "gone", onDelta: (delta) => (deltas.push(delta), abort.abort(reason)), history: null, signal: abort.signal });
    await expect(job).rejects.toBe(reason);
    await expect.poll(() => engine.hungUp, { timeout: 30_000 }).toBe(1);
    if (flavour === "sglang") await expect.poll(() => engine.aborted, { timeout: 30_000 }).toEqual(["gone"]);
    expect(engine.requests[0]?.body[flavour === "vllm" ? "request_id" : "rid"]).toBe("gone");
    await expect(upstream.generate({ request: turn(), requestId: "late", onDelta: null, history: null, signal: abort.signal })).rejects.toBe(reason);
    expect(engine.requests.length).toBe(1);
  });

  it("slows the engine down while it does not read, and loses nothing", async () => {
    let written = 0;
    const event = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "x".repeat(1000) } }] })}\n\n`;
    const server = createServer((_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const more = (): void => {
        while (written < 40_000) {
          written++;
          if (!response.write(event)) return void response.once("drain", more);
        }
        response.end('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n');
      };
      more();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    // Silence that the reader asked for is none of the server's.
    const upstream = connect(`openai=http://127.0.0.1:${(server.address() as AddressInfo).port}`, { stallMs: 1_000 });
    let goOn = (): void => undefined;
    const gate = new Promise<void>((resolve) => (goOn = resolve));
    let got = 0;
    const job = upstream.generate({ request: turn({ stream: true }), requestId: "slow", onDelta: ({ type, ...delta }) => ((got += type === "text" && "text" in delta ? delta.text.length : 0), gate), history: null, signal: new AbortController().signal });
    // Written until every buffer on the way is full, and then no more.
    let before = -1;
    await expect.poll(() => written > 0 && before === (before = written), { interval: 500, timeout: 30_000 }).toBe(true);
    await new Promise((resolve) => setTimeout(resolve, 3_000));
    expect(written).toBeLessThan(30_000);
    expect(got).toBe(1000);
    goOn();
    expect((await job).answer.blocks).toMatchObject([{ type: "text" }]);
    expect(got).toBe(40_000_000);
    server.closeAllConnections();
    server.close();
  });
});

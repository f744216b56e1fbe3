import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";
import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { LIMITS } from "../../../src/core/limits.ts";
import type { GatewaySession } from "../../../src/gateway/session.ts";
import { connectFrom, gate, generation, newSandbox, openBench, readToEnd, says, until, type Bench } from "../../support/gateway.ts";

let bench: Bench;
beforeAll(async () => {
  bench = await openBench();
});
afterAll(() => bench.close());

const BODY = { model: "m", messages: [{ role: "user", content: "hello" }] };
const CHAT = "/v1/chat/completions";

const post = (path: string, body: unknown, headers: Readonly<Record<string, string>> = {}): Promise<Response> =>
  fetch(`${bench.url}${path}`, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: body instanceof Uint8Array ? Buffer.from(body) : JSON.stringify(body) });

const bearer = (session: GatewaySession): Record<string, string> => ({ authorization: `Bearer ${session.token}` });

/** One request as a machine sends it, on a connection of its own. */
async function fromMachine(sandbox: string, path: string, headers: Readonly<Record<string, string>> = {}, method = "POST"): Promise<{ readonly status: number; readonly text: string }> {
  const socket = connectFrom(bench.gateway, `MW1 ${sandbox} 9000\n`);
  const body = method === "POST" ? JSON.stringify(BODY) : "";
  const lines = [`${method} ${path} HTTP/1.1`, "host: 127.0.0.1:9000", "connection: close", `content-length: ${body.length}`, ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`)];
  socket.write(`${lines.join("\r\n")}\r\n\r\n${body}`);
  const text = await readToEnd(socket);
  return { status: Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]), text };
}

describe("who is asking", () => {
  it("is known by machine, path or token, wherever vendors put the key, and they must not contradict each other", async () => {
    const [mine, theirs] = [newSandbox(), newSandbox()];
    const own = (await bench.open(says("own"), { sandbox: mine })).session;
    const other = (await bench.open(says("other"), { sandbox: theirs })).session;
    const free = (await bench.open(says("free"))).session;
    const statuses = async (sandbox: string, cases: readonly (readonly [path: string, headers: Record<string, string>])[]): Promise<number[]> => {
      const found = [];
      for (const [path, headers] of cases) found.push((await fromMachine(sandbox, path, headers)).status);
      return found;
    };
    // From the machine: its place is enough; a key that is none of ours is a placeholder.
    expect(await statuses(mine, [[CHAT, {}], ["/chat/completions", {}], [`${own.path}${CHAT}`, {}], [`${own.path}${CHAT}`, bearer(own)], [CHAT, { "x-api-key": "placeholder" }], [CHAT, { "x-goog-api-key": own.token }], [`${CHAT}?key=${own.token}`, {}]])).toEqual(
      Array.from({ length: 7 }, () => 200),
    );
    // Somebody else's path or token, both at once, or one that never was.
    expect(await statuses(mine, [[`${other.path}${CHAT}`, {}], [CHAT, bearer(other)], [`${own.path}${CHAT}`, bearer(other)], [`${own.path}${CHAT}`, bearer(free)], [CHAT, { authorization: `Bearer sk-mw-${"0".repeat(32)}` }], ["/s/ses00000000000000000000/v1/chat/completions", {}], [CHAT, { authorization: `Bearer ${own.token}`, "x-api-key": other.token }]])).toEqual(
      Array.from({ length: 7 }, () => 401),
    );
    expect(await statuses(newSandbox(), [[CHAT, {}], [`${free.path}${CHAT}`, {}], [CHAT, bearer(own)]])).toEqual([401, 401, 401]);
    // A session of no machine is reached with its token from anywhere.
    expect(await statuses(newSandbox(), [[CHAT, bearer(free)]])).toEqual([200]);
    // From the host: nothing without a token.
    const fromHost = [
      [await post(`${own.path}${CHAT}`, BODY), 401],
      [await post(CHAT, BODY), 401],
      [await post(CHAT, BODY, { authorization: `Bearer ${own.id}` }), 401],
      [await post(CHAT, BODY, bearer(own)), 200],
      [await post(`${own.path}${CHAT}`, BODY, bearer(own)), 200],
      [await post(`${own.path}${CHAT}`, BODY, bearer(other)), 401],
      [await post(`/s/${own.token}${CHAT}`, BODY), 200],
    ] as const;
    for (const [response, status] of fromHost) {
      expect(response.status).toBe(status);
      await response.arrayBuffer();
    }
    await Promise.all([own, other, free].map((session) => session.close()));
    // Over: for ever, by every name.
    expect(await statuses(mine, [[CHAT, {}], [`${own.path}${CHAT}`, {}], [CHAT, bearer(own)]])).toEqual([410, 410, 410]);
    expect((await post(CHAT, BODY, bearer(own))).status).toBe(410);
  });

  it("stays apart among two hundred machines that all ask at once", async () => {
    const worlds = await Promise.all(
      Array.from({ length: 200 }, async (_, n) => {
        const sandbox = newSandbox();
        return { n, sandbox, ...(await bench.open((job, number) => says(`world ${n} `)(job, number), { sandbox })) };
      }),
    );
    const heard = await Promise.all(worlds.flatMap(({ n, sandbox }) => [1, 2, 3].map(async (call) => ({ n, text: (await fromMachine(sandbox, `/v1/chat/completions?call=${call}`)).text }))));
    expect(heard.filter(({ n, text }) => !text.includes(`"world ${n} "`))).toEqual([]);
    for (const { n, session, calls } of worlds) {
      expect(await session.close()).toMatchObject({ complete: 3, failed: 0 });
      expect((await calls()).map(({ answer }) => answer?.blocks)).toEqual(Array.from({ length: 3 }, () => [{ type: "text", text: `world ${n} ` }]));
    }
  });

  it("is asked again when one machine has several sessions", async () => {
    const sandbox = newSandbox();
    const first = (await bench.open(says("first"), { sandbox })).session;
    const second = (await bench.open(says("second"), { sandbox })).session;
    expect((await fromMachine(sandbox, CHAT)).status).toBe(401);
    expect((await fromMachine(sandbox, `${second.path}${CHAT}`)).text).toContain("second");
    await second.close();
    expect((await fromMachine(sandbox, CHAT)).text).toContain("first");
    await first.close();
  });

  it("is nobody for a connection that does not begin as the forwarder begins it", async () => {
    for (const preface of ["GET / HTTP/1.1\r\n\r\n", "MW2 sbx0 1\n", "MW1 ../../etc 1\n", `MW1 ${newSandbox()} 99999999\n`, "MW1", "\n", `MW1 ${"x".repeat(10_000)}\n`, randomBytes(4096).toString("latin1"), `MW1 ${newSandbox()} 80 80\n`]) {
      const socket = connectFrom(bench.gateway, preface);
      socket.end();
      expect(await readToEnd(socket)).toBe("");
    }
    // The same, one byte at a time, and with the request in the same packet.
    const sandbox = newSandbox();
    const { session } = await bench.open(says("slowly"), { sandbox });
    const text = `MW1 ${sandbox} 9000\nPOST ${CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: ${JSON.stringify(BODY).length}\r\n\r\n${JSON.stringify(BODY)}`;
    const whole = connectFrom(bench.gateway, text);
    expect(await readToEnd(whole)).toContain("slowly");
    const slow = connectFrom(bench.gateway, "");
    const answer = readToEnd(slow);
    for (const byte of text) {
      slow.write(byte);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(await answer).toContain("slowly");
    await session.close();
  });
});

describe("requests", () => {
  it("are answered to the vendors' own clients, which see failures as theirs", async () => {
    const { session, calls } = await bench.open(says("Hello there"));
    const openai = new OpenAI({ baseURL: `${bench.url}${session.path}/v1`, apiKey: session.token });
    const anthropic = new Anthropic({ baseURL: `${bench.url}${session.path}`, apiKey: session.token });
    expect((await openai.chat.completions.create({ model: "gpt-x", messages: [{ role: "user", content: "hi" }] })).choices[0]?.message.content).toBe("Hello there");
    let streamed = "";
    for await (const chunk of await openai.chat.completions.create({ model: "gpt-x", stream: true, messages: [{ role: "user", content: "hi" }] })) streamed += chunk.choices[0]?.delta.content ?? "";
    expect(streamed).toBe("Hello there");
    const message = await anthropic.messages.create({ model: "claude-x", max_tokens: 10, messages: [{ role: "user", content: "hi" }] });
    expect(message.content).toMatchObject([{ type: "text", text: "Hello there" }]);
    expect(await anthropic.messages.stream({ model: "claude-x", max_tokens: 10, messages: [{ role: "user", content: "hi" }] }).finalText()).toBe("Hello there");
    expect(await anthropic.messages.countTokens({ model: "claude-x", messages: [{ role: "user", content: "hi" }] })).toMatchObject({ input_tokens: 7 });
    expect((await openai.models.list()).data.map(({ id }) => id)).toEqual(["upstream-model"]);
    expect((await anthropic.models.list()).data.map(({ id }) => id)).toEqual(["upstream-model"]);
    expect(bench.jobs.slice(-4).map(({ request }) => [request.model, request.sampling.maxTokens])).toEqual([["upstream-model", null], ["upstream-model", null], ["upstream-model", 10], ["upstream-model", 10]]);
    expect((await calls()).map(({ number, dialect, status }) => [number, dialect, status])).toEqual([[1, "openai-chat", "complete"], [2, "openai-chat", "complete"], [3, "anthropic", "complete"], [4, "anthropic", "complete"]]);
    await session.close();
    await expect(openai.chat.completions.create({ model: "gpt-x", messages: [] })).rejects.toMatchObject({ status: 410 });
    await expect(anthropic.messages.create({ model: "claude-x", max_tokens: 10, messages: [{ role: "user", content: "hi" }] })).rejects.toMatchObject({ status: 410 });
  });

  it("may be compressed, and may not be larger than the limit, compressed or not", async () => {
    const { session } = await bench.open(says("fine"));
    const bytes = Buffer.from(JSON.stringify(BODY));
    for (const [encoding, body] of [["gzip", gzipSync(bytes)], ["deflate", deflateSync(bytes)], ["br", brotliCompressSync(bytes)], ["zstd", storedZstd(bytes)]] as const) {
      const response = await post(CHAT, body, { ...bearer(session), "content-encoding": encoding });
      expect([encoding, response.status]).toEqual([encoding, 200]);
      await response.arrayBuffer();
    }
    const bomb = gzipSync(Buffer.alloc(LIMITS.gatewayBodyBytes + 1, "["));
    const hostile = [
      [bomb, { "content-encoding": "gzip" }, 413],
      [Buffer.alloc(LIMITS.gatewayBodyBytes + 1, " "), {}, 413],
      [bytes, { "content-encoding": "gzip" }, 400],
      [gzipSync(bytes).subarray(0, 20), { "content-encoding": "gzip" }, 400],
      [bytes, { "content-encoding": "lzma" }, 400],
      [Buffer.from("{"), {}, 400],
      [Buffer.from([0x22, 0xff, 0x22]), {}, 400],
      [Buffer.from("[".repeat(100_000)), {}, 400],
      [Buffer.from("null"), {}, 400],
      [Buffer.from(`{"messages":[${"1,".repeat(LIMITS.requestValues)}1]}`), {}, 400],
      [Buffer.alloc(0), {}, 400],
    ] as const;
    for (const [body, headers, status] of hostile) {
      const response = await post(CHAT, body, { ...bearer(session), ...headers });
      expect([body.length, response.status]).toEqual([body.length, status]);
      expect(await response.json()).toMatchObject({ error: { message: expect.any(String) as unknown } });
    }
    await session.close();
  });

  it("may want one JSON array for a stream, or the tokens of an input counted", async () => {
    const { session } = await bench.open(says("Hello there"));
    const hi = { contents: [{ parts: [{ text: "hi" }] }] };
    const streamed = await post(`${session.path}/v1beta/models/m:streamGenerateContent`, hi, bearer(session));
    expect(streamed.headers.get("content-type")).toBe("application/json");
    const pieces = (await streamed.json()) as { candidates: { content: { parts: { text: string }[] } }[] }[];
    expect(pieces.map(({ candidates }) => candidates[0]?.content.parts[0]?.text)).toEqual(["Hello ", "there", ""]);
    const counts = [
      await post(`${session.path}/v1beta/models/m:countTokens`, { generateContentRequest: { model: "models/m", ...hi } }, bearer(session)),
      await post(`${session.path}/v1/responses/input_tokens`, { model: "m", input: "hi" }, bearer(session)),
    ];
    expect(await Promise.all(counts.map((response) => response.json()))).toEqual([{ totalTokens: 7 }, { object: "response.input_tokens", input_tokens: 7 }]);
    await session.close();
  });

  it("that name nothing get an answer in the shape of their dialect", async () => {
    const { session } = await bench.open(says("x"));
    expect((await fetch(`${bench.url}/`)).status).toBe(200);
    expect((await fetch(`${bench.url}/api/hello`, { method: "HEAD" })).status).toBe(200);
    const paths = ["/v1/embeddings", "/v1/messages/batches", "/../../etc/passwd", "/%2e%2e/", `${session.path}/s/${session.id}${CHAT}`, "/s/", "/s//v1/models", "/v1/models/a%zz:generateContent", "/v1beta/models/m:embedContent"];
    for (const path of paths) {
      const response = await post(path, BODY, bearer(session));
      expect([path, response.status]).toEqual([path, 404]);
      const { error } = (await response.json()) as { error: { message: string } };
      expect(error.message).not.toBe("");
    }
    expect(await (await post("/v1/messages/batches", BODY, bearer(session))).json()).toMatchObject({ type: "error", error: { type: "not_found_error" } });
    for (const method of ["PUT", "DELETE", "OPTIONS"]) expect((await fetch(`${bench.url}${CHAT}`, { method, headers: bearer(session) })).status).toBe(404);
    await session.close();
  });

  it("for a WebSocket, broken ones and those of web pages are turned away at once", async () => {
    const port = Number(new URL(bench.url).port);
    const raw = async (text: string): Promise<string> => {
      const socket = connect(port, "127.0.0.1");
      socket.on("error", () => undefined);
      socket.write(text);
      return readToEnd(socket);
    };
    expect(await raw("GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: x\r\n\r\n")).toMatch(/^HTTP\/1\.1 404/);
    expect(await raw("CONNECT example.com:443 HTTP/1.1\r\nhost: localhost\r\n\r\n")).toMatch(/^HTTP\/1\.1 404/);
    expect(await raw("no http at all\r\n\r\n")).toMatch(/^HTTP\/1\.1 400/);
    expect(await raw(`GET / HTTP/1.1\r\nx: ${"y".repeat(LIMITS.gatewayHeaderBytes)}\r\n\r\n`)).toMatch(/^HTTP\/1\.1 431/);
    expect(await raw("GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")).toMatch(/^HTTP\/1\.1 403/);
    expect(await raw("GET / HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\nconnection: close\r\n\r\n")).toMatch(/^HTTP\/1\.1 403/);
  });

  it("of one session take a share of the memory, and no more; a flood of bad ones is no longer read", async () => {
    const answers = gate();
    const greedy = await bench.open(async (job, number) => {
      await answers.passed;
      return says("large")(job, number);
    });
    const modest = await bench.open(says("small"));
    const large = (n: number): unknown => ({ ...BODY, user: String(n), messages: [{ role: "user", content: "x".repeat(LIMITS.gatewayBodyBytes - 1000) }] });
    const fitting = Math.floor(LIMITS.sessionBufferedBytes / LIMITS.gatewayBodyBytes);
    const waiting = Array.from({ length: fitting }, (_, n) => post(CHAT, large(n), bearer(greedy.session)));
    await until(() => greedy.session.inFlight === fitting);
    const refused = await post(CHAT, large(fitting), bearer(greedy.session));
    expect(refused.status).toBeGreaterThanOrEqual(429);
    await refused.text();
    expect((await post(CHAT, BODY, bearer(modest.session))).status).toBe(200);
    answers.open();
    expect((await Promise.all(waiting)).map(({ status }) => status)).toEqual(waiting.map(() => 200));
    expect((await post(CHAT, large(fitting), bearer(greedy.session))).status).toBe(200);
    await Promise.all([greedy.session.close(), modest.session.close()]);

    const flood = await bench.open(says("x"));
    for (let n = 0; n < LIMITS.refusalsRead; n++) await (await post(CHAT, { messages: n }, bearer(flood.session))).arrayBuffer();
    const unread = await post(CHAT, BODY, bearer(flood.session));
    expect(unread.status).toBeGreaterThanOrEqual(400);
    expect((await flood.calls()).length).toBe(LIMITS.refusalsRecorded);
    await flood.session.close();
  });

  it("that trickle in are given up, on the socket of machines as well as on TCP", async () => {
    for (const port of [null, 0]) {
      const slow = await openBench({ port, headersMs: 3_000, bodyMs: 4_000 });
      const sandbox = newSandbox();
      const { session } = await slow.open(says("x"), { sandbox });
      const body = JSON.stringify(BODY);
      const head = `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${session.token}\r\ncontent-length: ${body.length}\r\n\r\n`;
      const begun = port === null ? ["MW1 ", `MW1 ${sandbox} 1\n`, `MW1 ${sandbox} 1\nPOST ${CHAT} HT`, `MW1 ${sandbox} 1\n${head}${body.slice(0, 10)}`] : [`POST ${CHAT} HT`, `${head}${body.slice(0, 10)}`];
      const ends = begun.map((text) => {
        const socket = port === null ? connectFrom(slow.gateway, text) : connect(Number(new URL(slow.url).port), "127.0.0.1");
        socket.on("error", () => undefined);
        if (port !== null) socket.write(text);
        return readToEnd(socket);
      });
      // They end by themselves: nothing more is sent.
      for (const end of ends) expect(await end).toMatch(/^$|^HTTP\/1\.1 408/);
      // One that is quick enough is answered.
      const quick = port === null ? connectFrom(slow.gateway, `MW1 ${sandbox} 1\n${head.replace("host:", "connection: close\r\nhost:")}${body}`) : null;
      if (quick !== null) expect(await readToEnd(quick)).toMatch(/^HTTP\/1\.1 200/);
      await slow.close();
    }
  });

  it("from a client that does not read hold up their own engine, and nobody else's", async () => {
    let sent = 0;
    const piece = "x".repeat(64 * 1024);
    const flood = await bench.open(async ({ onDelta, signal }) => {
      for (; sent < 4000 && !signal.aborted; sent++) await onDelta?.({ type: "text", text: piece });
      if (signal.aborted) throw signal.reason;
      return generation([{ type: "text", text: "flooded" }]);
    });
    const quick = await bench.open(says("quick"));
    const socket = connect(Number(new URL(bench.url).port), "127.0.0.1");
    const body = JSON.stringify({ ...BODY, stream: true });
    socket.write(`POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${flood.session.token}\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    socket.pause();
    await once(socket, "connect");
    let last = -1;
    await until(async () => {
      const before = last;
      last = sent;
      await new Promise((resolve) => setTimeout(resolve, 200));
      return sent > 0 && sent === last && last === before;
    });
    expect(sent).toBeLessThan(1000);
    expect((await post(CHAT, BODY, bearer(quick.session))).status).toBe(200);
    socket.destroy();
    await flood.session.close(0);
    await quick.session.close();
  });
});

describe("a session", () => {
  it("is over when its calls, tokens or time are used up", async () => {
    const { session: calls } = await bench.open(says("x"), { budgets: { calls: 2, tokens: null, timeMs: null } });
    const statuses = [];
    for (let round = 0; round < 3; round++) {
      expect(calls.totals().exhausted).toBeNull();
      const response = await post(CHAT, { ...BODY, n: 1, user: String(round) }, bearer(calls));
      statuses.push(response.status);
      await response.text();
    }
    expect(statuses.slice(0, 2)).toEqual([200, 200]);
    expect(statuses[2]).toBeGreaterThanOrEqual(400);
    expect(statuses[2]).toBeLessThan(500);
    expect(calls.totals()).toMatchObject({ complete: 2, exhausted: "calls" });

    const { session: tokens } = await bench.open(says("12345678"), { budgets: { calls: null, tokens: 12, timeMs: null }, sampling: { temperature: 0.5 } });
    for (const limit of [12, 4]) {
      await (await post(CHAT, { ...BODY, user: String(limit), temperature: 1 }, bearer(tokens))).text();
      expect(bench.jobs.at(-1)?.request.sampling).toMatchObject({ maxTokens: limit, temperature: 0.5 });
    }
    expect(tokens.totals()).toMatchObject({ completionTokens: 16, exhausted: "tokens" });
    const refused = await post(CHAT, BODY, bearer(tokens));
    expect(await refused.text()).toContain("budget");

    const { session: time } = await bench.open(({ signal }) => new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))), { budgets: { calls: null, tokens: null, timeMs: 200 } });
    expect((await post(CHAT, BODY, bearer(time))).status).toBeGreaterThanOrEqual(400);
    expect(time.totals()).toMatchObject({ failed: 1, exhausted: "timeMs" });
    await Promise.all([calls, tokens, time].map((session) => session.close()));
  });

  it("lets what is in flight end when it closes, for a while, and takes nothing new", async () => {
    const rest = gate();
    const slow = await bench.open(async (job, number) => {
      await rest.passed;
      return says("in time")(job, number);
    });
    const flights: number[] = [];
    slow.session.onThinking((count) => flights.push(count));
    const answer = post(CHAT, BODY, bearer(slow.session));
    await until(() => slow.session.inFlight === 1);
    const closing = slow.session.close(600_000);
    expect((await post(CHAT, BODY, bearer(slow.session))).status).toBe(410);
    rest.open();
    expect(await (await answer).text()).toContain("in time");
    expect(await closing).toMatchObject({ complete: 1 });
    expect(flights).toEqual([1, 0]);

    const begun = gate();
    const stuck = await bench.open(({ onDelta, signal }) => new Promise((_resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason as Error));
      void Promise.resolve(onDelta?.({ type: "text", text: "half" })).then(begun.open);
    }));
    const cut = post(CHAT, { ...BODY, stream: true }, bearer(stuck.session));
    await begun.passed;
    await stuck.session.close(10);
    expect(await (await cut).text()).toMatch(/half[^]*error/);
    expect(await stuck.calls()).toMatchObject([{ status: "incomplete", failure: { kind: "closed" } }]);
  });

  it("has a client's truncated answer fail in the middle, and says so in its log", async () => {
    const { GatewayFailure } = await import("../../../src/gateway/failure.ts");
    const { session, calls } = await bench.open(async ({ onDelta }) => {
      await onDelta?.({ type: "text", text: "half an" });
      throw new GatewayFailure("truncated", "The model server's stream broke off.");
    });
    const openai = new OpenAI({ baseURL: `${bench.url}/v1`, apiKey: session.token, maxRetries: 0 });
    const read = async (): Promise<void> => {
      for await (const _chunk of await openai.chat.completions.create({ model: "m", stream: true, messages: [{ role: "user", content: "hi" }] }));
    };
    await expect(read()).rejects.toThrow(/broke off/);
    expect(await calls()).toMatchObject([{ status: "incomplete", failure: { kind: "truncated" }, tokens: null }]);
    expect(session.totals().lastFailure).toMatchObject({ kind: "truncated" });
    await session.close();
  });

  it("gives an error instead of the end when the call cannot be recorded", async () => {
    const full = { append: () => Promise.reject(new Error("ENOSPC, write '/host/path'")), replayed: () => Promise.resolve() };
    const { session } = await bench.open(says("never complete"), { log: full });
    const whole = await post(CHAT, BODY, bearer(session));
    expect(whole.status).toBe(500);
    expect(await whole.text()).not.toMatch(/never complete|host/);
    const streamed = await (await post(CHAT, { ...BODY, stream: true }, bearer(session))).text();
    expect(streamed).toContain("error");
    expect(streamed).not.toContain("finish_reason\":\"stop");
    expect(session.totals()).toMatchObject({ failed: 2, lastFailure: { kind: "internal", message: expect.stringContaining("/host/path") as unknown } });
    await session.close();
  });

  it("forgets a failure of the model server once it has answered again: whoever drove on has not been stopped by it", async () => {
    const { GatewayFailure } = await import("../../../src/gateway/failure.ts");
    let up = false;
    const { session } = await bench.open((job, number) => (up ? says("back")(job, number) : Promise.reject(new GatewayFailure("upstream", "The model server is not there."))));
    expect((await post(CHAT, BODY, bearer(session))).status).toBe(502);
    expect(session.totals()).toMatchObject({ failed: 1, lastFailure: { kind: "upstream" } });
    up = true;
    await (await post(CHAT, BODY, bearer(session))).text();
    expect(session.totals()).toMatchObject({ complete: 1, failed: 1, lastFailure: null });
    await session.close();
  });

  it("is over like one without budget when its log has taken enough: what fills it gets no failure of ours", async () => {
    let full = false;
    const records: unknown[] = [];
    const log = {
      append: (call: unknown) => Promise.resolve(void records.push(call)),
      replayed: () => Promise.resolve(),
      get full() {
        return full;
      },
    };
    const { session } = await bench.open(says("x"), { log });
    expect((await post(CHAT, BODY, bearer(session))).status).toBe(200);
    full = true;
    const refused = await post(CHAT, BODY, bearer(session));
    expect([refused.status >= 400 && refused.status < 500, records.length, session.totals().lastFailure]).toEqual([true, 1, null]);
    await refused.text();
    await session.close();
  });

  it("adds to the log of the one before it", async () => {
    const first = await bench.open(says("first"));
    await (await post(CHAT, BODY, bearer(first.session))).text();
    await first.session.close();
    const second = await bench.open(says("second"), { log: first.log, callsBefore: first.log.lastNumber });
    await (await post(CHAT, BODY, bearer(second.session))).text();
    await second.session.close();
    expect((await first.calls()).map(({ number, answer }) => [number, answer?.blocks])).toEqual([[1, [{ type: "text", text: "first" }]], [2, [{ type: "text", text: "second" }]]]);
  });

  it("serves a harness in this process as well, and cancels at once", async () => {
    const { session, calls } = await bench.open(says("one two"));
    const request = { ...(await decoded()), stream: true };
    const heard: unknown[] = [];
    const call = await session.complete(request, { onDelta: (delta) => void heard.push(delta), signal: new AbortController().signal });
    expect(heard).toEqual([{ type: "text", text: "one " }, { type: "text", text: "two" }]);
    expect(await calls()).toEqual([call]);
    expect(call).toMatchObject({ dialect: "turn", request, status: "complete" });
    const stop = new AbortController();
    const { session: stuck } = await bench.open(({ signal }) => new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))));
    const failing = stuck.complete(request, { signal: stop.signal });
    stop.abort(new Error("enough"));
    await expect(failing).rejects.toThrow("enough");
    expect(stuck.inFlight).toBe(0);
    await Promise.all([session.close(), stuck.close()]);
  });
});

async function decoded(): Promise<import("../../../src/gateway/conversation.ts").TurnRequest> {
  const { CODECS } = await import("../../../src/gateway/dialects/codecs.ts");
  const codec = CODECS["openai-chat"];
  if (codec === undefined) throw new Error("no codec");
  return codec.decode(BODY, { model: null, stream: null });
}

/** One frame with one raw block: Node 20 has no encoder. */
function storedZstd(bytes: Buffer): Buffer {
  const block = (bytes.length << 3) | 1;
  return Buffer.concat([Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0x20, bytes.length, block & 255, (block >> 8) & 255, (block >> 16) & 255]), bytes]);
}

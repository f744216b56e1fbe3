import { afterEach, describe, expect, it } from "vitest";
import { startEngine, type Engine, type EngineScript, type Reply } from "../../../test/support/engine.ts";
import { LIMITS } from "../../core/limits.ts";
import { systemRuntime, type Runtime } from "../../core/runtime.ts";
import { ChatClient, retryAfterMs, type ChatResult } from "./chat.ts";
import { isContextOverflow } from "./overflow.ts";

const KEY = "sk-secret-0123456789abcdef";
const engines: Engine[] = [];
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.close();
});

interface Asked {
  readonly result: Promise<ChatResult>;
  readonly waits: number[];
  readonly notes: string[];
  readonly engine: Engine;
}

async function ask(script: EngineScript, { retries = 3, callMs = 60_000, signal = new AbortController().signal, path = "" } = {}): Promise<Asked> {
  const engine = await startEngine(script);
  engines.push(engine);
  const waits: number[] = [];
  const notes: string[] = [];
  // Waits between tries pass at once; everything else runs in real time.
  const runtime: Runtime = { ...systemRuntime, sleep: async (ms, abort) => (ms === callMs ? await systemRuntime.sleep(ms, abort) : void waits.push(ms)) };
  const result = new ChatClient({ tokens: false, retries, callMs }).complete({
    upstream: { url: engine.url + path, model: "m", apiKey: KEY, sampling: {} },
    body: { model: "m", messages: [{ role: "user", content: "hi" }] },
    random: () => 0.5,
    runtime,
    signal,
    note: (text) => Promise.resolve(void notes.push(text)),
  });
  result.catch(() => undefined);
  return { result, waits, notes, engine };
}

const ok: Reply = { content: "fine" };

describe("failures that pass", () => {
  it.each<readonly [string, Reply]>([
    ["429", { status: 429, raw: "slow down" }],
    ["500", { status: 500, raw: "" }],
    ["503", { status: 503, raw: "<html>" }],
    ["408", { status: 408 }],
    ["a connection that breaks before the headers", { breakOff: "connection" }],
    ["a connection that breaks after the headers", { ...ok, breakOff: "headers" }],
    ["a body that breaks off", { ...ok, breakOff: "body" }],
    ["a body that is cut short but ends well", { raw: '{"choices":[{"message":{"content":"fi' }],
    ["garbage", { raw: "<html>502</html>" }],
    ["an empty body", { raw: "" }],
    ["JSON that is no completion", { raw: '{"choices":[]}' }],
    ["null", { raw: "null" }],
    ["a generation that the server aborted", { content: "hal", finishReason: "abort" }],
  ])("tries again after %s", async (_name, reply) => {
    const { result, engine, waits, notes } = await ask([[reply, ok]]);
    expect(await result).toMatchObject({ kind: "answer", answer: { content: "fine" } });
    expect(engine.requests.length).toBe(2);
    expect(waits).toEqual([375]);
    expect(notes.length).toBe(1);
  });

  it("never takes a truncated body for an answer", async () => {
    for (const reply of [{ ...ok, breakOff: "body" }, { raw: JSON.stringify({ choices: [{ message: { content: "fine" } }] }).slice(0, -1) }] as const) {
      const { result, engine } = await ask([reply], { retries: 2 });
      await expect(result).rejects.toMatchObject({ code: "upstream_failed" });
      expect(engine.requests.length).toBe(3);
    }
  });

  it("waits longer each time, within bounds, and then gives up", async () => {
    const { result, waits } = await ask([{ status: 500, raw: "boom" }], { retries: 9 });
    await expect(result).rejects.toMatchObject({ code: "upstream_failed", message: expect.stringContaining("HTTP 500: boom, 10 times in a row") as unknown });
    expect(waits).toEqual([375, 750, 1500, 3000, 6000, 12000, 22500, 22500, 22500]);
  });

  it("waits as long as the server asks, within bounds", async () => {
    const { result, waits } = await ask([[{ status: 429, headers: { "retry-after": "7" } }, { status: 429, headers: { "retry-after": "99999" } }, ok]]);
    await result;
    expect(waits[0]).toBeGreaterThanOrEqual(7000);
    expect(waits[0]).toBeLessThan(8000);
    expect(waits[1]).toBe(120_000);
    expect(retryAfterMs("Wed, 21 Oct 2015 07:28:05 GMT", Date.parse("2015-10-21T07:28:00Z"))).toBe(5000);
    expect(retryAfterMs("soon", 0)).toBeNull();
  });

  it("gives each try its time, also when the body trickles", async () => {
    for (const reply of [{ breakOff: "never" }, { ...ok, trickleMs: 30 }] as const) {
      const { result } = await ask([reply], { callMs: 300, retries: 1 });
      await expect(result).rejects.toMatchObject({ code: "upstream_failed", message: expect.stringContaining("no complete answer within 300 ms") as unknown });
    }
  });

  it("takes a slow answer that is whole", async () => {
    const { result } = await ask([{ ...ok, delayMs: 200 }]);
    expect(await result).toMatchObject({ kind: "answer" });
  });

  it("fails when nobody listens", async () => {
    const { engine } = await ask([ok]);
    await engine.close();
    engines.length = 0;
    const call = new ChatClient({ tokens: false, retries: 0, callMs: 5000 }).complete({
      upstream: { url: engine.url, model: "m", apiKey: KEY, sampling: {} },
      body: {},
      random: () => 0,
      runtime: systemRuntime,
      signal: new AbortController().signal,
      note: () => Promise.resolve(),
    });
    await expect(call).rejects.toMatchObject({ code: "upstream_failed", message: expect.stringContaining("ECONNREFUSED") as unknown });
  });
});

describe("failures that stay", () => {
  it.each([400, 401, 403, 404, 422])("does not repeat HTTP %i, and says what the server said without the key", async (status) => {
    const { result, engine } = await ask([{ status, raw: `{"error":{"message":"bad ${KEY} thing"}}` }]);
    const error = await result.catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: "upstream_failed", fix: expect.any(String) as unknown });
    expect(String(error)).toContain("bad [key removed] thing");
    expect(JSON.stringify(error) + String(error)).not.toContain(KEY);
    expect(engine.requests.length).toBe(1);
  });

  it("refuses an answer beyond the size limit without holding it", async () => {
    const { result, engine } = await ask([{ bytes: LIMITS.upstreamBodyBytes + 1 }]);
    await expect(result).rejects.toMatchObject({ code: "upstream_failed", message: expect.stringContaining("larger than the limit") as unknown });
    expect(engine.requests.length).toBe(1);
  });

  it.each(["nonsense", "ftp://host/v1", "http://user:pass@host/v1"])("refuses the URL %s as a mistake of usage", async (url) => {
    const call = new ChatClient({ tokens: false, retries: 0, callMs: 5000 }).complete({
      upstream: { url, model: "m", apiKey: KEY, sampling: {} },
      body: {},
      random: () => 0,
      runtime: systemRuntime,
      signal: new AbortController().signal,
      note: () => Promise.resolve(),
    });
    await expect(call).rejects.toMatchObject({ code: "usage" });
  });

  it("takes a base URL with a slash at the end", async () => {
    const { result } = await ask([ok], { path: "/" });
    expect(await result).toMatchObject({ kind: "answer" });
  });

  it("ends with the reason of the abort", async () => {
    const stop = new AbortController();
    const { result } = await ask([{ breakOff: "never" }], { signal: stop.signal });
    setTimeout(() => stop.abort(new Error("enough")), 100);
    await expect(result).rejects.toThrow("enough");
  });
});

describe("a conversation that no longer fits", () => {
  it.each([
    "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion). Please reduce the length of the messages or completion.",
    "The decoder prompt (length 5038) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
    "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
    "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 40000 tokens",
    "Input length (131393 tokens) exceeds the maximum allowed length (131040 tokens). Prompt is too long.",
    "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "prompt is too long: 150000 tokens > 128000 maximum",
    "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
    "Please reduce the length of the messages or completion",
  ])("is recognised: %s", (message) => {
    expect(isContextOverflow(400, JSON.stringify({ object: "error", message }))).toBe(true);
    expect(isContextOverflow(200, message)).toBe(false);
  });

  it.each(["Unrecognized request argument supplied: return_token_ids", "temperature must be at most 2", "The model `x` does not exist.", "Extra inputs are not permitted", "string too long"])(
    "is not read into: %s",
    (message) => {
      expect(isContextOverflow(400, JSON.stringify({ error: { message } }))).toBe(false);
    },
  );

  it("is a value, whatever the status", async () => {
    for (const status of [400, 413, 500]) {
      const { result, engine } = await ask([{ status, raw: '{"error":{"code":"context_length_exceeded","message":"no"}}' }]);
      expect(await result).toMatchObject({ kind: "context_overflow" });
      expect(engine.requests.length).toBe(1);
    }
  });
});

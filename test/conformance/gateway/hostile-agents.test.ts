/** Requests of a program in a machine that would use the model server as a way out of it, or into a neighbour's rollout, or to have lies trained on. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { connectFrom, newSandbox, openBench, readToEnd, says, until, type Bench } from "../../support/gateway.ts";

let bench: Bench;
beforeAll(async () => {
  bench = await openBench();
});
afterAll(() => bench.close());

const CHAT = "/v1/chat/completions";
const PICTURE = "http://169.254.169.254/latest/meta-data/";
const HI = { model: "m", max_tokens: 5, messages: [{ role: "user", content: "hi" }] };

/** One request on a connection of the machine's. A text is sent as it is. */
async function ask(sandbox: string, path: string, body: unknown): Promise<{ readonly status: number; readonly text: string }> {
  const socket = connectFrom(bench.gateway, `MW1 ${sandbox} 9000\n`);
  const text = typeof body === "string" ? body : JSON.stringify(body);
  socket.write(`POST ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
  const answer = await readToEnd(socket);
  return { status: Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]), text: answer };
}

async function open(options: Parameters<Bench["open"]>[1] = {}) {
  const sandbox = newSandbox();
  return { sandbox, ...(await bench.open(says("yes"), { sandbox, ...options })) };
}

describe("a program in a machine", () => {
  it("sends nothing that its log cannot take: calls that are missing would be the gateway's failure", async () => {
    const { sandbox, session, log, calls } = await open();
    const deep = (depth: number, inner: string): string => `${"[".repeat(depth)}${inner}${"]".repeat(depth)}`;
    const bodies = [
      deep(100_000, ""),
      deep(3_000, ""),
      `{"model":"m","messages":${deep(100_000, "")}}`,
      `{"model":"m","messages":[{"role":"user","content":"x"}],"unknown":${deep(100_000, "1")}}`,
      `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":${deep(5_000, "1")}}}}]}`,
      `{"model":"m","messages":[{"role":"user","content":"\\ud800 \\u0000 \\u2028"}],"__proto__":{"a":1},"constructor":{"prototype":{}}}`,
      `{"model":"m","messages":[{"role":"user","content":"x"}],"toJSON":"x"}`,
      "null",
      '"x"',
      "{}",
      '{"messages":{"length":4294967295}}',
    ];
    for (const path of [CHAT, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1beta/models/m:generateContent"]) {
      for (const body of bodies) expect((await ask(sandbox, path, body)).status, `${path} ${body.slice(0, 80)}`).toBeLessThan(500);
    }
    expect(log.failure).toBeNull();
    expect((await calls()).length).toBeGreaterThan(0);
    await session.close();
  });

  it("has only so many conversations counted at a time, and none once its session is closed", async () => {
    const waiting: AbortSignal[] = [];
    const { sandbox, session } = await open({ count: (_request, signal) => new Promise((_resolve, reject) => {
      waiting.push(signal);
      signal.addEventListener("abort", () => reject(signal.reason as Error));
    }) });
    const count = (): Promise<{ readonly status: number }> => ask(sandbox, "/v1/messages/count_tokens", { model: "m", messages: [{ role: "user", content: "hi" }] });
    const counts = Array.from({ length: 8 }, count);
    await until(() => waiting.length === 8);
    expect((await count()).status).toBe(429);
    await session.close();
    for (const { status } of await Promise.all(counts)) expect(status).toBe(410);
    expect([waiting.length, (await count()).status]).toEqual([8, 410]);
  });

  it("has the model server fetch no address for it, in any dialect, nor when tokens are counted", async () => {
    const { sandbox, session, calls } = await open();
    const before = bench.jobs.length;
    const attempts: readonly (readonly [path: string, body: unknown])[] = [
      [CHAT, { model: "m", messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: PICTURE } }] }] }],
      [CHAT, { model: "m", messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "file:///etc/passwd" } }] }] }],
      // No base64 after all.
      [CHAT, { model: "m", messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: `data:image/png,${PICTURE}` } }] }] }],
      [CHAT, { model: "m", messages: [{ role: "user", content: "x" }, { role: "assistant", tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }] }, { role: "tool", tool_call_id: "c", content: [{ type: "image_url", image_url: { url: PICTURE } }] }] }],
      ["/v1/responses", { model: "m", input: [{ role: "user", content: [{ type: "input_image", image_url: PICTURE }] }] }],
      ["/v1/messages", { model: "m", max_tokens: 5, messages: [{ role: "user", content: [{ type: "image", source: { type: "url", url: PICTURE } }] }] }],
      ["/v1/messages/count_tokens", { model: "m", messages: [{ role: "user", content: [{ type: "image", source: { type: "url", url: PICTURE } }] }] }],
      ["/v1beta/models/m:generateContent", { contents: [{ parts: [{ fileData: { mimeType: "image/png", fileUri: PICTURE } }] }] }],
    ];
    for (const [path, body] of attempts) expect(await ask(sandbox, path, body), path).toMatchObject({ status: 400 });
    expect(bench.jobs.length).toBe(before);
    expect((await calls()).every(({ status }) => status === "failed")).toBe(true);
    // As data it is shown to the model.
    expect(await ask(sandbox, CHAT, { model: "m", messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }] }] })).toMatchObject({ status: 200 });
    await session.close();
  });

  it("passes no parameter to the model server that names hosts, code, weights, or other people's requests", async () => {
    const { sandbox, session } = await open({ purpose: "evaluate" });
    const before = bench.jobs.length;
    for (const field of ["kv_transfer_params", "bootstrap_host", "logits_processors", "custom_logit_processor", "chat_template", "lora_path", "request_id", "rid", "session_params", "priority", "mm_processor_kwargs", "cache_salt"]) {
      const { status, text } = await ask(sandbox, CHAT, { ...HI, [field]: { host: "10.0.0.1" } });
      expect([field, status]).toEqual([field, 400]);
      expect(text).toContain(field);
    }
    expect(bench.jobs.length).toBe(before);
    // What only shapes its own answer goes on as it is.
    expect(await ask(sandbox, CHAT, { ...HI, logit_bias: { 5: 1 }, ignore_eos: true, chat_template_kwargs: { enable_thinking: true } })).toMatchObject({ status: 200 });
    expect(bench.jobs.at(-1)?.request.extra).toMatchObject({ ignore_eos: true, chat_template_kwargs: { enable_thinking: true } });
    await session.close();
  });

  it("bends no answer that is trained on", async () => {
    const { sandbox, session, calls } = await open({ purpose: "train" });
    for (const field of ["logit_bias", "allowed_token_ids", "bad_words", "ignore_eos", "min_tokens"]) expect(await ask(sandbox, CHAT, { ...HI, [field]: 1 }), field).toMatchObject({ status: 400 });
    expect((await calls()).map(({ tokens }) => tokens)).toEqual([null, null, null, null, null]);
    await session.close();
  });

  it("is another than one of the host, whose session passes all of that on", async () => {
    const { session } = await bench.open(says("yes"));
    const response = await fetch(`${bench.url}${CHAT}`, { method: "POST", headers: { authorization: `Bearer ${session.token}` }, body: JSON.stringify({ ...HI, priority: 1, messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: PICTURE } }] }] }) });
    expect([response.status, bench.jobs.at(-1)?.request.extra]).toEqual([200, { priority: 1 }]);
    await response.text();
    await session.close();
  });
});

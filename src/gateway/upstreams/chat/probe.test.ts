import { describe, expect, it } from "vitest";
import { MwError } from "../../../core/errors.ts";
import { BASH, turn } from "../../../../test/support/turns.ts";
import { connect, failureOf, generate, KEY, serve } from "../../../../test/support/upstreams.ts";

const signal = new AbortController().signal;

describe("what a server can do", () => {
  it.each([
    ["vllm", "tokens", "tokens", null],
    ["vllm", "logprobs", "logprobs", /0\.10\.2/],
    ["vllm", "text", "text", /neither/],
    ["sglang", "tokens", "tokens", null],
    ["openai", "tokens", "logprobs", /name the kind/],
    ["openai", "text", "text", /name the kind/],
  ] as const)("is found out: %s that gives %s", async (flavour, level, capture, reason) => {
    const { upstream } = await serve(() => ({ content: "hello there" }), { flavour, level, contextTokens: 4096 });
    const facts = await upstream.probe("test-model", signal);
    expect(facts.capture).toBe(capture);
    if (reason === null) expect(facts.reason).toBeNull();
    else expect(facts.reason).toMatch(reason);
    expect(facts.models).toEqual([{ id: "test-model", contextTokens: flavour === "openai" ? null : 4096 }]);
  });

  it("is asked for once a model", async () => {
    const { upstream, engine } = await serve(() => ({ content: "hello there" }));
    const [first, second] = await Promise.all([upstream.probe("test-model", signal), upstream.probe("test-model", signal)]);
    expect(second).toBe(first);
    expect(engine.requests.map(({ body }) => [body["max_tokens"], body["stream"]])).toEqual([
      [1, undefined],
      [1, true],
    ]);
    await upstream.probe("other", signal);
    expect(engine.requests.length).toBe(4);
  });

  it("includes answering whole where its streams have no tokens: what is streamed then comes in one piece", async () => {
    const { upstream, engine } = await serve(() => ({ content: "hello there", calls: [{ command: "ls" }] }), { flavour: "sglang" });
    expect((await upstream.probe("test-model", signal)).capture).toBe("tokens");
    const { tokens, deltas } = await generate(upstream, turn({ stream: true, tools: [BASH] }));
    expect(tokens).toEqual({ ...engine.samples.at(-1), versions: [["0", engine.samples.at(-1)?.completionIds.length]] });
    expect(deltas.map(({ type }) => type)).toEqual(["text", "tool_call", "arguments"]);
    expect(engine.requests.at(-1)?.body["stream"]).toBeUndefined();
  });

  it.each<readonly [string, Parameters<typeof serve>[0], Parameters<typeof serve>[1], RegExp]>([
    ["refuses the key", [{}], { apiKey: "another-key" }, /MW_API_KEY/],
    ["does not know the model", [{ status: 404, raw: '{"error":{"message":"The model `m` does not exist"}}' }], {}, /--model/],
    ["is overloaded", [{ status: 503, raw: "" }], {}, /overloaded/],
  ])("is an error with its remedy when it %s", async (_name, script, options, fix) => {
    const { upstream } = await serve(script, options);
    const error = await upstream.probe("m", signal).catch((reason: unknown) => reason);
    if (!(error instanceof MwError)) throw new Error("expected an error of the catalogue", { cause: error });
    expect(error.code).toBe("upstream_failed");
    expect(error.fix).toMatch(fix);
    expect(error.message).not.toContain(KEY);
  });

  it("is asked again after a failure", async () => {
    let up = false;
    const { upstream } = await serve(() => (up ? { content: "hello" } : { status: 503 }));
    await expect(upstream.probe("m", signal)).rejects.toMatchObject({ code: "upstream_failed" });
    up = true;
    expect((await upstream.probe("m", signal)).capture).toBe("tokens");
    await expect(connect("http://127.0.0.1:1").probe("m", signal)).rejects.toMatchObject({ code: "upstream_failed", message: expect.stringContaining("http://127.0.0.1:1") as string });
  });
});

describe("counting tokens", () => {
  it("is vLLM's to do, over the same rendering as a call", async () => {
    const { upstream, engine } = await serve([{ content: "x" }]);
    const request = turn({ tools: [BASH], messages: [{ role: "system", name: "system", content: [{ type: "text", text: "be brief" }] }, { role: "user", content: [{ type: "text", text: "hi" }] }] });
    await generate(upstream, request);
    expect(await upstream.countTokens(request, signal)).toBe(engine.samples[0]?.promptIds.length);
    expect(await (await serve([], { flavour: "sglang" })).upstream.countTokens(request, signal)).toBeNull();
    expect(await (await serve([], { flavour: "sglang", kind: "vllm" })).upstream.countTokens(request, signal)).toBeNull();
    expect(await failureOf(connect("vllm=http://127.0.0.1:1").countTokens(request, signal))).toMatchObject({ kind: "upstream" });
  });
});

import { afterEach, describe, expect, it } from "vitest";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { startEngine, type Engine, type EngineOptions, type EngineScript } from "../../../../test/support/engine/index.ts";
import { MODEL_DIRECTORY } from "../../../../test/support/engine/tokenizer.ts";
import { openBench, until } from "../../../../test/support/gateway.ts";
import { turn } from "../../../../test/support/turns.ts";
import { systemRuntime } from "../../../core/runtime.ts";
import { PolicyRegister } from "../../../policy/register.ts";
import { Renderer } from "../../render/renderer.ts";
import { AnswerSoFar } from "../../session/answer-so-far.ts";
import type { Generation } from "../upstream.ts";
import { PolicyUpstream, type PolicyUpstreamOptions } from "./upstream.ts";

const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
const renderer = await Renderer.load(MODEL_DIRECTORY);
const NEVER = new AbortController().signal;
const LONG = Array.from({ length: 120 }, (_, n) => `word${n}`).join(" ");

async function engineOf(script: EngineScript, options: EngineOptions): Promise<Engine> {
  const engine = await startEngine(script, options);
  closers.push(() => engine.close());
  return engine;
}

const at = (engine: Engine, kind: "vllm" | "sglang"): { readonly url: string; readonly kind: "vllm" | "sglang" } => ({ url: engine.root, kind });

function policyOf(options: Partial<PolicyUpstreamOptions> = {}): { readonly register: PolicyRegister; readonly upstream: PolicyUpstream } {
  const register = new PolicyRegister(systemRuntime);
  const upstream = new PolicyUpstream({ register, runtime: systemRuntime, apiKey: null, renderer, ...options });
  closers.push(() => upstream.close());
  return { register, upstream };
}

const REQUEST = { ...turn({ messages: [{ role: "user", content: [{ type: "text", text: "Speak." }] }] }), stream: true };

/** `onText`: told of the text so far with each piece. */
async function ask(upstream: PolicyUpstream, { session = "s", requestId = "request", onText = undefined as ((text: string) => void) | undefined, request = REQUEST } = {}): Promise<Generation & { readonly heard: string }> {
  let heard = "";
  const generation = await upstream.generate({
    request,
    requestId,
    session,
    history: null,
    signal: new AbortController().signal,
    onDelta: request.stream
      ? (delta) => {
          if (delta.type === "text") onText?.((heard += delta.text));
        }
      : null,
  });
  return { ...generation, heard };
}

const textOf = ({ answer }: Generation): string => answer.blocks.map((block) => (block.type === "text" ? block.text : "")).join("");
const once = (act: () => void): ((text: string) => void) => {
  let done = false;
  return (text) => {
    if (done || text.length < 50) return;
    done = true;
    act();
  };
};

describe("a policy whose weights are exchanged", () => {
  it("in the middle of a streaming answer: it goes on from its tokens, each with the version that the engine says", async () => {
    const engine = await engineOf((request) => ({ content: request.promptIds.length > 100 ? " and the rest" : LONG, trickleMs: 1 }), { flavour: "sglang" });
    engine.version = "7";
    const { register, upstream } = policyOf();
    register.set({ version: 7, state: "live", model: "m", endpoints: [at(engine, "sglang")] });
    let asked = 0;
    const update = once(() => {
      register.set({ version: 8, state: "updating", model: "m", endpoints: [at(engine, "sglang")] });
      void fetch(`${engine.root}/abort_request`, { method: "POST", body: JSON.stringify({ rid: "request" }) }).then(async () => {
        engine.version = "8";
        // The answer is over here, and nothing is asked while the policy is not live.
        await new Promise((resolve) => setTimeout(resolve, 100));
        asked = engine.requests.length;
        register.set({ version: 8, state: "live", model: "m", endpoints: [at(engine, "sglang")] });
      });
    });
    const generation = await ask(upstream, { onText: update });
    expect(asked).toBe(1);
    const { tokens } = generation;
    const versions = tokens?.versions ?? [];
    expect(versions.map(([version]) => version)).toEqual(["7", "8"]);
    const [[, before] = ["", 0]] = versions;
    expect(tokens?.completionIds).toEqual([...(engine.samples[0]?.completionIds.slice(0, before) ?? []), ...(engine.samples[1]?.completionIds ?? [])]);
    expect(tokens?.logprobs).toEqual([...(engine.samples[0]?.logprobs.slice(0, before) ?? []), ...(engine.samples[1]?.logprobs ?? [])]);
    // The second request is the prompt and what was sampled.
    expect(engine.requests[1]?.promptIds).toEqual([...(tokens?.promptIds ?? []), ...(tokens?.completionIds.slice(0, before) ?? [])]);
    expect(generation.heard).toBe(textOf(generation));
    expect(generation.notes.join()).toContain("resumed");
  });

  it("with an engine that says nothing of versions: tokens have the one that was live when their request began", async () => {
    const engine = await engineOf((request) => ({ content: request.promptIds.length > 100 ? " and the rest" : LONG, trickleMs: 1 }), { flavour: "vllm" });
    const next = await engineOf(() => ({ content: " and the rest" }), { flavour: "vllm" });
    const { register, upstream } = policyOf();
    register.set({ version: 4, state: "live", model: "m4", endpoints: [at(engine, "vllm")] });
    const update = once(() => {
      // Killed in the middle of its answer, and replaced by another at another place, under another name.
      register.set({ version: 5, state: "updating", model: "m4", endpoints: [at(engine, "vllm")] });
      void engine.close().then(() => register.set({ version: 5, state: "live", model: "m5", endpoints: [at(next, "vllm")] }));
    });
    const generation = await ask(upstream, { onText: update });
    const versions = generation.tokens?.versions ?? [];
    expect(versions.map(([version]) => version)).toEqual(["4", "5"]);
    const [[, before] = ["", 0]] = versions;
    expect(generation.tokens?.completionIds).toEqual([...(engine.samples[0]?.completionIds.slice(0, before) ?? []), ...(next.samples[0]?.completionIds ?? [])]);
    expect(next.requests.map(({ body }) => body["model"])).toEqual(["m5"]);
    expect(generation.heard).toBe(textOf(generation));
    expect(textOf(generation).startsWith("word0 word1")).toBe(true);
    expect(textOf(generation).endsWith(" and the rest")).toBe(true);
  });

  it("in a whole answer, whose engine was never told a version", async () => {
    const engine = await engineOf([{ content: "short" }], { flavour: "sglang" });
    engine.version = "default";
    const { register, upstream } = policyOf();
    register.set({ version: 2, state: "live", model: "m", endpoints: [at(engine, "sglang")] });
    const { tokens } = await ask(upstream, { request: { ...REQUEST, stream: false } });
    expect(tokens?.versions).toEqual([["2", tokens?.completionIds.length]]);
  });

  it("samples an answer again where one version was asked for, and shows nothing before", async () => {
    const engine = await engineOf((request) => ({ content: request.promptIds.length > 100 ? " and the rest" : LONG, trickleMs: 1 }), { flavour: "sglang" });
    engine.version = "1";
    const { register, upstream } = policyOf({ singleVersion: true });
    register.set({ version: 1, state: "live", model: "m", endpoints: [at(engine, "sglang")] });
    let heardBefore = false;
    const asking = ask(upstream, { onText: () => (heardBefore ||= register.current.version === 1) });
    await until(() => engine.requests.length === 1);
    await new Promise((resolve) => setTimeout(resolve, 30));
    engine.version = "2";
    await fetch(`${engine.root}/abort_request`, { method: "POST", body: JSON.stringify({ rid: "request" }) });
    register.set({ version: 2, state: "live", model: "m", endpoints: [at(engine, "sglang")] });
    const generation = await asking;
    expect(heardBefore).toBe(false);
    expect(generation.tokens?.versions).toEqual([["2", generation.tokens?.completionIds.length]]);
    expect(generation.heard).toBe(LONG);
    expect(textOf(generation)).toBe(LONG);
    expect(generation.notes.join()).toContain("thrown away");
  });
});

describe("endpoints of a policy", () => {
  it("keep their sessions, and lose them only while they do not answer", async () => {
    const engines = await Promise.all([0, 1, 2].map(() => engineOf(() => ({ content: "fine" }), { flavour: "vllm" })));
    const { register, upstream } = policyOf();
    register.set({ version: 0, state: "live", model: "m", endpoints: engines.map((engine) => at(engine, "vllm")) });
    // Where a session goes depends on the ports, which are drawn: so many that each of the three has some.
    const sessions = Array.from({ length: 64 }, (_, n) => `session-${n}`);
    const placeOf = async (session: string, round: string): Promise<number> => {
      await ask(upstream, { session, requestId: `${round}-${session}` });
      return engines.findIndex(({ requests }) => requests.some(({ body }) => body["request_id"] === `${round}-${session}` || body["request_id"] === `1-${round}-${session}`));
    };
    const first = await Promise.all(sessions.map((session) => placeOf(session, "a")));
    expect(await Promise.all(sessions.map((session) => placeOf(session, "b")))).toEqual(first);
    expect(new Set(first)).toEqual(new Set([0, 1, 2]));
    await engines[1]?.close();
    const moved = await Promise.all(sessions.map((session) => placeOf(session, "c")));
    for (const [n, place] of moved.entries()) {
      if (first[n] === 1) expect([0, 2]).toContain(place);
      else expect(place).toBe(first[n]);
    }
    // Named no longer: nobody asks it, and the others keep theirs.
    register.set({ version: 0, state: "live", model: "m", endpoints: engines.filter((_, n) => n !== 1).map((engine) => at(engine, "vllm")) });
    expect(await Promise.all(sessions.map((session) => placeOf(session, "d")))).toEqual(moved);
  });

  it("that are all gone have a call fail after a while, in a way that clients try again", async () => {
    const engine = await engineOf([{ content: "x" }], { flavour: "vllm" });
    await engine.close();
    const { register, upstream } = policyOf({ outageMs: 200 });
    register.set({ version: 0, state: "live", model: "m", endpoints: [at(engine, "vllm")] });
    await expect(ask(upstream)).rejects.toMatchObject({ kind: "overloaded", details: { retryAfterMs: 5000 } });
    // Somebody replaces it while the call still tries.
    const next = await engineOf([{ content: "there" }], { flavour: "vllm" });
    const patient = policyOf();
    patient.register.set({ version: 0, state: "live", model: "m", endpoints: [at(engine, "vllm")] });
    const asking = ask(patient.upstream);
    patient.register.set({ version: 0, state: "live", model: "m", endpoints: [at(next, "vllm")] });
    expect(textOf(await asking)).toBe("there");
  });

  it("that render prompts themselves are asked again only before an answer has begun", async () => {
    const broken = await engineOf(() => ({ content: LONG, breakOff: "body" }), { flavour: "vllm" });
    const refusing = await engineOf(() => ({ status: 503 }), { flavour: "vllm" });
    const fine = await engineOf(() => ({ content: "fine" }), { flavour: "vllm" });
    const one = policyOf({ renderer: undefined, outageMs: 100 });
    one.register.set({ version: 3, state: "live", model: "m", endpoints: [at(broken, "vllm")] });
    await expect(ask(one.upstream)).rejects.toMatchObject({ kind: "truncated" });
    const two = policyOf({ renderer: undefined });
    two.register.set({ version: 3, state: "live", model: "m", endpoints: [at(refusing, "vllm"), at(fine, "vllm")] });
    // The first that a session goes to depends on the ports, which are drawn.
    for (let n = 0; n < 6 || refusing.requests.length === 0; n++) {
      const generation = await ask(two.upstream, { session: `s${n}`, requestId: `r${n}` });
      expect(textOf(generation)).toBe("fine");
      expect(generation.tokens?.versions).toEqual([["3", generation.tokens?.completionIds.length]]);
    }
  });

  it("is tried again in the middle of an answer that nobody is given, and whoever looks on sees it begin anew", async () => {
    const engine = await engineOf([[{ content: LONG, breakOff: "body" }, { content: LONG }]], { flavour: "vllm" });
    const { register, upstream } = policyOf({ renderer: undefined });
    register.set({ version: 3, state: "live", model: "m", endpoints: [at(engine, "vllm")] });
    const progress = new AnswerSoFar();
    const generation = await upstream.generate({ request: { ...REQUEST, stream: false }, requestId: "request", session: "s", history: null, signal: NEVER, onDelta: null, progress });
    expect(textOf(generation)).toBe(LONG);
    expect(progress.restarts).toBe(1);
    expect(progress.blocks).toEqual(generation.answer.blocks);
  });
});

describe("an update that does not end", () => {
  it("is answered with a time to come back, which the vendors' clients keep to", async () => {
    const engine = await engineOf(() => ({ content: "after the update" }), { flavour: "vllm" });
    const { register, upstream } = policyOf({ holdMs: 100 });
    const policy = { version: 1, model: "m", endpoints: [at(engine, "vllm")] };
    register.set({ ...policy, state: "live" });
    const bench = await openBench();
    closers.push(() => bench.close());
    const { session } = await bench.open(() => Promise.reject(new Error("the engine answers")), { upstream, model: "m" });
    register.set({ ...policy, version: 2, state: "updating" });
    const base = `${bench.url}${session.path}`;
    const hasty = new OpenAI({ baseURL: `${base}/v1`, apiKey: session.token, maxRetries: 0 });
    const ask = { model: "x", messages: [{ role: "user" as const, content: "hi" }] };
    await expect(hasty.chat.completions.create(ask)).rejects.toMatchObject({ status: 429 });
    await expect(new Anthropic({ baseURL: base, apiKey: session.token, maxRetries: 0 }).messages.create({ ...ask, max_tokens: 10 })).rejects.toMatchObject({ status: 429 });
    const refused = await fetch(`${base}/v1/chat/completions`, { method: "POST", headers: { authorization: `Bearer ${session.token}` }, body: JSON.stringify(ask) });
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "5"]);
    await refused.text();
    const calm = new OpenAI({ baseURL: `${base}/v1`, apiKey: session.token });
    const answer = calm.chat.completions.create({ ...ask, messages: [{ role: "user", content: "again" }] });
    await until(() => session.totals().failed >= 4);
    register.set({ ...policy, version: 2, state: "live" });
    expect((await answer).choices[0]?.message.content).toBe("after the update");
    // A harness in this process waits, for there is nobody to tell.
    register.set({ ...policy, version: 3, state: "updating" });
    const waiting = session.complete(turn(), { signal: NEVER });
    await new Promise((resolve) => setTimeout(resolve, 300));
    register.set({ ...policy, version: 3, state: "live" });
    expect((await waiting).tokens?.versions.map(([version]) => version)).toEqual(["3"]);
    await session.close();
  });

  it("lets those go that give up", async () => {
    const { register, upstream } = policyOf();
    register.set({ version: 0, state: "updating", model: "m", endpoints: [{ url: "http://127.0.0.1:9" }] });
    const stop = new AbortController();
    const asking = upstream.generate({ request: REQUEST, requestId: "r", history: null, onDelta: null, signal: stop.signal });
    const reason = new Error("the harness hung up");
    stop.abort(reason);
    await expect(asking).rejects.toBe(reason);
  });
});

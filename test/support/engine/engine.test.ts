import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Template } from "@huggingface/jinja";
import * as fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { seededRandom } from "../../../src/core/runtime.ts";
import { SseParser } from "../../../src/gateway/sse.ts";
import { startEngine, type Engine, type EngineOptions, type EngineScript } from "./index.ts";
import { renderChat, type ChatMessage } from "./template.ts";
import { decode, encode, MODEL_DIRECTORY, spellOtherwise } from "./tokenizer.ts";

const engines: Engine[] = [];
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.close();
});

async function start(script: EngineScript, options: EngineOptions = {}): Promise<Engine> {
  const engine = await startEngine(script, options);
  engines.push(engine);
  return engine;
}

async function chat(engine: Engine, body: Readonly<Record<string, unknown>>): Promise<Record<string, unknown>> {
  const response = await fetch(`${engine.url}/chat/completions`, { method: "POST", body: JSON.stringify({ model: "m", messages: [{ role: "user", content: "hi" }], ...body }) });
  if (body["stream"] !== true) return (await response.json()) as Record<string, unknown>;
  const events = new SseParser().push(new Uint8Array(await response.arrayBuffer()));
  return { events: events.map(({ data }) => (data === "[DONE]" ? data : (JSON.parse(data) as unknown))) };
}

describe("the engine's tokenizer", () => {
  it("gives back every text, also when it is spelled in other tokens", () => {
    fc.assert(
      fc.property(fc.string({ unit: "grapheme" }), fc.nat(), (text, seed) => {
        const ids = encode(text);
        expect(decode(ids)).toBe(text);
        expect(decode(spellOtherwise(ids, 0.5, seededRandom(String(seed))))).toBe(text);
      }),
    );
  });

  it("has no inverse: other ids have the same text", () => {
    const ids = encode("the function returns what the sandbox wrote");
    const other = spellOtherwise(ids, 1, seededRandom("x"));
    expect(other).not.toEqual(ids);
    expect(encode(decode(other))).toEqual(ids);
  });
});

describe("the engine's template", () => {
  it("is the one in the model's directory", () => {
    const template = new Template(readFileSync(join(MODEL_DIRECTORY, "chat_template.jinja"), "utf8"));
    const text = fc.string({ unit: "grapheme" });
    const content = fc.oneof(text, fc.array(fc.oneof(fc.record({ type: fc.constant("text"), text }), fc.constant({ type: "image_url" }))));
    const call = fc.record({ function: fc.record({ name: fc.constantFrom("bash", "edit"), arguments: fc.dictionary(fc.constantFrom("a", "b"), text) }) });
    const message: fc.Arbitrary<ChatMessage> = fc.oneof(
      fc.record({ role: fc.constantFrom("user", "tool", "system", "developer"), content }),
      fc.record({ role: fc.constant("assistant"), content: text }),
      fc.record({ role: fc.constant("assistant"), content, reasoning_content: text, tool_calls: fc.array(call, { minLength: 1, maxLength: 3 }) }),
    );
    const tools = fc.array(fc.record({ type: fc.constant("function"), function: fc.record({ name: text, description: text, parameters: fc.constant({ type: "object", properties: {} }) }) }), { maxLength: 2 });
    fc.assert(
      fc.property(fc.array(message, { minLength: 1 }), tools, fc.boolean(), (messages, tools, generate) => {
        expect(renderChat(messages, tools, generate).join("")).toBe(template.render({ messages, tools, add_generation_prompt: generate }));
      }),
    );
  });
});

describe("the engine", () => {
  const full = { logprobs: true, return_token_ids: true };

  it("returns what it sampled, whole and streamed alike", async () => {
    const engine = await start([{ reasoning: "hm 😀", content: "Es tut 北京", calls: [{ command: "ls" }, { name: "edit", arguments: '{"a":1}' }] }], { drift: 0.3 });
    const whole = await chat(engine, full);
    const { events } = (await chat(engine, { ...full, stream: true, stream_options: { include_usage: true } })) as { events: readonly (string | Chunk)[] };
    expect(events.at(-1)).toBe("[DONE]");
    const chunks = events.filter((event): event is Chunk => typeof event !== "string");
    for (const [ids, logprobs, sample] of [
      [whole["choices"], whole["choices"], engine.samples[0]] as const,
      [chunks.flatMap(({ choices }) => choices), chunks.flatMap(({ choices }) => choices), engine.samples[1]] as const,
    ]) {
      expect((ids as readonly Choice[]).flatMap(({ token_ids }) => token_ids ?? [])).toEqual(sample?.completionIds);
      expect((logprobs as readonly Choice[]).flatMap(({ logprobs }) => logprobs?.content ?? []).map(({ logprob }) => logprob)).toEqual(sample?.logprobs);
    }
    const [choice] = whole["choices"] as readonly Choice[];
    expect(choice?.message).toEqual({
      role: "assistant",
      content: "Es tut 北京",
      reasoning: "hm 😀",
      tool_calls: [
        { id: "call-0-0", type: "function", function: { name: "bash", arguments: '{"command": "ls"}' } },
        { id: "call-0-1", type: "function", function: { name: "edit", arguments: '{"a":1}' } },
      ],
    });
    const deltas = chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta));
    expect(deltas.map((delta) => delta?.content ?? "").join("")).toBe("Es tut 北京");
    expect(deltas.map((delta) => delta?.reasoning ?? "").join("")).toBe("hm 😀");
    const calls = deltas.flatMap((delta) => delta?.tool_calls ?? []);
    for (const [index, text] of ['{"command": "ls"}', '{"a":1}'].entries()) expect(calls.map((call) => (call.index === index ? (call.function.arguments ?? "") : "")).join("")).toBe(text);
  });

  it("samples text that extends its own history where the harness sends back what was said", async () => {
    const engine = await start([{ reasoning: "think", content: "first", calls: [{ command: "ls -la" }] }, { content: "done" }]);
    const whole = await chat(engine, full);
    const [choice] = whole["choices"] as readonly Choice[];
    await chat(engine, { ...full, messages: [{ role: "user", content: "hi" }, choice?.message, { role: "tool", tool_call_id: "call-0-0", content: "x" }] });
    const [first, second] = engine.samples;
    const before = [...(first?.promptIds ?? []), ...(first?.completionIds ?? [])];
    expect(second?.promptIds.slice(0, before.length)).toEqual(before);
  });

  it("stops at the limit and at a stop string", async () => {
    const engine = await start(() => ({ content: "one two three four five six seven eight" }));
    const short = (await chat(engine, { ...full, max_tokens: 3 }))["choices"] as readonly Choice[];
    expect(short[0]).toMatchObject({ finish_reason: "length" });
    expect(short[0]?.token_ids?.length).toBe(3);
    const stopped = (await chat(engine, { ...full, stop: ["four"] }))["choices"] as readonly Choice[];
    expect(stopped[0]).toMatchObject({ finish_reason: "stop", stop_reason: "four", message: { content: "one two three " } });
  });
});

interface Choice {
  readonly message?: unknown;
  readonly token_ids?: readonly number[];
  readonly finish_reason?: string;
  readonly logprobs?: { readonly content: readonly { readonly logprob: number }[] };
  readonly delta?: { readonly content?: string; readonly reasoning?: string; readonly tool_calls?: readonly { readonly index: number; readonly function: { readonly arguments?: string } }[] };
}
interface Chunk {
  readonly choices: readonly Choice[];
}

describe("the engine's token endpoints", () => {
  const promptIds = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");

  async function post(engine: Engine, path: string, body: unknown): Promise<{ readonly json: () => Record<string, unknown>; readonly events: () => readonly unknown[] }> {
    const response = await fetch(engine.root + path, { method: "POST", body: JSON.stringify(body) });
    const bytes = new Uint8Array(await response.arrayBuffer());
    return { json: () => JSON.parse(Buffer.from(bytes).toString("utf8")) as Record<string, unknown>, events: () => new SseParser().push(bytes).map(({ data }) => (data === "[DONE]" ? data : (JSON.parse(data) as unknown))) };
  }

  it("take ids and give back what was sampled, as vLLM does", async () => {
    const engine = await start([{ content: "good 北京 day" }], { drift: 0.5 });
    const body = { token_ids: promptIds, sampling_params: { max_tokens: 100, logprobs: 1 } };
    const whole = (await post(engine, "/inference/v1/generate", body)).json()["choices"] as readonly Choice[];
    const events = (await post(engine, "/inference/v1/generate", { ...body, stream: true })).events();
    expect(events.at(-1)).toBe("[DONE]");
    const chunks = (events.slice(0, -1) as readonly Chunk[]).flatMap(({ choices }) => choices);
    for (const [choices, sample] of [[whole, engine.samples[0]] as const, [chunks, engine.samples[1]] as const]) {
      expect(sample?.promptIds).toEqual(promptIds);
      expect(choices.flatMap(({ token_ids }) => token_ids)).toEqual(sample?.completionIds);
      expect(choices.flatMap(({ logprobs }) => logprobs?.content ?? []).map(({ logprob }) => logprob)).toEqual(sample?.logprobs);
      expect(decode(sample?.completionIds ?? [], { skipSpecial: true })).toBe("good 北京 day");
      expect(choices.at(-1)?.finish_reason).toBe("stop");
    }
  });

  it("take ids and give back what was sampled, as SGLang does, with the version", async () => {
    const engine = await start([{ content: "good day" }], { flavour: "sglang", drift: 0.5 });
    engine.version = "v7";
    const body = { input_ids: promptIds, sampling_params: { max_new_tokens: 100 }, return_logprob: true, rid: "r1" };
    const whole = (await post(engine, "/generate", body)).json();
    const events = (await post(engine, "/generate", { ...body, stream: true })).events();
    const last = events.at(-2) as Record<string, unknown>;
    for (const [answer, sample] of [[whole, engine.samples[0]] as const, [last, engine.samples[1]] as const]) {
      expect(answer).toMatchObject({ text: "good day", output_ids: sample?.completionIds, meta_info: { id: "r1", weight_version: "v7", finish_reason: { type: "stop" } } });
      expect((answer["meta_info"] as Record<string, unknown>)["output_token_logprobs"]).toEqual(sample?.completionIds.map((id, at) => [sample.logprobs[at], id, null]));
    }
    await post(engine, "/abort_request", { rid: "r1" });
    expect(engine.aborted).toEqual(["r1"]);
    expect((await post(engine, "/generate", body)).json()).toMatchObject({ meta_info: { finish_reason: { type: "abort" } } });
  });

  it("know the turn of a prompt", async () => {
    const engine = await start([{ content: "first" }, { content: "second" }], { turnsBy: "tools" });
    const text = [...renderChat([{ role: "user", content: "hi" }, { role: "assistant", content: "first", tool_calls: [{ function: { name: "bash", arguments: "{}" } }] }, { role: "tool", content: "a" }, { role: "tool", content: "b" }], [])];
    const choices = (await post(engine, "/v1/completions", { prompt: encode(text.join("")), return_token_ids: true })).json()["choices"] as readonly (Choice & { readonly text: string })[];
    expect(choices[0]).toMatchObject({ text: "second", token_ids: engine.samples[0]?.completionIds });
    expect(engine.requests[0]).toMatchObject({ turn: 1, toolTurns: 1 });
  });
});

describe("the engine by itself", () => {
  it("answers from a file, turn by turn of the tools", async () => {
    const directory = mkdtempSync(join(tmpdir(), "mw-engine-"));
    writeFileSync(join(directory, "script.json"), JSON.stringify([{ calls: [{ command: "ls" }] }, { content: "done" }]));
    const child = spawn(process.execPath, ["--import", "tsx", join(import.meta.dirname, "main.ts"), "--port", "0", "--flavour", "openai", "--level", "text", "--script", join(directory, "script.json")], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      let root = "";
      for await (const line of createInterface(child.stdout)) {
        root = line;
        break;
      }
      const ask = async (messages: readonly unknown[]): Promise<Choice> => {
        const response = await fetch(`${root}/v1/chat/completions`, { method: "POST", body: JSON.stringify({ model: "m", messages }) });
        return ((await response.json()) as { readonly choices: readonly [Choice] }).choices[0];
      };
      const first = await ask([{ role: "user", content: "hi" }]);
      expect(first).toMatchObject({ message: { tool_calls: [{ function: { name: "bash" } }] }, logprobs: null });
      expect(await ask([{ role: "user", content: "hi" }, first.message, { role: "tool", content: "x" }])).toMatchObject({ message: { content: "done" }, finish_reason: "stop" });
    } finally {
      child.kill();
      rmSync(directory, { recursive: true, force: true });
    }
  });
});

import { afterEach, describe, expect, it } from "vitest";
import { startEngine, type Engine, type EngineOptions, type EngineScript, type Reply } from "../../../../test/support/engine/index.ts";
import { MODEL_DIRECTORY } from "../../../../test/support/engine/tokenizer.ts";
import { BASH, turn } from "../../../../test/support/turns.ts";
import type { AnswerBlock, Message, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { Renderer } from "../../render/renderer.ts";
import { SentHistory } from "../../session/sent-history.ts";
import { conversationFacts } from "../../trace/message-key.ts";
import { openUpstream } from "../open.ts";
import { parseUpstreamSpec } from "../spec.ts";
import type { Generation, TokenHistory, Upstream } from "../upstream.ts";

const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

const renderer = await Renderer.load(MODEL_DIRECTORY);

async function serve(script: EngineScript, options: EngineOptions = {}): Promise<{ readonly engine: Engine; readonly upstream: Upstream }> {
  const engine = await startEngine(script, options);
  const upstream = openUpstream(parseUpstreamSpec(`${options.flavour ?? "vllm"}=${engine.root}`, "test"), { apiKey: null, renderer });
  closers.push(() => upstream.close(), () => engine.close());
  return { engine, upstream };
}

let asked = 0;
interface Asking {
  readonly history?: TokenHistory;
  readonly signal?: AbortSignal;
  readonly onText?: (text: string) => void | Promise<void>;
  readonly requestId?: string;
}

async function generate(upstream: Upstream, request: TurnRequest, { history, signal = new AbortController().signal, onText, requestId = `request-${asked++}` }: Asking = {}): Promise<Generation> {
  const blocks: AnswerBlock[] = [];
  const onDelta = async (delta: Parameters<NonNullable<Parameters<Upstream["generate"]>[0]["onDelta"]>>[0]): Promise<void> => {
    const last = blocks.at(-1);
    if (delta.type === "tool_call") blocks.push({ ...delta, arguments: "" });
    else if (delta.type === "arguments" && last?.type === "tool_call") blocks[blocks.length - 1] = { ...last, arguments: last.arguments + delta.text };
    else if (delta.type === "text" || delta.type === "reasoning") {
      if (last?.type === delta.type) blocks[blocks.length - 1] = { ...last, text: last.text + delta.text };
      else blocks.push(delta.type === "reasoning" ? { type: "reasoning", text: delta.text, signature: null } : { type: "text", text: delta.text });
      await onText?.(delta.text);
    } else throw new Error(`unexpected ${delta.type}`);
  };
  const generation = await upstream.generate({ request, requestId, onDelta: request.stream ? onDelta : null, history: history ?? null, signal });
  if (request.stream) expect(blocks).toEqual(generation.answer.blocks);
  return generation;
}

async function failure(promise: Promise<unknown>): Promise<GatewayFailure> {
  const error = await promise.then(() => null, (reason: unknown) => reason);
  if (!(error instanceof GatewayFailure)) throw new Error("expected a failure", { cause: error });
  return error;
}

const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });

describe.each([
  ["vllm", false],
  ["vllm", true],
  ["sglang", false],
  ["sglang", true],
] as const)("%s, streamed: %s", (flavour, stream) => {
  it.each<Reply>([
    { content: "Hallo 北京 😀, wie geht's?\n" },
    { reasoning: "let me think 😀", content: "done" },
    { reasoning: "only that" },
    { calls: [{ command: "ls -la" }] },
    { reasoning: "r", content: "I will look.", calls: [{ command: "ls" }, { name: "edit", arguments: '{"path": "/é北", "text": "a\\nb"}' }, { command: "pwd" }] },
    { content: "" },
  ])("gives the blocks and the exact tokens: %j", async (reply) => {
    const { engine, upstream } = await serve([reply], { flavour, drift: 0.3 });
    const { answer, tokens, notes } = await generate(upstream, turn({ stream, tools: [BASH] }));
    expect(answer.blocks).toMatchObject([
      ...(reply.reasoning === undefined ? [] : [{ type: "reasoning", text: reply.reasoning }]),
      ...((reply.content ?? "") === "" ? [] : [{ type: "text", text: reply.content }]),
      ...(reply.calls ?? []).map((call) => ({ type: "tool_call", name: call.name ?? "bash", arguments: call.arguments ?? `{"command": ${JSON.stringify(call.command)}}` })),
    ]);
    const sampled = engine.samples[0]!;
    expect(tokens).toEqual({ ...sampled, versions: flavour === "sglang" ? [["0", sampled.completionIds.length]] : [] });
    expect(answer.finish).toBe(reply.calls === undefined ? "stop" : "tool_calls");
    expect(answer.usage).toMatchObject({ promptTokens: sampled.promptIds.length, completionTokens: sampled.completionIds.length });
    expect(notes).toEqual([]);
  });

  it("extends the recorded tokens turn by turn, whatever the template would make of them", async () => {
    const replies: Reply[] = [
      { reasoning: "look first", content: "I look.", calls: [{ arguments: '{ "command":"ls" ,  "x": 1.0}' }] },
      { calls: [{ command: "cat a" }, { command: "cat b" }] },
      { reasoning: "enough", content: "It is 北京.\n" },
      { content: "cut off in the middle of", finishReason: "length" },
      { reasoning: "again", content: "done" },
    ];
    const { engine, upstream } = await serve((request) => replies[request.turn] ?? {}, { flavour, drift: 0.4 });
    const history = new SentHistory();
    const messages: Message[] = [{ role: "system", name: "system", content: [{ type: "text", text: "Be exact." }] }, user("What is in a and b?")];
    for (let at = 0; at < replies.length; at++) {
      const request = turn({ stream, tools: [BASH], messages: [...messages] });
      const generation = await generate(upstream, request, { history });
      expect(generation.notes).toEqual([]);
      const { answer, tokens } = generation;
      history.add(at, conversationFacts(request), answer, tokens!);
      // As a harness would send it back: without the thoughts, with arguments spelled anew.
      messages.push({ role: "assistant", content: answer.blocks.flatMap((block): AnswerBlock[] => (block.type === "reasoning" ? [] : block.type === "tool_call" ? [{ ...block, arguments: JSON.stringify(JSON.parse(block.arguments)) }] : [block])) });
      const calls = answer.blocks.flatMap((block) => (block.type === "tool_call" ? [block.id] : []));
      expect(new Set(calls).size).toBe(calls.length);
      for (const callId of calls) messages.push({ role: "tool", callId, name: "bash", content: [{ type: "text", text: "ok" }], isError: false });
      if (calls.length === 0) messages.push(user("Go on."));
    }
    expect(engine.samples.length).toBe(replies.length);
    for (let at = 1; at < engine.samples.length; at++) {
      const before = [...engine.samples[at - 1]!.promptIds, ...engine.samples[at - 1]!.completionIds];
      expect(engine.samples[at]!.promptIds.slice(0, before.length)).toEqual(before);
      const added = engine.samples[at]!.promptIds.slice(before.length).map((id) => renderer.tokenizer.textOf(id)).join("");
      const cutOff = replies[at - 1]!.finishReason === "length";
      const next = replies[at - 1]!.calls?.map(() => "\n<tool_response>\nok\n</tool_response>").join("") ?? "\nGo on.";
      expect(added).toBe(`${cutOff ? "<|im_end|>" : ""}\n<|im_start|>user${next}<|im_end|>\n<|im_start|>assistant\n`);
    }
  });

  it("stops at a string wherever tokens cut it, and keeps the tokens up to there", async () => {
    const { engine, upstream } = await serve([{ reasoning: "think STO", content: "one two STOP three four five six seven" }], { flavour, drift: 1 });
    const { answer, tokens } = await generate(upstream, turn({ stream, sampling: { stop: ["never", "STOP"] } }));
    expect(answer).toMatchObject({ finish: "stop_sequence", stopSequence: "STOP", blocks: [{ type: "reasoning", text: "think STO" }, { type: "text", text: "one two " }] });
    const { completionIds, logprobs } = engine.samples[0]!;
    expect(tokens?.completionIds).toEqual(completionIds.slice(0, tokens!.completionIds.length));
    expect(tokens?.logprobs).toEqual(logprobs.slice(0, tokens!.completionIds.length));
    expect(tokens?.completionIds.map((id) => renderer.tokenizer.textOf(id)).join("")).toMatch(/two STOP$/);
  });

  it("refuses a prompt that does not fit, with exact numbers, and limits an answer to what is left", async () => {
    const { engine, upstream } = await serve(() => ({ content: "word ".repeat(200) }), { flavour, contextTokens: 120 });
    await upstream.probe("test-model", new AbortController().signal);
    const before = engine.requests.length;
    const long = turn({ stream, messages: [user("word ".repeat(400))] });
    const counted = await upstream.countTokens(long, new AbortController().signal);
    expect(await failure(generate(upstream, long))).toMatchObject({ kind: "context_overflow", details: { promptTokens: counted, contextTokens: 120 } });
    expect(engine.requests.length).toBe(before);
    const { answer, tokens } = await generate(upstream, turn({ stream, sampling: { maxTokens: 5_000 } }));
    expect(answer.finish).toBe("context");
    expect(tokens!.promptIds.length + tokens!.completionIds.length).toBe(120);
    expect((await generate(upstream, turn({ stream, sampling: { maxTokens: 7 } }))).answer).toMatchObject({ finish: "length", usage: { completionTokens: 7 } });
  });

  it.each<readonly [string, Reply, string]>([
    ["429", { status: 429, headers: { "retry-after": "2" }, raw: "slow down" }, "rate_limited"],
    ["500", { status: 500, raw: "" }, "upstream"],
    ["a connection that breaks in the middle", { content: "a longer answer", breakOff: "body" }, "upstream|truncated"],
    ...(stream ? [["an error in the stream", { content: "a longer answer", streamError: { error: { message: "out of memory", code: 500 } } }, "upstream"] as const] : []),
    ["garbage", { raw: "<html>" }, "upstream"],
    ["JSON that is no answer", { raw: "{}" }, "upstream"],
    ["ids that are none", { raw: '{"choices":[{"token_ids":["x"],"finish_reason":"stop"}],"output_ids":[1.5],"meta_info":{"completion_tokens":1}}' }, "upstream"],
  ])("%s is a failure, not an answer", async (_name, reply, kinds) => {
    const { upstream } = await serve([reply], { flavour });
    expect(kinds.split("|")).toContain((await failure(generate(upstream, turn({ stream })))).kind);
  });

  it("tries a closed connection once more", async () => {
    const { engine, upstream } = await serve([[{ breakOff: "connection" }, { content: "fine" }]], { flavour });
    expect((await generate(upstream, turn({ stream }))).answer.blocks).toEqual([{ type: "text", text: "fine" }]);
    expect(engine.requests.length).toBe(2);
  });

  it("probes the tokens, and says what a level without them lacks", async () => {
    const { upstream } = await serve(() => ({ content: "x" }), { flavour });
    expect(await upstream.probe("test-model", new AbortController().signal)).toEqual({ capture: "tokens", reason: null, models: [{ id: "test-model", contextTokens: 131_072 }] });
    const { upstream: bare } = await serve(() => ({ content: "x" }), { flavour, level: "text" });
    expect(await bare.probe("test-model", new AbortController().signal)).toMatchObject({ capture: "text" });
  });

  it("shows the alternatives of each token to a harness that asks", async () => {
    const { engine, upstream } = await serve([{ content: "a 北" }], { flavour });
    const { answer } = await generate(upstream, turn({ stream, logprobs: 1 }));
    expect(answer.logprobs?.map(({ logprob }) => logprob)).toEqual(engine.samples[0]!.logprobs);
    expect(Buffer.from(answer.logprobs!.flatMap(({ bytes }) => bytes ?? [])).toString()).toBe("a 北<|im_end|>");
  });
});

describe("generations that end before their answer", () => {
  it.each(["vllm", "sglang"] as const)("%s: ends the generation on the server when the harness hangs up", async (flavour) => {
    const { engine, upstream } = await serve([{ content: "word ".repeat(500), trickleMs: 20 }], { flavour });
    const controller = new AbortController();
    const reason = new Error("hung up");
    await expect(generate(upstream, turn({ stream: true }), { signal: controller.signal, requestId: "mine", onText: () => controller.abort(reason) })).rejects.toBe(reason);
    await expect.poll(() => (flavour === "sglang" ? engine.aborted : engine.hungUp), { timeout: 30_000 }).toEqual(flavour === "sglang" ? ["mine"] : 1);
  });

  it.each([false, true])("goes on from the sampled tokens when the server aborts for new weights, streamed: %s", async (stream) => {
    let abort = (): void => undefined;
    const aborted = new Promise<void>((resolve) => (abort = resolve));
    // Streamed, more than comes before the abort does.
    const first = stream ? { content: "one two three four ".repeat(100), trickleMs: 20 } : { content: "one two three four", after: aborted };
    const { engine, upstream } = await serve((request) => (request.promptIds.length === prompt ? first : { content: " and the rest" }), { flavour: "sglang" });
    const request = turn({ stream });
    const prompt = await upstream.countTokens(request, new AbortController().signal);
    const update = async (): Promise<void> => {
      if (engine.version === "1") return;
      engine.version = "1";
      await fetch(`${engine.root}/abort_request`, { method: "POST", body: JSON.stringify({ rid: "mine" }) });
      abort();
    };
    const running = generate(upstream, request, { requestId: "mine", onText: stream ? update : undefined } as Asking);
    if (!stream) await update();
    const { answer, tokens, notes } = await running;
    const [begun, second] = engine.samples as [(typeof engine.samples)[number], (typeof engine.samples)[number]];
    const kept = tokens!.completionIds.length - second.completionIds.length;
    expect(kept).toBeGreaterThan(0);
    expect(second.promptIds).toEqual([...begun.promptIds, ...begun.completionIds.slice(0, kept)]);
    expect(tokens).toMatchObject({ promptIds: begun.promptIds, completionIds: [...begun.completionIds.slice(0, kept), ...second.completionIds], logprobs: [...begun.logprobs.slice(0, kept), ...second.logprobs] });
    expect(tokens?.versions.reduce((sum, [, count]) => sum + count, 0)).toBe(tokens?.completionIds.length);
    expect(tokens?.versions.at(-1)?.[0]).toBe("1");
    expect(answer.blocks).toMatchObject([{ type: "text", text: expect.stringMatching(/^o.* and the rest$/) as unknown }]);
    expect(notes).toEqual([`The model server aborted the generation after ${kept} tokens; it was resumed from there.`]);
  });

  it("uses completions where vLLM has no endpoint for tokens", async () => {
    const { engine, upstream } = await serve((request) => (request.path === "/v1/completions" ? { content: "fine" } : { status: 404, raw: '{"detail":"Not Found"}' }));
    for (const stream of [false, true]) {
      const { answer, tokens } = await generate(upstream, turn({ stream }));
      expect(answer.blocks).toEqual([{ type: "text", text: "fine" }]);
      expect(tokens).toEqual({ ...engine.samples.at(-1), versions: [] });
    }
    expect(engine.requests.map(({ path }) => path)).toEqual(["/inference/v1/generate", "/v1/completions", "/v1/completions"]);
  });

  it("refuses what it cannot enforce, by name", async () => {
    const { engine, upstream } = await serve([{ content: "x" }]);
    expect(await failure(generate(upstream, turn({ tools: [BASH], toolChoice: { type: "required" } })))).toMatchObject({ kind: "invalid_request", details: { field: "tool_choice" } });
    expect(await failure(generate(upstream, turn({ extra: { logit_bias: {} } })))).toMatchObject({ kind: "invalid_request", details: { field: "logit_bias" } });
    expect(await failure(generate(upstream, turn({ messages: [{ role: "user", content: [{ type: "image", source: { kind: "url", url: "x" } }] }] })))).toMatchObject({ kind: "invalid_request", details: { field: "messages" } });
    expect(engine.requests).toEqual([]);
  });
});

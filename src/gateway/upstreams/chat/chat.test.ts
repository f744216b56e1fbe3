import { afterEach, describe, expect, it } from "vitest";
import { startEngine, type Engine, type EngineOptions, type EngineScript, type Reply } from "../../../../test/support/engine/index.ts";
import { BASH, turn } from "../../../../test/support/turns.ts";
import type { AnswerBlock, Delta, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { openUpstream, type OpenUpstreamOptions } from "../open.ts";
import { parseUpstreamSpec } from "../spec.ts";
import type { Generation, Upstream } from "../upstream.ts";

const KEY = "sk-secret-0123456789abcdef";
const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

async function serve(script: EngineScript, options: EngineOptions & Partial<OpenUpstreamOptions> & { readonly kind?: string } = {}): Promise<{ readonly engine: Engine; readonly upstream: Upstream }> {
  const engine = await startEngine(script, options);
  const kind = options.kind ?? options.flavour ?? "vllm";
  const upstream = openUpstream(parseUpstreamSpec(`${kind}=${engine.root}`, "test"), { apiKey: options.apiKey ?? KEY, ...(options.callMs === undefined ? {} : { callMs: options.callMs }), ...(options.stallMs === undefined ? {} : { stallMs: options.stallMs }) });
  closers.push(() => upstream.close(), () => engine.close());
  return { engine, upstream };
}

let asked = 0;
async function generate(upstream: Upstream, request: TurnRequest, signal = new AbortController().signal): Promise<Generation & { readonly deltas: readonly Delta[] }> {
  const deltas: Delta[] = [];
  const generation = await upstream.generate({ request, requestId: `request-${asked++}`, onDelta: request.stream ? (delta) => void deltas.push(delta) : null, history: null, signal });
  if (request.stream) expect(blocksOf(deltas)).toEqual(generation.answer.blocks);
  return { ...generation, deltas };
}

/** What a dialect makes of the pieces. */
function blocksOf(deltas: readonly Delta[]): readonly AnswerBlock[] {
  const blocks: AnswerBlock[] = [];
  for (const delta of deltas) {
    const last = blocks.at(-1);
    if (delta.type === "tool_call") blocks.push({ ...delta, arguments: "" });
    else if (delta.type === "arguments") {
      if (last?.type !== "tool_call") throw new Error("arguments outside a tool call");
      blocks[blocks.length - 1] = { ...last, arguments: last.arguments + delta.text };
    } else if (delta.type === "signature") throw new Error("no upstream signs");
    else if (last?.type === delta.type) blocks[blocks.length - 1] = { ...last, text: last.text + delta.text } as AnswerBlock;
    else blocks.push(delta.type === "reasoning" ? { type: "reasoning", text: delta.text, signature: null } : { type: delta.type, text: delta.text });
  }
  return blocks;
}

async function failure(promise: Promise<unknown>): Promise<GatewayFailure> {
  const error = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  if (!(error instanceof GatewayFailure)) throw new Error("expected a failure", { cause: error });
  return error;
}

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
    const { kind: actual, details, message } = await failure(generate(upstream, turn({ stream })));
    expect({ actual, message }).toMatchObject({ actual: kind });
    if (kind === "rate_limited") expect(details.retryAfterMs).toBe(2000);
  });

  it("is tried once more when a connection breaks before any answer", async () => {
    const { engine, upstream } = await serve([[{ breakOff: "connection" }, { content: "fine" }]]);
    expect((await generate(upstream, turn({ stream }))).answer.blocks).toEqual([{ type: "text", text: "fine" }]);
    expect(engine.requests.length).toBe(2);
    const { upstream: dead, engine: deadEngine } = await serve([{ breakOff: "connection" }]);
    expect(await failure(generate(dead, turn({ stream })))).toMatchObject({ kind: "upstream" });
    expect(deadEngine.requests.length).toBe(2);
  });
});

/** Upstreams under test: an engine, what talks to it, and what a dialect would make of the pieces. */
import { afterEach, expect } from "vitest";
import type { AnswerBlock, Delta, TurnRequest } from "../../src/gateway/conversation.ts";
import { GatewayFailure } from "../../src/gateway/failure.ts";
import { openUpstream, type OpenUpstreamOptions } from "../../src/gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../../src/gateway/upstreams/spec.ts";
import type { Generation, Upstream } from "../../src/gateway/upstreams/upstream.ts";
import { startEngine, type Engine, type EngineOptions, type EngineScript } from "./engine/index.ts";

export const KEY = "sk-secret-0123456789abcdef";
const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

/** `kind`: of the upstream; default the engine's flavour. */
export async function serve(
  script: EngineScript,
  { kind, stallMs, ...options }: EngineOptions & Pick<OpenUpstreamOptions, "stallMs"> & { readonly kind?: string } = {},
): Promise<{ readonly engine: Engine; readonly upstream: Upstream }> {
  const engine = await startEngine(script, options);
  const upstream = connect(`${kind ?? options.flavour ?? "vllm"}=${engine.root}`, stallMs === undefined ? {} : { stallMs });
  closers.push(() => engine.close());
  return { engine, upstream };
}

export function connect(spec: string, options: Pick<OpenUpstreamOptions, "stallMs"> = {}): Upstream {
  const upstream = openUpstream(parseUpstreamSpec(spec, "test"), { apiKey: KEY, ...options });
  closers.push(() => upstream.close());
  return upstream;
}

let asked = 0;
/** Collects the deltas of a streamed request and holds them against the answer. */
export async function generate(upstream: Upstream, request: TurnRequest, signal: AbortSignal = new AbortController().signal): Promise<Generation & { readonly deltas: readonly Delta[] }> {
  const deltas: Delta[] = [];
  const generation = await upstream.generate({ request, requestId: `request-${asked++}`, onDelta: request.stream ? (delta) => void deltas.push(delta) : null, history: null, signal });
  if (request.stream) expect(blocksOf(deltas)).toEqual(generation.answer.blocks);
  return { ...generation, deltas };
}

/** The blocks that the pieces are of. */
export function blocksOf(deltas: readonly Delta[]): readonly AnswerBlock[] {
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

export async function failureOf(promise: Promise<unknown>): Promise<GatewayFailure> {
  const error = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  if (!(error instanceof GatewayFailure)) throw new Error("expected a failure", { cause: error });
  return error;
}

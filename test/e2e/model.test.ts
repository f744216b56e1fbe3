import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine, type EngineScript } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-model-"));
const home = join(place, "home");
const KEY = "sk-open-sesame-1234567890";
afterAll(() => rmSync(place, { recursive: true, force: true }));

describe("mw run with a model", () => {
  it("lets the model work, keeps its tokens, and keeps the key out of everything", async () => {
    const instruction = "Write hello to /work/out.  \n\ttrailing  é\r\n\n";
    const task = writeTask(join(place, "task"), { name: "test/model", instruction });
    const engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out; env" }] }, { content: "done" }]);
    try {
      const args = ["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m", "-n", "2", "--temperature", "0.7", "--seed", "3", "--price", "input=100,cached=10,output=400", "--json", "--quiet"];
      const { code, stdout, stderr } = await mw(args, { env: { MW_HOME: home, MW_API_KEY: KEY } });
      expect({ code, stderr: stderr.replace(/^preparing.*\n/m, "") }).toEqual({ code: 0, stderr: "" });
      const { run, rollouts, outcomes } = JSON.parse(stdout) as { run: string; rollouts: { rollout: string; reward: number; stopReason: string }[]; outcomes: Record<string, number> };
      expect(outcomes).toEqual({ scored: 2 });
      for (const { reward, stopReason } of rollouts) expect({ reward, stopReason }).toEqual({ reward: 1, stopReason: "finished" });

      for (const line of (await mw(["export", run], { env: { MW_HOME: home } })).stdout.trim().split("\n")) {
        const rollout = JSON.parse(line) as { instruction: string; turns: number; messages: { role: string; content: string }[]; calls: { status: string; tokens: { completionIds: number[] } | null; sampling: { temperature: number } }[] };
        expect(rollout.instruction).toBe(instruction);
        expect(rollout.turns).toBe(2);
        expect(rollout.messages.find(({ role }) => role === "user")?.content).toBe(instruction);
        expect(rollout.calls.length).toBe(2);
        for (const call of rollout.calls) {
          expect(call.status).toBe("complete");
          expect(call.tokens?.completionIds.length).toBeGreaterThan(0);
          expect(call.sampling.temperature).toBe(0.7);
        }
      }
      // Two calls of each rollout, and the run's own questions before it starts.
      const asked = engine.requests.filter(({ body }) => "tools" in body);
      expect(asked.length).toBe(4);
      // What it costs is what the server counted, at the prices that were given.
      const shown = JSON.parse((await mw(["show", run, "--json"], { env: { MW_HOME: home } })).stdout) as { cost: Record<string, number>; statistics: { overall: { dollars: number } }; harnesses: { dollars: number }[]; phases: { dollars: number }[] };
      const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
      const prompts = asked.map(({ promptIds }) => promptIds.length);
      const cached = sum(prompts.map((tokens) => Math.floor(tokens / 16) * 16));
      const sampled = sum(engine.samples.filter(({ promptIds }) => asked.some((request) => request.promptIds === promptIds || request.promptIds.join() === promptIds.join())).map(({ completionIds }) => completionIds.length));
      expect(cached).toBeGreaterThan(0);
      expect(shown.cost["input"]).toBeCloseTo(((sum(prompts) - cached) * 100) / 1e6, 9);
      expect(shown.cost["cached"]).toBeCloseTo((cached * 10) / 1e6, 9);
      expect(shown.cost["output"]).toBeCloseTo((sampled * 400) / 1e6, 9);
      for (const dollars of [shown.statistics.overall.dollars, sum(shown.harnesses.map((one) => one.dollars)), sum(shown.phases.map((one) => one.dollars))]) expect(dollars).toBeCloseTo(shown.cost["total"] ?? -1, 9);
      expect((await mw(["show", run], { env: { MW_HOME: home } })).stdout).toMatch(/^cost: \$[\d.]+ \(prompts \$[\d.]+, cached prompts \$[\d.]+, sampled \$[\d.]+\), \$[\d.]+ a rollout, \$[\d.]+ for each that passed$/m);
      expect(new Set(engine.requests.map(({ headers }) => headers["authorization"]))).toEqual(new Set([`Bearer ${KEY}`]));
      expect(filesWith(home, KEY)).toEqual([]);
      expect(stdout + stderr).not.toContain(KEY);
    } finally {
      await engine.close();
    }
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("counts what was asked in a try that is thrown away, and says how much that is", async () => {
    const task = writeTask(join(place, "twice"), { name: "test/twice" });
    let broken = true;
    const engine = await startEngine(({ body, turn }) => {
      if (!("tools" in body)) return { content: "x" };
      if (turn === 0) return { content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] };
      if (!broken) return { content: "done" };
      broken = false;
      return { status: 400, raw: JSON.stringify({ error: { message: "no such adapter", type: "invalid_request_error" } }) };
    });
    try {
      const { stdout } = await mw(["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m", "--price", "input=100,output=400", "--json", "--quiet"], { env: { MW_HOME: home } });
      const { run, rollouts } = JSON.parse(stdout) as { run: string; rollouts: { rollout: string; reward: number; tries: number }[] };
      expect(rollouts).toMatchObject([{ reward: 1, tries: 2 }]);
      const [first, ...others] = engine.samples.slice(-3);
      const tokens = (samples: typeof others): { promptTokens: number; completionTokens: number } => ({ promptTokens: samples.reduce((sum, { promptIds }) => sum + promptIds.length, 0), completionTokens: samples.reduce((sum, { completionIds }) => sum + completionIds.length, 0) });
      const [lost, kept] = [tokens(first === undefined ? [] : [first]), tokens(others)];
      const dollars = ({ promptTokens, completionTokens }: typeof lost): number => (promptTokens * 100 + completionTokens * 400) / 1e6;
      const shown = JSON.parse((await mw(["show", run, "--json"], { env: { MW_HOME: home } })).stdout) as { tokens: unknown; cost: unknown };
      expect(shown.tokens).toMatchObject({ promptTokens: lost.promptTokens + kept.promptTokens, completionTokens: lost.completionTokens + kept.completionTokens, thrownAway: { ...lost, tries: 1, uncounted: 0 } });
      expect(shown.cost).toMatchObject({ total: expect.closeTo(dollars(lost) + dollars(kept), 9) as number, thrownAway: expect.closeTo(dollars(lost), 9) as number, unknown: 0 });
      for (const name of [run, rollouts[0]?.rollout ?? ""]) {
        const text = (await mw(["show", name], { env: { MW_HOME: home } })).stdout;
        expect(text).toContain(` sampled; of which ${lost.promptTokens.toLocaleString("en")} and ${lost.completionTokens} in 1 try that was thrown away\n`);
        expect(text).toMatch(/^cost: \$[\d.]+ \(prompts .*; of which \$[\d.]+ in 1 try that was thrown away\)/m);
      }
    } finally {
      await engine.close();
    }
  });

  it("begins again, when asked to, what ended for the model server's sake, and says why a run has no samples", async () => {
    const task = writeTask(join(place, "again"), { name: "test/again" });
    let broken = true;
    const isProbe = (body: Readonly<Record<string, unknown>>): boolean => !("tools" in body);
    const engine = await startEngine(({ body, turn }) => (broken && !isProbe(body) ? { status: 400, raw: JSON.stringify({ error: { message: "no such adapter", type: "invalid_request_error" } }) } : turn > 0 ? { content: "done" } : { content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }));
    try {
      const first = await mw(["run", task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "test-model", "-n", "2", "--concurrency", "2", "--json", "--quiet"], { env: { MW_HOME: home } });
      const { run, outcomes } = JSON.parse(first.stdout) as { run: string; outcomes: Record<string, number> };
      expect(outcomes).toEqual({ model_error: 2 });
      const out = join(place, "none.safetensors");
      const none = await mw(["export", run, "--format", "safetensors", "--out", out], { env: { MW_HOME: home } });
      expect([none.code, none.stderr]).toEqual([2, expect.stringContaining("has no samples")]);
      expect(readdirSync(place)).not.toContain("none.safetensors");
      broken = false;
      // Without being asked to, what is recorded stands.
      expect(JSON.parse((await mw(["resume", run, "--json", "--quiet"], { env: { MW_HOME: home } })).stdout)).toMatchObject({ outcomes: { model_error: 2 } });
      const again = await mw(["resume", run, "--errors", "--json", "--quiet"], { env: { MW_HOME: home } });
      expect([again.code, again.stderr]).toEqual([0, ""]);
      expect(JSON.parse(again.stdout)).toMatchObject({ run, outcomes: { model_error: 2, scored: 2 } });
      expect((await mw(["export", run, "--format", "safetensors", "--out", out], { env: { MW_HOME: home } })).stderr).toContain("2 samples");
      const oracle = JSON.parse((await mw(["run", task, "--harness", "oracle", "--json", "--quiet"], { env: { MW_HOME: home } })).stdout) as { run: string };
      expect((await mw(["export", oracle.run, "--format", "parquet", "--out", out], { env: { MW_HOME: home } })).stderr).toContain("none of its rollouts called a model");
    } finally {
      await engine.close();
    }
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("gives each attempt a sampling seed of its own, the same ones in an equal run, and records them", async () => {
    const task = writeTask(join(place, "seeded"), { name: "test/seeded" });
    const seedsOf = async (sampling: string, seed: string): Promise<number[]> => {
      const engine = await startEngine([{ content: null, calls: [{ command: "true" }] }, { content: "done" }]);
      try {
        const { code, stdout, stderr } = await mw(["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m", "-n", "3", "--sampling-seed", sampling, "--seed", seed, "--json", "--quiet"], { env: { MW_HOME: home } });
        expect(code, stderr).toBe(0);
        const { run } = JSON.parse(stdout) as { run: string };
        const lines = (await mw(["export", run], { env: { MW_HOME: home } })).stdout.trim().split("\n");
        const recorded = lines.map((line) => (JSON.parse(line) as { calls: { sampling: { seed: number } }[] }).calls.map(({ sampling }) => sampling.seed));
        expect(recorded.flat().sort()).toEqual(engine.requests.filter(({ body }) => "tools" in body).map(({ body }) => (body as { seed: number }).seed).sort());
        // One for all calls of a rollout.
        for (const seeds of recorded) expect(new Set(seeds).size).toBe(1);
        return recorded.map((seeds) => seeds[0] ?? -1);
      } finally {
        await engine.close();
      }
    };
    const first = await seedsOf("7", "a");
    expect(new Set(first).size).toBe(3);
    for (const seed of first) expect(seed).toBeGreaterThanOrEqual(0);
    expect(await seedsOf("7", "a")).toEqual(first);
    expect(await seedsOf("8", "a")).not.toEqual(first);
    expect(await seedsOf("7", "b")).not.toEqual(first);
  });
});

describe("mw run with a program that calls the model by itself", () => {
  it.each(["native", "oci"])("gives it a model API inside its machine (%s), whose calls are in the rollout's log, and which is closed with it", async (backend) => {
    const task = writeTask(join(place, "generic"), { name: "test/generic" });
    // The image is the host's: its Node is there.
    const program = `const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify({ model: "any", messages: [{ role: "user", content: "How?" }] }) });
      if (!(await answer.text()).includes("write hello")) process.exit(1);`;
    const ask = `${process.execPath} --input-type=module -e '${program}' && mkdir -p /work && echo hello > /work/out; env`;
    const engine = await startEngine([{ content: "Just write hello." }]);
    try {
      const { code, stdout, stderr } = await mw(["run", task, "--harness", "generic", "--harness-command", ask, "--upstream", `vllm=${engine.url}`, "--model", "m", "--require-tokens", "--json", "--quiet"], { env: { MW_HOME: home, MW_API_KEY: KEY, MW_BACKEND: backend } });
      expect(code, stderr).toBe(0);
      const { run, outcomes, rollouts } = JSON.parse(stdout) as { run: string; outcomes: unknown; rollouts: { rollout: string; reward: number }[] };
      expect(outcomes).toEqual({ scored: 1 });
      expect(rollouts[0]?.reward).toBe(1);
      const exported = JSON.parse((await mw(["export", run], { env: { MW_HOME: home } })).stdout) as { turns: number; calls: { dialect: string; model: string; tokens: { completionIds: number[]; logprobs: number[] } }[] };
      expect(exported).toMatchObject({ turns: 1, calls: [{ dialect: "openai-chat", model: "m" }] });
      expect(exported.calls[0]?.tokens.completionIds).toEqual(engine.samples.at(-1)?.completionIds);
      expect(exported.calls[0]?.tokens.logprobs).toEqual(engine.samples.at(-1)?.logprobs);
      expect(filesWith(home, KEY)).toEqual([]);
    } finally {
      await engine.close();
    }
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("renders the prompts itself where it has the tokenizer, each an exact extension of the tokens before it", async () => {
    const task = writeTask(join(place, "rendered"), { name: "test/rendered" });
    const engine = await startEngine([{ reasoning: "hm", content: "So.", calls: [{ arguments: '{ "command":"mkdir -p /work" }' }] }, { calls: [{ command: "echo hello > /work/out" }] }, { content: "done" }], { flavour: "sglang", drift: 0.3 });
    try {
      const args = ["run", task, "--harness", "bash", "--upstream", `sglang=${engine.root}`, "--model", "m", "--tokenizer", MODEL_DIRECTORY, "--require-tokens", "--json", "--quiet"];
      const { code, stdout, stderr } = await mw(args, { env: { MW_HOME: home } });
      expect(code, stderr).toBe(0);
      const { run, rollouts } = JSON.parse(stdout) as { run: string; rollouts: { reward: number }[] };
      expect(rollouts.map(({ reward }) => reward)).toEqual([1]);
      const { calls } = JSON.parse((await mw(["export", run], { env: { MW_HOME: home } })).stdout) as { calls: { notes: string[]; tokens: { promptIds: number[]; completionIds: number[] } }[] };
      expect(calls.map(({ notes }) => notes)).toEqual([[], [], []]);
      // After the probe: the engine was given ids alone.
      expect(engine.requests.slice(1).map(({ path }) => path)).toEqual(["/generate", "/generate", "/generate"]);
      for (let at = 1; at < calls.length; at++) {
        const before = [...calls[at - 1]!.tokens.promptIds, ...calls[at - 1]!.tokens.completionIds];
        expect(calls[at]!.tokens.promptIds.slice(0, before.length)).toEqual(before);
      }
    } finally {
      await engine.close();
    }
  });

  it("says what is wrong with a tokenizer directory before anything runs", async () => {
    const task = writeTask(join(place, "no-tokenizer"), { name: "test/no-tokenizer" });
    const engine = await startEngine([{ content: "x" }]);
    try {
      const run = (...flags: string[]): ReturnType<typeof mw> => mw(["run", task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "m", ...flags], { env: { MW_HOME: home } });
      expect(await run("--tokenizer", place)).toMatchObject({ code: 2, stderr: expect.stringContaining("has no tokenizer.json") as unknown });
      expect(await run("--tokenizer", MODEL_DIRECTORY, "--family", "gpt5")).toMatchObject({ code: 2, stderr: expect.stringContaining("no model family") as unknown });
      expect(await run("--family", "qwen")).toMatchObject({ code: 2, stderr: expect.stringContaining("no tokenizer is given") as unknown });
      expect(engine.requests).toEqual([]);
    } finally {
      await engine.close();
    }
  });

  it("ends as the model's failure when the model server fails under it, and as the agent's own when it does not", async () => {
    const task = writeTask(join(place, "failing"), { name: "test/failing" });
    const program = `const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify({ model: "any", messages: [{ role: "user", content: "How?" }] }) });
      await answer.text();
      process.exit(answer.ok ? 7 : 1);`;
    const outcomesOf = async (script: EngineScript): Promise<unknown> => {
      const engine = await startEngine(script);
      try {
        const { stdout, stderr } = await mw(["run", task, "--harness", "generic", "--harness-command", `${process.execPath} --input-type=module -e '${program}'`, "--upstream", engine.url, "--model", "m", "--json", "--quiet"], { env: { MW_HOME: home } });
        if (stdout === "") throw new Error(stderr);
        return (JSON.parse(stdout) as { outcomes: unknown }).outcomes;
      } finally {
        await engine.close();
      }
    };
    // The run's own questions are answered.
    expect(await outcomesOf(({ body }) => (body["max_tokens"] === 1 ? { content: "x" } : { status: 500 }))).toEqual({ model_error: 1 });
    expect(await outcomesOf(() => ({ content: "x" }))).toEqual({ scored: 1 });
  });

  it("says that nothing can be trained on, and shows who did what", async () => {
    const task = writeTask(join(place, "shown"), { name: "test/shown" });
    const engine = await startEngine([{ calls: [{ command: "mkdir -p /work; head -c 5000 /dev/zero | tr '\\0' x" }] }, { content: "done" }], { level: "text" });
    try {
      const env = { MW_HOME: home };
      const { code, stdout, stderr } = await mw(["run", task, "--harness", "bash,claude-like", "-n", "4", "--seed", "1", "--upstream", engine.url, "--model", "m", "--json"], { env });
      expect(code, stderr).toBe(0);
      expect(stderr.split("the rollouts cannot be trained on: ").length).toBe(2);
      const { run, rollouts } = JSON.parse(stdout) as { run: string; rollouts: { rollout: string; harness: string }[] };
      expect(new Set(rollouts.map(({ harness }) => harness))).toEqual(new Set(["bash", "claude-like"]));
      const ofRun = (await mw(["show", run, "--all"], { env })).stdout;
      for (const { rollout, harness } of rollouts) expect(ofRun).toMatch(new RegExp(`^${rollout} .* ${harness} `, "m"));
      const { stdout: ofRollout, stderr: hint } = await mw(["show", rollouts.find(({ harness }) => harness === "bash")?.rollout ?? ""], { env });
      expect(ofRollout).toContain(" 4600 characters more\n");
      expect(hint).toContain("--tokens");
      expect(ofRollout).toContain('    bash {"command": "mkdir -p /work; head');
      expect(ofRollout).toMatch(/ modelMs=\d+ /);

      const exported = (out: string): ReturnType<typeof mw> => mw(["export", run, "--format", "safetensors", "--out", out], { env });
      expect(await exported(join(place, "nowhere", "samples"))).toMatchObject({ code: 2, stderr: expect.stringContaining(`there is no directory ${join(place, "nowhere")}`) as unknown });
      expect(await exported(place)).toMatchObject({ code: 2, stderr: expect.stringContaining("is a directory") as unknown });
    } finally {
      await engine.close();
    }
  });

  it("exits as for a host that lacks something when the model does not answer", async () => {
    const task = writeTask(join(place, "wrong-model"), { name: "test/wrong-model" });
    const engine = await startEngine(() => ({ status: 404, raw: '{"message":"The model `m` does not exist."}' }));
    try {
      const { code, stderr } = await mw(["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m"], { env: { MW_HOME: home } });
      expect([code, stderr]).toEqual([3, expect.stringMatching(/does not exist[^]*--model/)]);
    } finally {
      await engine.close();
    }
  });

  it("is not started for training on a server that gives no tokens", async () => {
    const task = writeTask(join(place, "untrained"), { name: "test/untrained" });
    const engine = await startEngine([{ content: "x" }], { level: "text" });
    try {
      const { code, stderr } = await mw(["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m", "--require-tokens"], { env: { MW_HOME: home } });
      expect([code, stderr]).toEqual([3, expect.stringContaining("exact tokens")]);
    } finally {
      await engine.close();
    }
  });
});

function filesWith(directory: string, text: string): string[] {
  return readdirSync(directory, { withFileTypes: true }).flatMap((entry) => {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) return filesWith(path, text);
    return entry.isFile() && statSync(path).size < 1 << 24 && readFileSync(path).includes(text) ? [path] : [];
  });
}

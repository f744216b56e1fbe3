import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { runCli } from "../../src/cli/run-cli.ts";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { until } from "../support/gateway.ts";

const place = mkdtempSync(join(tmpdir(), "mw-gateway-e2e-"));
const home = join(place, "home");
let engine: Engine;
beforeAll(async () => {
  engine = await startEngine(() => ({ content: "Hello from the engine." }));
});
afterAll(async () => {
  await engine.close();
  rmSync(place, { recursive: true, force: true });
});

interface Running {
  readonly stdout: () => string;
  readonly stderr: () => string;
  /** Interrupts it, and gives its exit code. */
  stop(): Promise<number>;
}

/** `mw gateway` in this process, once it has said where it is. */
async function start(args: readonly string[]): Promise<Running> {
  let stdout = "";
  let stderr = "";
  let interrupt: (signal: "SIGINT") => void = () => undefined;
  const ended = runCli(["gateway", "--upstream", `vllm=${engine.url}`, "--port", "0", ...args], {
    stdout: { write: (text) => void (stdout += text) },
    stderr: { write: (text) => void (stderr += text) },
    env: { MW_HOME: home, HOME: "/nonexistent" },
    cwd: place,
    onInterrupt: (listener) => {
      interrupt = listener;
      return () => undefined;
    },
  });
  await Promise.race([until(() => stdout !== ""), ended]);
  if (stdout === "") throw new Error(stderr);
  return {
    stdout: () => stdout,
    stderr: () => stderr,
    stop: () => {
      interrupt("SIGINT");
      return ended;
    },
  };
}

describe("mw gateway", () => {
  it("records what any agent says under the name that it gives as its key, and shows it", async () => {
    const running = await start([]);
    const url = /gateway (\S+)/.exec(running.stdout())?.[1] ?? "";
    expect(running.stdout()).toContain(`export ANTHROPIC_BASE_URL=${url} `);
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "first-try" });
    const secret = new Anthropic({ baseURL: url, apiKey: "sk-ant-really-secret" });
    expect((await openai.chat.completions.create({ model: "whatever", messages: [{ role: "user", content: "Hi." }] })).choices[0]?.message.content).toBe("Hello from the engine.");
    await Promise.all([1, 2].map((n) => secret.messages.create({ model: "claude", max_tokens: 50, messages: [{ role: "user", content: `Hi ${n}.` }] })));
    // What it says of itself can be typed in.
    await expect(openai.chat.completions.create({ model: "x", messages: [{ role: "user", content: [{ type: "file", file: {} }] as never }] })).rejects.toMatchObject({ status: 400 });
    expect(await running.stop()).toBe(0);

    const sessions = new Map(readdirSync(join(home, "gateway")).map((name) => [(JSON.parse(readFileSync(join(home, "gateway", name, "session.json"), "utf8")) as { name: string }).name, name]));
    expect([...sessions.keys()].sort()).toEqual(["first-try", expect.stringMatching(/^key-[0-9a-f]{8}$/)]);
    expect(JSON.stringify([...sessions]) + running.stderr()).not.toContain("really-secret");
    const shown = await mw(["show", sessions.get("first-try") ?? "", "--tokens", "--json"], { env: { MW_HOME: home } });
    expect(shown.code, shown.stderr).toBe(0);
    const { calls, samples } = JSON.parse(shown.stdout) as { calls: { status: string; completionTokens: number }[]; samples: unknown[] };
    expect(calls.map(({ status }) => status)).toEqual(["complete", "failed"]);
    expect(calls[0]?.completionTokens).toBeGreaterThan(0);
    expect(samples.length).toBe(1);
    expect((await mw(["show", sessions.get("first-try") ?? ""], { env: { MW_HOME: home } })).stdout).toContain("Hello from the engine.");
    expect((await mw(["show", "first-try"], { env: { MW_HOME: home } })).stdout).toContain("Hello from the engine.");
    expect((await mw(["show", "ses00000000000000000000"], { env: { MW_HOME: home } })).code).toBe(2);
  });

  it("serves named sessions alone, where that is asked", async () => {
    const directory = join(place, "traces");
    // Whatever kills it finds nothing to leave behind but the traces.
    const temporary = join(place, "tmp");
    mkdirSync(temporary);
    vi.stubEnv("TMPDIR", temporary);
    const running = await start(["--session", "alpha", "--session", "beta", "--dir", directory, "--json", "--quiet", "--model", "test-model"]);
    const { url, capture, sessions } = JSON.parse(running.stdout()) as { url: string; capture: string; sessions: { name: string; session: string; token: string }[] };
    expect([capture, sessions.map(({ name }) => name)]).toEqual(["tokens", ["alpha", "beta"]]);
    vi.unstubAllEnvs();
    expect(readdirSync(temporary)).toEqual([]);
    const client = (apiKey: string): OpenAI => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
    const ask = (apiKey: string): Promise<unknown> => client(apiKey).chat.completions.create({ model: "m", messages: [{ role: "user", content: "Hi." }] });
    await ask(sessions[1]?.token ?? "");
    await expect(ask("alpha")).rejects.toMatchObject({ status: 401 });
    expect(await running.stop()).toBe(0);
    expect(existsSync(join(directory, sessions[1]?.session ?? "", "calls.jsonl"))).toBe(true);
    expect(existsSync(join(directory, sessions[0]?.session ?? "", "calls.jsonl"))).toBe(false);
    expect((await mw(["show", join(directory, sessions[1]?.session ?? "")], { env: { MW_HOME: home } })).code).toBe(0);
  });

  it("renders prompts itself where it is given the tokenizer", async () => {
    const running = await start(["--session", "alpha", "--json", "--quiet", "--tokenizer", MODEL_DIRECTORY, "--model", "test-model"]);
    const { url, sessions } = JSON.parse(running.stdout()) as { url: string; sessions: { token: string }[] };
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: sessions[0]?.token ?? "", maxRetries: 0 });
    await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "Hi." }] });
    expect(engine.requests.at(-1)?.path).toBe("/inference/v1/generate");
    expect(await running.stop()).toBe(0);
  });

  it("does not start without a server, a model, a free port, or tokens where they are required", async () => {
    const env = { MW_HOME: home };
    const code = async (...args: string[]): Promise<readonly [number, string]> => {
      const result = await mw(["gateway", ...args], { env });
      return [result.code, result.stderr];
    };
    expect(await code()).toEqual([2, expect.stringContaining("--upstream")]);
    expect(await code("--upstream", "vllm=http://127.0.0.1:1")).toEqual([3, expect.stringContaining("ECONNREFUSED")]);
    expect(await code("--upstream", `vllm=${engine.url}`, "--port", new URL(engine.url).port)).toEqual([3, expect.stringContaining("another port")]);
    const text = await startEngine(() => ({ content: "x" }), { level: "text" });
    for (const sessions of [[], ["--session", "a"]]) expect(await code("--upstream", `vllm=${text.url}`, "--require-tokens", ...sessions, "--port", "0")).toEqual([3, expect.stringContaining("returns no exact tokens")]);
    await text.close();
    const locked = createServer((_request, response) => response.writeHead(401).end()).listen(0, "127.0.0.1");
    await once(locked, "listening");
    // A server that listens on TCP has such an address.
    expect(await code("--upstream", `vllm=http://127.0.0.1:${(locked.address() as AddressInfo).port}`)).toEqual([3, expect.stringMatching(/HTTP 401[^]*MW_API_KEY/)]);
    locked.close();
  });
});

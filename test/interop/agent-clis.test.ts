/**
 * The real agent CLIs, fetched and baked once, in real machines without network, against a scripted model: an image without a C library, without Python, without
 * Node, and without bash.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { systemRuntime } from "../../src/core/runtime.ts";
import { GatewayFailure } from "../../src/gateway/failure.ts";
import { bakedHarness, bakeHarness } from "../../src/harness/bake/bake.ts";
import { CLI_DESCRIPTORS } from "../../src/harness/cli/descriptors/index.ts";
import type { CliDescriptor } from "../../src/harness/cli/descriptor.ts";
import { rehearse, type Rehearsal, type RehearsalOptions } from "../../src/harness/rehearsal/rehearse.ts";
import { openImageStore, type LocalImageStore } from "../../src/image/store.ts";
import { openNativeBackend } from "../../src/sandbox/index.ts";
import type { LayerMount, SandboxBackend } from "../../src/sandbox/sandbox.ts";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { writeTask } from "../support/tasks.ts";

let home = "";
let store: LocalImageStore;
let backend: SandboxBackend;
let image: TestRoot;
const layers = new Map<string, readonly LayerMount[]>();

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "mw-interop-"));
  store = await openImageStore({ home });
  backend = await openNativeBackend({ home });
  image = makeTestRoot();
}, 120_000);
afterAll(async () => {
  await backend.close();
  image.remove();
  rmSync(home, { recursive: true, force: true });
});

async function bake(descriptor: CliDescriptor): Promise<readonly LayerMount[]> {
  const known = layers.get(descriptor.name);
  if (known !== undefined) return known;
  const baked = await bakeHarness(store, descriptor, { env: process.env, progress: () => undefined });
  const made = (await store.rootFilesystem(baked)).layers.map((path) => ({ path }));
  layers.set(descriptor.name, made);
  return made;
}

async function play(descriptor: CliDescriptor, options: Partial<RehearsalOptions> = {}): Promise<Rehearsal> {
  return rehearse({ backend, root: image.root, layers: await bake(descriptor), descriptor, runtime: systemRuntime, signal: new AbortController().signal, ...options });
}

function failures({ checks }: Rehearsal): unknown {
  return checks.filter(({ ok }) => !ok);
}

describe.each(CLI_DESCRIPTORS.map((descriptor) => [descriptor.name, descriptor] as const))("%s", (_name, descriptor) => {
  it("is baked once, and found afterwards", async () => {
    await bake(descriptor);
    expect(await bakedHarness(store, descriptor)).not.toBeNull();
  });

  it("works as an ordinary user", async () => {
    expect(failures(await play(descriptor, { user: "agent" }))).toEqual([]);
  });

  it("works as root, and with a task that is blanks, line ends and options", async () => {
    expect(failures(await play(descriptor, { instruction: "\n\n  - [ ] one\n--version\n\t/help x\n \n" }))).toEqual([]);
  });

  it("works as a user of whom the image knows nothing", async () => {
    expect(failures(await play(descriptor, { user: "23456:23456" }))).toEqual([]);
  });

  it("is not what the image's environment is for", async () => {
    const env = { ...image.root.env, LD_LIBRARY_PATH: "/evil", LD_PRELOAD: "/evil/x.so", NODE_OPTIONS: "--require=/evil.js", PYTHONHOME: "/evil", PYTHONPATH: "/evil", ANTHROPIC_AUTH_TOKEN: "evil", HTTP_PROXY: "http://127.0.0.1:1", https_proxy: "http://127.0.0.1:1" };
    const { checks } = await play(descriptor, { root: { ...image.root, env }, user: "agent" });
    // The commands see what the image says.
    expect(checks.filter(({ ok }) => !ok).map(({ name }) => name)).toEqual(["commands inherit nothing of how the CLI is loaded"]);
  });

  it("says so when the conversation no longer fits the model", async () => {
    const { end, error, calls } = await play(descriptor, { user: "agent", fault: () => new GatewayFailure("context_overflow", "The prompt has 2000 tokens, the model takes 1000.", { promptTokens: 2000, contextTokens: 1000 }) });
    expect({ calls: calls.length > 0, stop: end?.stopReason ?? error }).toEqual({ calls: true, stop: "context_overflow" });
  });

  it("is no agent that gave up when it got no answer at all", async () => {
    const { error, end } = await play(descriptor, { user: "agent", fault: () => new GatewayFailure("refused_by_upstream", "No such model.") });
    expect(error ?? end).toMatchObject({ code: "environment", message: expect.stringContaining("It got no answer of the model") as unknown });
  });

  it("ends when its budget of model calls is used up", async () => {
    const { error, end, calls } = await play(descriptor, { user: "agent", budgets: { calls: 1 } });
    expect(error ?? end).toMatchObject({ stopReason: "turns", turns: 1 });
    expect(calls.filter(({ status }) => status === "complete")).toHaveLength(1);
  });
});

describe("baking", () => {
  it("gives the same layers again", async () => {
    const descriptor = CLI_DESCRIPTORS.find(({ name }) => name === "continue");
    if (descriptor === undefined) throw new Error("no such descriptor");
    await bake(descriptor);
    const first = await bakedHarness(store, descriptor);
    await store.remove(`mw-harness/${descriptor.name}:${descriptor.version}`);
    expect(await bakedHarness(store, descriptor)).toBeNull();
    const again = await bakeHarness(store, descriptor, { env: process.env, progress: () => undefined });
    expect(again.layers).toEqual(first?.layers);
  });
});

/** The name and arguments of the shell in a request that reached the inference server. */
function shellCall(body: Readonly<Record<string, unknown>>, command: string): { readonly name: string; readonly arguments: string } {
  const names = (body["tools"] as { function: { name: string } }[]).map((tool) => tool.function.name);
  const name = ["bash", "Bash", "run_shell_command", "exec_command"].find((candidate) => names.includes(candidate));
  if (name === undefined) throw new Error(`no shell among ${names.join(", ")}`);
  return { name, arguments: JSON.stringify(name === "exec_command" ? { cmd: command } : { command, ...(name === "run_shell_command" ? { is_background: false } : {}) }) };
}

describe("mw run", () => {
  beforeAll(async () => {
    // The data directory, with everything that was baked, goes to the runs.
    await backend.close();
  });

  it("comes after mw harness ls and test, which say what is there and whether it works", async () => {
    await Promise.all(CLI_DESCRIPTORS.map(bake));
    const env = { MW_HOME: home };
    const { harnesses } = JSON.parse((await mw(["harness", "ls", "--json"], { env })).stdout) as { harnesses: { name: string; baked: boolean; bytes: number }[] };
    expect(harnesses.map(({ name, baked }) => [name, baked])).toEqual(CLI_DESCRIPTORS.map(({ name }) => [name, true]));
    for (const { bytes } of harnesses) expect(bytes).toBeGreaterThan(10_000_000);
    const { code, stdout } = await mw(["harness", "test", "codex", "pi", "--json", "--quiet"], { env });
    expect({ code, ok: (JSON.parse(stdout) as { ok: boolean }).ok }).toEqual({ code: 0, ok: true });
    expect((await mw(["image", "ls"], { env })).stdout).toContain("mw-harness/codex:0.171.0");
  });

  it.each(CLI_DESCRIPTORS.map((descriptor) => [descriptor.name, descriptor] as const))("lets %s work on a task through the gateway, with its exact tokens", async (name, descriptor) => {
    await bake(descriptor);
    const instruction = "\n- [ ] Write `hello` to $(pwd)/../work/out\n\t'é 北'\n";
    const task = writeTask(join(home, "tasks", name), { name: `interop/${name}`, instruction });
    const engine = await startEngine(({ body, toolTurns }) => {
      if (!Array.isArray(body["tools"]) || body["tools"].length === 0) return { content: "x" };
      if (toolTurns === 0) return { content: null, calls: [shellCall(body, "mkdir -p /work; echo hello > /work/out")] };
      return toolTurns === 1 && descriptor.doneCommand !== undefined ? { content: null, calls: [shellCall(body, descriptor.doneCommand)] } : { content: "done" };
    });
    try {
      const args = ["run", task, "--harness", name, "--upstream", `vllm=${engine.url}`, "--model", "m", "--require-tokens", "--timeout-multiplier", "10", "--seed", "1", "--json", "--quiet"];
      const { code, stdout, stderr } = await mw(args, { env: { MW_HOME: home } });
      expect(code, stderr).toBe(0);
      const { run, rollouts } = JSON.parse(stdout) as { run: string; rollouts: { reward: number; stopReason: string; outcome: string; error: unknown }[] };
      expect(rollouts).toEqual([expect.objectContaining({ outcome: "scored", reward: 1, stopReason: "finished", error: null })]);
      const exported = JSON.parse((await mw(["export", run], { env: { MW_HOME: home } })).stdout) as { turns: number; calls: { status: string; dialect: string; request: unknown; tokens: { completionIds: number[]; logprobs: number[] } | null }[] };
      expect(exported.calls.length).toBeGreaterThanOrEqual(2);
      for (const call of exported.calls) {
        expect(call).toMatchObject({ status: "complete", dialect: descriptor.dialect });
        expect(call.tokens?.completionIds.length).toBeGreaterThan(0);
        expect(call.tokens?.logprobs).toHaveLength(call.tokens?.completionIds.length ?? -1);
      }
      const asked = JSON.stringify(engine.requests.find(({ body }) => "tools" in body)?.body["messages"]);
      expect(asked).toContain(JSON.stringify(descriptor.trimsInstruction === true ? instruction.trim() : instruction).slice(1, -1));
    } finally {
      await engine.close();
    }
  });
});

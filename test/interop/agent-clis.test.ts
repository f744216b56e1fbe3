/**
 * The real agent CLIs, fetched and baked once, in real machines without network, against a scripted model: an image without a C library, without Python, without
 * Node, and without bash.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { systemRuntime } from "../../src/core/runtime.ts";
import { bakedHarness, bakeHarness } from "../../src/harness/bake/bake.ts";
import { CLI_DESCRIPTORS } from "../../src/harness/cli/descriptors/index.ts";
import type { CliDescriptor } from "../../src/harness/cli/descriptor.ts";
import { rehearse, type Rehearsal, type RehearsalOptions } from "../../src/harness/rehearsal/rehearse.ts";
import type { Fault } from "../../src/harness/rehearsal/scripted-model.ts";
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

const chatError = (status: number, message: string, code: string | null): Fault => ({ status, headers: { "x-should-retry": "false" }, body: JSON.stringify({ type: "error", error: { type: "invalid_request_error", message, code } }) });
const OVERFLOWS: Readonly<Record<CliDescriptor["dialect"], Fault>> = {
  "openai-chat": chatError(400, "This model's maximum context length is 1000 tokens. However, your messages resulted in 2000 tokens.", "context_length_exceeded"),
  "openai-responses": chatError(400, "Your input exceeds the context window of this model.", "context_length_exceeded"),
  anthropic: chatError(400, "prompt is too long: 2000 tokens > 1000 maximum", null),
  gemini: { status: 400, body: JSON.stringify({ error: { code: 400, message: "The input token count (2000) exceeds the maximum number of tokens allowed (1000).", status: "INVALID_ARGUMENT" } }) },
};
const NOT_FOUND: Readonly<Record<CliDescriptor["dialect"], Fault>> = {
  "openai-chat": chatError(404, "no such model", "model_not_found"),
  "openai-responses": chatError(404, "no such model", "model_not_found"),
  anthropic: { status: 404, body: JSON.stringify({ type: "error", error: { type: "not_found_error", message: "model: no such model" } }) },
  gemini: { status: 404, body: JSON.stringify({ error: { code: 404, message: "no such model", status: "NOT_FOUND" } }) },
};

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

  it("says so when the conversation no longer fits the model", async () => {
    const { end, error, requests } = await play(descriptor, { user: "agent", fault: () => OVERFLOWS[descriptor.dialect] });
    expect({ requests: requests.length > 0, stop: end?.stopReason ?? error }).toEqual({ requests: true, stop: "context_overflow" });
  });

  it("says so when the model is not there", async () => {
    const { error, end } = await play(descriptor, { user: "agent", fault: () => NOT_FOUND[descriptor.dialect] });
    expect(error ?? end).toMatchObject({ code: "upstream_failed" });
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
  return { name, arguments: JSON.stringify(name === "exec_command" ? { cmd: command } : { command, description: "work", is_background: false }) };
}

describe("mw run", () => {
  beforeAll(async () => {
    // The data directory, with everything that was baked, goes to the runs.
    await backend.close();
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

/** Rollouts that are asked for one at a time: `POST /run` in NeMo Gym's form, and the environment server of `mw serve --zmq`. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { pack, unpack } from "msgpackr";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Dealer } from "zeromq";
import { nemoOpenApi } from "../../src/server/nemo/index.ts";
import { startEngine, type Engine, type EngineScript } from "../support/engine/index.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";

const base = mkdtempSync(join(tmpdir(), "mw-single-"));
const home = join(base, "home");
const address = `ipc://${join(base, "zmq")}`;
const WORKS: EngineScript = [{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }];
let server: Served;
let engine: Engine;
let sleepy: Engine;
let task = "";
beforeAll(async () => {
  task = writeTask(join(base, "task"), { name: "test/hello" });
  engine = await startEngine(WORKS, { flavour: "vllm" });
  sleepy = await startEngine([{ content: null, calls: [{ command: "sleep 600" }] }], { flavour: "vllm" });
  server = await serve({ home, args: ["--zmq", address] });
});
afterAll(async () => {
  await server.stop();
  await engine.close();
  await sleepy.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

type Document = Readonly<Record<string, unknown>>;

async function run(body: unknown): Promise<{ readonly status: number; readonly body: Document }> {
  const answer = await fetch(`${server.url}/run`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  return { status: answer.status, body: (await answer.json()) as Document };
}

type Tokens = Readonly<Record<"prompt_token_ids" | "generation_token_ids" | "generation_log_probs", readonly number[]>>;

describe("POST /run", () => {
  const policy = (): Document => ({ url: engine.root, model: "test-model", kind: "vllm" });

  it("answers with what was said, the tokens of each answer, and the reward", async () => {
    const { status, body } = await run({ responses_create_params: { input: [], temperature: 1 }, task, policy: policy(), row: { id: 7 } });
    expect(status, JSON.stringify(body)).toBe(200);
    expect(body).toMatchObject({ reward: 1, mask_sample: false, failure_kind: null, task, row: { id: 7 }, manyworlds: { outcome: "scored", samples_left_out: 0 } });
    const { output } = body["response"] as { readonly output: readonly (Document & Partial<Tokens>)[] };
    expect(output.map(({ type }) => type)).toEqual(["function_call", "function_call_output", "message"]);
    const answers = output.filter((item): item is Document & Tokens => "generation_token_ids" in item);
    expect(answers.length).toBe(2);
    let before: readonly number[] = [];
    for (const { prompt_token_ids: prompt, generation_token_ids: generated, generation_log_probs: logprobs } of answers) {
      // What a trainer asserts: each prompt extends all tokens before it.
      expect(prompt.slice(0, before.length)).toEqual(before);
      expect(logprobs.length).toBe(generated.length);
      expect(logprobs.every((value) => Number.isFinite(value) && value <= 0)).toBe(true);
      before = [...prompt, ...generated];
    }
  });

  it("tells a rollout that came to nothing apart from one that earned nothing", async () => {
    const nothing = await run({ responses_create_params: {}, task, policy: { ...policy(), url: (await startEngine([{ content: "no" }], { flavour: "vllm" })).root } });
    expect(nothing.body).toMatchObject({ reward: 0, mask_sample: false, failure_kind: null });
    const broken = writeTask(join(base, "broken"), { name: "test/broken", test: "exit 3\n" } as Parameters<typeof writeTask>[1]);
    const { status, body } = await run({ responses_create_params: {}, task: broken, policy: policy() });
    expect(status).toBe(200);
    expect(body).toMatchObject({ reward: 0, mask_sample: true, failure_kind: "verifier_error" });
    expect(body["failure_reason"]).not.toBeNull();
  });

  it("refuses by the field's name what cannot be run", async () => {
    for (const [body, named] of [
      [{ task, policy: policy() }, "responses_create_params"],
      [{ responses_create_params: {}, task: "here", policy: policy() }, "task"],
      [{ responses_create_params: {}, task }, "policy"],
      [{ responses_create_params: {}, task, policy: { url: engine.root } }, "policy"],
      [{ responses_create_params: {}, task: base, policy: policy() }, "task"],
      [{ responses_create_params: {}, task, harness: "no-such-harness", policy: policy() }, "no-such-harness"],
    ] as const) {
      const { status, body: problem } = await run(body);
      expect([400, 404, 422], JSON.stringify(problem)).toContain(status);
      expect(problem["detail"]).toContain(named);
    }
  });

  it("is described by the committed document", () => {
    const committed = JSON.parse(readFileSync(fileURLToPath(new URL("../../docs/openapi/nemo.json", import.meta.url)), "utf8")) as unknown;
    expect(JSON.parse(JSON.stringify(nemoOpenApi("1")))).toEqual(committed);
  });
});

/** One client of the environment server. */
class Client implements Disposable {
  readonly socket = new Dealer({ linger: 0 });
  readonly heard: { readonly id: string; readonly kind: string; readonly document: Document }[] = [];

  constructor() {
    this.socket.connect(address);
  }

  async send(id: string, method: string, document: unknown): Promise<void> {
    await this.socket.send([id, method, document instanceof Uint8Array ? document : pack(document)]);
  }

  /** The reply to a request; what else comes first is kept in `heard`. */
  async reply(id: string): Promise<Document> {
    for (;;) {
      const [of, kind, data] = (await this.socket.receive()).map((frame) => frame);
      const heard = { id: String(of), kind: String(kind), document: unpack(data ?? new Uint8Array()) as Document };
      this.heard.push(heard);
      if (heard.kind === "reply" && heard.id === id) return heard.document;
    }
  }

  async ask(id: string, method: string, document: unknown): Promise<Document> {
    await this.send(id, method, document);
    return await this.reply(id);
  }

  [Symbol.dispose](): void {
    this.socket.close();
  }
}

describe("the environment server", () => {
  const request = (fields: Document = {}, url = engine.root): Document => ({ task_data: { task, idx: 3, ...fields }, client: { type: "train", base_url: `${url}/v1`, api_key_var: "X" }, model: "test-model", sampling: { temperature: 1, extra: [1] } });

  it("answers a run with what is new of its trace, then with the rest", async () => {
    using client = new Client();
    expect(await client.ask("1", "health", {})).toEqual({ success: true, error: null });
    const reply = await client.ask("2", "run", request());
    expect(reply).toMatchObject({ success: true, head: { ok: true, errors: [], task: { data: { task, idx: 3 } } } });
    const delta = client.heard.find(({ kind }) => kind === "delta")?.document as { readonly trace: string; readonly nodes: readonly Document[]; readonly calls: readonly unknown[]; readonly set: Document };
    expect(reply["traces"]).toEqual([{ id: delta.trace, nodes: delta.nodes.length, calls: delta.calls.length }]);
    expect(delta.set).toMatchObject({ ok: true, is_completed: true, rewards: { reward: { score: 1, weight: 1 } } });
    expect(delta.nodes.filter(({ sampled }) => sampled === true).length).toBe(2);
  });

  it("takes nonsense for what it is, answers it, and goes on", async () => {
    using client = new Client();
    const nonsense: readonly (readonly [string, unknown])[] = [
      ["run", Buffer.from([0xc1])],
      ["run", Buffer.alloc(0)],
      ["run", Buffer.from([0xdd, 0xff, 0xff, 0xff, 0xff])],
      ["run", null],
      ["run", []],
      ["run", { task_data: { task } }],
      ["run", request({ task: "../task" })],
      ["run", request({ task: join(base, "nowhere") })],
      ["run", { ...request(), client: { type: "train", base_url: "no address" } }],
      ["cancel", {}],
      ["__proto__", {}],
      ["", {}],
    ];
    for (const [index, [method, document]] of nonsense.entries()) {
      const reply = await client.ask(`n${index}`, method, document);
      expect(reply, method).toMatchObject({ success: false });
      expect(String(reply["error"]).length).toBeGreaterThan(5);
    }
    await client.socket.send(["alone"]);
    await client.socket.send(["a", "run", "b", "c", "d"]);
    expect(await client.ask("after", "health", {})).toMatchObject({ success: true });
  });

  it("ends a run that its client gives up, and says so", async () => {
    using client = new Client();
    using other = new Client();
    await client.send("slow", "run", request({ deadline_s: 300 }, sleepy.root));
    await expect.poll(() => sleepy.requests.length, { timeout: 60_000 }).toBeGreaterThan(0);
    // Names are each client's own, and one name runs once.
    expect(await other.ask("c1", "cancel", { request_id: "slow" })).toMatchObject({ success: true, cancelled: false });
    await client.send("c2", "cancel", { request_id: "slow" });
    expect(await client.reply("slow")).toMatchObject({ success: false, error: expect.stringContaining("Cancelled") as string });
    expect(client.heard.find(({ id }) => id === "c2")?.document).toMatchObject({ success: true, cancelled: true });
    expect(await client.ask("c3", "cancel", { request_id: "slow" })).toMatchObject({ success: true, cancelled: false });
  });

  it("does not fail because a client is gone before its answer", async () => {
    {
      using gone = new Client();
      await gone.send("gone", "run", request());
      await gone.ask("h", "health", {});
    }
    using client = new Client();
    expect(await client.ask("1", "run", request())).toMatchObject({ success: true });
  });
});

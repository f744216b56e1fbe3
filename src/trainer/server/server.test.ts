import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { decodedDistributions, TINY, tinyParameters } from "../../../test/support/trainer.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { Model } from "../model/decoder.ts";
import { parameterShapes, type Parameters } from "../model/shape.ts";
import { readTensors, writeTensors } from "../safetensors.ts";
import { Engine, type SampledToken } from "./engine.ts";
import { startPolicyServer, type PolicyServer } from "./http.ts";

const RULES = { temperature: 0.8, topP: 1, topK: -1, minP: 0 };
const place = mkdtempSync(join(tmpdir(), "mw-policy-"));
const KEY = "secret";
const VERSIONS: Readonly<Record<string, Parameters>> = { 0: tinyParameters("0"), 1: tinyParameters("1") };
let engine: Engine;
let server: PolicyServer;
beforeAll(async () => {
  for (const [version, parameters] of Object.entries(VERSIONS)) {
    mkdirSync(join(place, version));
    await writeTensors(join(place, version, "model.safetensors"), parameters, parameterShapes(TINY));
  }
  engine = new Engine({ model: new Model(TINY, tinyParameters("0")), version: "0" });
  server = await startPolicyServer({
    engine,
    model: "tiny",
    key: KEY,
    readWeights: async (directory, version) => ({ model: new Model(TINY, await readTensors(join(directory, "model.safetensors"), parameterShapes(TINY))), version }),
    runtime: systemRuntime,
  });
});
afterAll(async () => {
  await server.close();
  rmSync(place, { recursive: true, force: true });
});

interface Body {
  readonly output_ids: number[];
  readonly meta_info: { readonly finish_reason: { readonly type: string }; readonly weight_version: string; readonly weight_versions?: { version: string; start: number; end: number }[]; readonly output_token_logprobs: [number, number, null][]; readonly completion_tokens: number };
}

function post(path: string, body: unknown, key = KEY): Promise<Response> {
  return fetch(`${server.url}${path}`, { method: "POST", headers: { authorization: `Bearer ${key}` }, body: typeof body === "string" ? body : JSON.stringify(body) });
}

async function generate(fields: Readonly<Record<string, unknown>>): Promise<Body> {
  const response = await post("/generate", { input_ids: [1, 2, 3], return_logprob: true, ...fields });
  expect(response.status).toBe(200);
  return (await response.json()) as Body;
}

/** Every token's log-probability is that of its own version, given everything before it. */
function expectExact(prompt: readonly number[], tokens: readonly { readonly id: number; readonly logprob: number; readonly version: string }[], temperature: number): void {
  const answer = tokens.map(({ id }) => id);
  for (const [at, { id, logprob, version }] of tokens.entries()) {
    const all = decodedDistributions(TINY, VERSIONS[version] ?? tinyParameters("none"), prompt, answer, temperature)[at];
    expect(logprob).toBeCloseTo(all?.[id - TINY.spokenFrom] ?? Number.NaN, 5);
  }
}

describe("the engine", () => {
  const ask = { requestId: "r", promptIds: [1, 2], rules: RULES, maxTokens: 12, endIds: new Set<number>(), alternatives: 0 };

  it("goes on under new weights in the middle of an answer, and each token says by which it was sampled", async () => {
    const own = new Engine({ model: new Model(TINY, tinyParameters("0")), version: "0" });
    let draws = 0;
    const random = (): number => ((draws++ * 0.37) % 1);
    const answered = own.generate({ ...ask, random }, (token: SampledToken) => {
      if (token.version === "0" && draws === 5) own.load({ model: new Model(TINY, tinyParameters("1")), version: "1" });
    });
    const { tokens, finish } = (await answered) ?? { tokens: [], finish: null };
    expect(finish).toEqual({ type: "length", length: 12 });
    expect(tokens.map(({ version }) => version).join("")).toBe("000001111111");
    expectExact([1, 2], tokens, RULES.temperature);
  });

  it("ends what is aborted with what it has, and only that", async () => {
    const own = new Engine({ model: new Model(TINY, tinyParameters("0")), version: "0" });
    let count = 0;
    const stopped = own.generate({ ...ask, requestId: "a-1", random: () => 0.5 }, () => {
      if (++count === 3) own.abort("a-");
    });
    const other = own.generate({ ...ask, requestId: "b-1", random: () => 0.5 });
    expect(await stopped).toMatchObject({ finish: { type: "abort" }, tokens: { length: 3 } });
    expect(await other).toMatchObject({ finish: { type: "length" }, tokens: { length: 12 } });
    expect(own.active).toBe(0);
  });

  it("samples side by side what it samples alone", async () => {
    const alone = await generate({ sampling_params: { max_new_tokens: 8, sampling_seed: 5 } });
    const many = await Promise.all(Array.from({ length: 20 }, (_, index) => generate({ sampling_params: { max_new_tokens: 8, sampling_seed: index } })));
    expect(many[5]?.output_ids).toEqual(alone.output_ids);
    expect(new Set(many.map(({ output_ids: ids }) => ids.join())).size).toBeGreaterThan(5);
  });
});

describe("the server", () => {
  it("gives ids and the log-probabilities of what was sampled from, whole and streamed alike", async () => {
    const sampling = { max_new_tokens: 10, sampling_seed: 3, temperature: 0.8 };
    const whole = await generate({ sampling_params: sampling });
    expect(whole.output_ids.length).toBe(10);
    expect(whole.meta_info).toMatchObject({ finish_reason: { type: "length" }, weight_version: "0", completion_tokens: 10 });
    expectExact([1, 2, 3], whole.meta_info.output_token_logprobs.map(([logprob, id]) => ({ id, logprob, version: "0" })), 0.8);
    const response = await post("/generate", { input_ids: [1, 2, 3], return_logprob: true, stream: true, sampling_params: sampling });
    const events = (await response.text()).split("\n\n").flatMap((line) => (line.startsWith("data: {") ? [JSON.parse(line.slice(6)) as Body] : []));
    expect(events.length).toBe(10);
    expect(events.flatMap(({ output_ids: ids }) => ids)).toEqual(whole.output_ids);
    expect(events.map(({ meta_info: meta }) => meta.finish_reason?.type ?? null)).toEqual([...Array.from({ length: 9 }, () => null), "length"]);
  });

  it("stops at a stop token, which is part of the answer", async () => {
    const { output_ids: ids, meta_info: meta } = await generate({ sampling_params: { max_new_tokens: 12, sampling_seed: 1, stop_token_ids: [4, 5, 6] } });
    expect([4, 5, 6]).toContain(ids.at(-1));
    expect(ids.slice(0, -1).some((id) => id < 7)).toBe(false);
    expect(meta.finish_reason.type).toBe("stop");
  });

  it("takes weights from a directory; what is no such directory changes nothing", async () => {
    expect((await post("/update_weights_from_disk", { model_path: join(place, "1"), weight_version: "1" })).status).toBe(200);
    expect((await generate({ sampling_params: { max_new_tokens: 2 } })).meta_info.weight_version).toBe("1");
    const refused = await post("/update_weights_from_disk", { model_path: join(place, "none"), weight_version: "2" });
    expect(refused.status).toBe(400);
    expect(await refused.text()).toContain("no weights");
    expect((await generate({ sampling_params: { max_new_tokens: 2 } })).meta_info.weight_version).toBe("1");
    expect((await post("/update_weights_from_disk", { model_path: join(place, "0"), weight_version: "0" })).status).toBe(200);
  });

  it("is for who has the key", async () => {
    for (const path of ["/generate", "/update_weights_from_disk", "/abort_request"]) expect((await post(path, {}, "other")).status).toBe(401);
    expect((await fetch(`${server.url}/v1/models`)).status).toBe(401);
    expect((await fetch(`${server.url}/health`)).status).toBe(200);
  });

  it.each([
    ["no JSON", "{", 400, "not JSON"],
    ["no tokens", { input_ids: [] }, 400, "input_ids"],
    ["a token that is none", { input_ids: [99] }, 400, "token 99"],
    ["a prompt beyond the context", { input_ids: Array.from({ length: 17 }, () => 1) }, 400, "context length (16 tokens)"],
    ["what it cannot do", { input_ids: [1], sampling_params: { json_schema: "{}" } }, 400, "json_schema"],
    ["text", { text: "hello", input_ids: [1] }, 400, "text"],
    ["penalties", { input_ids: [1], sampling_params: { frequency_penalty: 1 } }, 400, "frequency_penalty"],
    ["a nowhere", null, 400, ""],
  ])("refuses %s by name", async (_, body, status, words) => {
    const response = await post("/generate", body);
    expect(response.status).toBe(status);
    expect(await response.text()).toContain(words);
  });

  it("ends a generation whose client has gone", async () => {
    const gone = new AbortController();
    const asked = fetch(`${server.url}/generate`, { method: "POST", headers: { authorization: `Bearer ${KEY}` }, body: JSON.stringify({ input_ids: [1], stream: true, sampling_params: { max_new_tokens: 12 } }), signal: gone.signal });
    await asked.catch(() => undefined);
    gone.abort();
    while (engine.active > 0) await new Promise((resolve) => setImmediate(resolve));
    expect(engine.active).toBe(0);
  });
});

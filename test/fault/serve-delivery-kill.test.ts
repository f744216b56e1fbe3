/** `mw serve` killed in the middle of a trainer's groups, with real machines and a real model server: started again it goes on. */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { startEngine, type EngineScript } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-serve-delivery-"));
const home = join(place, "home");
mkdirSync(home);
let served: Served | null = null;
afterAll(async () => {
  await served?.stop();
  rmSync(place, { recursive: true, force: true });
});

const KEY = "a-key-of-the-test";
const WORKS: EngineScript = [{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }];

async function ask(method: string, path: string, body?: unknown): Promise<Record<string, unknown>> {
  const response = await fetch(`${served?.url ?? ""}${path}`, { method, headers: { accept: "application/json", authorization: `Bearer ${KEY}`, ...(body === undefined ? {} : { "content-type": "application/json" }) }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  expect([path, response.status, response.ok ? "" : text]).toEqual([path, 200, ""]);
  return JSON.parse(text) as Record<string, unknown>;
}

interface Group {
  readonly group_id: string;
  readonly outcome: string;
  readonly samples: { readonly reward: number; readonly loss_mask: number[]; readonly versions: number[]; readonly logprobs: number[] }[];
}

it("every group is delivered, once, whenever the server is killed", async () => {
  const task = writeTask(join(place, "task"), { name: "test/hello" });
  const engine = await startEngine(WORKS, { flavour: "sglang" });
  const start = async (): Promise<void> => {
    served = await serve({ home, key: KEY });
  };
  await start();
  await ask("PUT", "/v1/runs/train", { group_size: 2, concurrency: 2, batch_groups: 4, max_staleness: 4, tokenizer: { directory: MODEL_DIRECTORY }, budgets: { turns: 4 } });
  await ask("PUT", "/v1/runs/train/policy", { version: 0, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
  const names = ["a", "b", "c", "d"];
  await ask("POST", "/v1/runs/train/groups", { groups: names.map((group_id) => ({ group_id, task, seed: group_id })) });
  const delivered: Group[] = [];
  for (let kills = 0; delivered.length < names.length; ) {
    const lease = (await ask("POST", "/v1/runs/train/lease", { max_groups: 1, wait_ms: 30_000 })) as unknown as { lease_id: string | null; run_state: string; reason: string | null; groups: Group[] };
    expect([lease.run_state, lease.reason]).toEqual(["running", null]);
    if (lease.lease_id !== null) {
      delivered.push(...lease.groups);
      await ask("POST", `/v1/leases/${lease.lease_id}/ack`, { consumed: lease.groups.map(({ group_id }) => group_id) });
    }
    // The next group is in its machines then.
    if (kills < 2) {
      kills++;
      await served?.stop("SIGKILL");
      await start();
    }
  }
  expect(delivered.map(({ group_id }) => group_id).sort()).toEqual(names);
  for (const { outcome, samples } of delivered) {
    expect([outcome, samples.map(({ reward }) => reward)]).toEqual(["complete", [1, 1]]);
    for (const { loss_mask: mask, versions, logprobs } of samples) for (const [at, trained] of mask.entries()) expect([versions[at] === -1, logprobs[at] === 0]).toEqual(trained === 1 ? [false, expect.any(Boolean)] : [true, true]);
  }
  const { records } = (await ask("GET", "/v1/runs/train/terminal")) as { records: { group_id: string; outcome: string }[] };
  expect(records.map(({ group_id, outcome }) => `${group_id} ${outcome}`).sort()).toEqual(names.map((name) => `${name} consumed`));
  expect(await served?.stop()).toBe(0);
  served = null;
  await engine.close();
  expect(await leftoversAfter(home)).toEqual([]);
});

it("a rollout that is kept between its turns goes on in the middle: no recorded answer is asked for again, no command is carried out twice", async () => {
  const commands = ["mkdir -p /work; echo 1 >> /work/log", "echo 2 >> /work/log", "echo 3 >> /work/log"];
  const test = `[ "$(tr -d '\\n' < /work/log)" = 123 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt`;
  const task = writeTask(join(place, "kept"), { name: "test/kept", test });
  let killed = false;
  const turns: number[] = [];
  const engine = await startEngine(({ turn }) => {
    turns.push(turn);
    const command = commands[turn];
    return { ...(command === undefined ? { content: "done" } : { content: null, calls: [{ command }] }), ...(turn === 2 && !killed ? { delayMs: 600_000 } : {}) };
  }, { flavour: "sglang" });
  served = await serve({ home, key: KEY });
  const run = { group_size: 2, checkpoint_rollouts: "every-turn", tokenizer: { directory: MODEL_DIRECTORY }, budgets: { turns: 6 } };
  const refused = await fetch(`${served.url}/v1/runs/other`, { method: "PUT", headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" }, body: JSON.stringify({ ...run, harness: ["codex"] }) });
  expect([refused.status, ((await refused.json()) as { detail: string }).detail]).toEqual([400, expect.stringContaining("the harness codex cannot go on in the middle of its work")]);
  await ask("PUT", "/v1/runs/kept", run);
  await ask("PUT", "/v1/runs/kept/policy", { version: 0, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
  await ask("POST", "/v1/runs/kept/groups", { groups: [{ group_id: "a", task }] });
  await expect.poll(() => turns.filter((turn) => turn === 2).length, { timeout: 60_000 }).toBe(2);
  await served.stop("SIGKILL");
  killed = true;
  served = await serve({ home, key: KEY });
  await ask("PUT", "/v1/runs/kept", run);
  const lease = (await ask("POST", "/v1/runs/kept/lease", { wait_ms: 60_000, group_ids: ["a"] })) as unknown as { groups: Group[]; ended: unknown[] };
  expect(lease.ended).toEqual([]);
  expect(lease.groups.map(({ outcome, samples }) => [outcome, samples.map(({ reward }) => reward)])).toEqual([["complete", [1, 1]]]);
  // Each once for each member, but for the questions that were open at the kill. Turn 0 also counts what the gateway asks to learn what the endpoint can.
  expect(turns.filter((turn) => turn > 0).toSorted()).toEqual([1, 1, 2, 2, 2, 2, 3, 3]);
  expect(await served.stop()).toBe(0);
  served = null;
  await engine.close();
  expect(await leftoversAfter(home)).toEqual([]);
});

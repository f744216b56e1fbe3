import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId, type RunId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { runRequestSchema } from "../../src/delivery/contract.ts";
import { machineWorkers } from "../../src/delivery/machines/worker.ts";
import type { MemberJob, RolloutWorker } from "../../src/delivery/worker.ts";
import { runDocument } from "../../src/rollout/report.ts";
import { loadRunState } from "../../src/rollout/run-state.ts";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine, type EngineScript } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { openRunHost, type OpenHost } from "../support/run-host.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-delivery-machines-"));
const home = join(place, "home");
let open: OpenHost;
beforeAll(async () => {
  mkdirSync(home);
  open = await openRunHost(home);
});
afterAll(async () => {
  await open.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(place, { recursive: true, force: true });
});

const NEVER = new AbortController().signal;
const WORKS: EngineScript = [{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }];
const job = (task: string, fields: Partial<MemberJob> = {}): MemberJob => ({ groupId: "g", task, dataset: null, member: 0, attempt: 0, seed: "s", harness: ["bash"], sampling: {}, deadlineMs: null, ...fields });
const tokenizer = { directory: MODEL_DIRECTORY, family: null };

async function worker(run: RunId, engine: Engine | null, request: Readonly<Record<string, unknown>> = {}): Promise<RolloutWorker> {
  const made = await machineWorkers({ home, host: open.host, runtime: systemRuntime })({ run, name: "train", epoch: 1, request: runRequestSchema.parse({ tokenizer, ...request }) });
  if (engine !== null) await made.setPolicy({ version: 3, state: "live", model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
  return made;
}

describe("rollouts that a trainer asks for", () => {
  it("are ordinary rollouts of a run directory, with samples, versions and where they come from", async () => {
    const task = writeTask(join(place, "task"), { name: "test/hello" });
    const engine = await startEngine(WORKS, { flavour: "sglang" });
    const run = newId("run", systemRuntime);
    const train = await worker(run, engine);
    expect(await train.check(task, ["bash"])).toMatchObject({ name: "test/hello" });
    const ends = await Promise.all([0, 1].map((member) => train.run(job(task, { member, seed: `s${member}`, sampling: { temperature: 0.5 } }), NEVER)));
    for (const end of ends) {
      expect(end).toMatchObject({ outcome: "scored", reward: 1, stopReason: "finished", error: null, model: "test-model", turns: 2 });
      expect([end.image, end.verifier, end.tokenizer].every((digest) => /sha256:|^host:/.test(digest ?? ""))).toBe(true);
      expect(end.samples.length).toBe(1);
      const [{ facts, arrays }] = end.samples as [(typeof end.samples)[number]];
      expect(facts).toMatchObject({ rollout: end.rollout, group: end.group, reward: 1, segments: 1 });
      // The engine was told no version: it says "0", which is a number, and holds.
      expect(facts.version_names).toEqual(["0"]);
      const trained = [...arrays.tokenIds].filter((_, at) => arrays.lossMask[at] === 1);
      expect(engine.samples.some((sample, at) => JSON.stringify([...sample.completionIds, ...(engine.samples[at + 1]?.completionIds ?? [])]) === JSON.stringify(trained)) || engine.samples.length > 2).toBe(true);
    }
    expect(ends[0]?.group).toBe(ends[1]?.group);
    // Asked again it is answered from the record.
    const asked = engine.requests.length;
    expect(await train.run(job(task, { member: 1, seed: "s1" }), NEVER)).toEqual(ends[1]);
    expect(engine.requests.length).toBe(asked);
    const shown = await mw(["show", run, "--json"], { env: { MW_HOME: home } });
    expect(JSON.parse(shown.stdout)).toMatchObject({ status: "running", outcomes: { scored: 2 } });
    const resumed = await mw(["resume", run], { env: { MW_HOME: home } });
    expect(resumed).toMatchObject({ code: 2 });
    expect(resumed.stderr).toContain("mw serve");
    await train.close(true);
    expect((await mw(["export", run], { env: { MW_HOME: home } })).stdout.trim().split("\n").length).toBe(2);
    expect(runDocument(await loadRunState(home, run))).toMatchObject({ status: "finished" });
    await engine.close();
  });

  it("of several runs reach each its own model at the same time", async () => {
    const task = writeTask(join(place, "models"));
    const engines = await Promise.all([WORKS, [{ content: null, calls: [{ command: "true" }] }, { content: "no" }]].map((script) => startEngine(script as EngineScript, { flavour: "sglang" })));
    const workers = await Promise.all(engines.map((engine) => worker(newId("run", systemRuntime), engine)));
    const ends = await Promise.all(workers.flatMap((one) => [0, 1].map((member) => one.run(job(task, { member }), NEVER))));
    expect(ends.map(({ reward }) => reward)).toEqual([1, 1, 0, 0]);
    await Promise.all(workers.map((one) => one.close(true)));
    await Promise.all(engines.map((engine) => engine.close()));
  });

  it("end as cancelled soon, with their machines, when nobody wants them any more", async () => {
    const task = writeTask(join(place, "cancelled"));
    const engine = await startEngine([{ content: null, calls: [{ command: "sleep 600" }] }], { flavour: "sglang" });
    const run = newId("run", systemRuntime);
    const train = await worker(run, engine, { concurrency: 1 });
    const cancel = [new AbortController(), new AbortController()] as const;
    const first = train.run(job(task), cancel[0].signal);
    const second = train.run(job(task, { member: 1 }), cancel[1].signal);
    await until(async () => [...(await loadRunState(home, run)).rollouts.values()].some(({ phase }) => phase === "running") && engine.requests.length > 1);
    // One waits for its place, one is at work.
    cancel[1].abort();
    expect(await second).toMatchObject({ outcome: "cancelled", reward: null, samples: [], startedAt: null });
    cancel[0].abort();
    expect(await first).toMatchObject({ outcome: "cancelled", reward: null });
    expect(await leftoversAfter(home, (of) => machines(of).filter((one) => !one.startsWith("gateway socket")))).toEqual([]);
    await train.close(true);
    await engine.close();
  });

  it("have a deadline of their own, after which the agent's work is graded", async () => {
    const task = writeTask(join(place, "deadline"));
    const engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out; sleep 600" }] }], { flavour: "sglang" });
    const train = await worker(newId("run", systemRuntime), engine);
    expect(await train.run(job(task, { deadlineMs: 3_000 }), NEVER)).toMatchObject({ outcome: "scored", stopReason: "agent_time" });
    await train.close(true);
    await engine.close();
  });

  it("have their whole time for themselves, however long new weights take to come", async () => {
    const task = writeTask(join(place, "held"));
    writeFileSync(join(task, "task.toml"), readFileSync(join(task, "task.toml"), "utf8").replace("[agent]\ntimeout_sec = 60", "[agent]\ntimeout_sec = 20"));
    const engine = await startEngine([{ content: null, calls: [{ command: "sleep 2; mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }], { flavour: "sglang" });
    const train = await worker(newId("run", systemRuntime), engine);
    const policy = { version: 3, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" as const }] };
    const held = train.run(job(task), NEVER);
    // The first answer is out; the call after it finds no policy.
    await until(() => Promise.resolve(engine.requests.some(({ body }) => !isProbe(body))));
    await train.setPolicy({ ...policy, state: "updating" });
    await sleep(23_000);
    await train.setPolicy({ ...policy, version: 4, state: "live" });
    expect(await held).toMatchObject({ outcome: "scored", reward: 1, stopReason: "finished" });
    await train.close(true);
    await engine.close();
  });

  it("of a task that is none, or of a harness that is none, end with why", async () => {
    const engine = await startEngine(WORKS, { flavour: "sglang" });
    const run = newId("run", systemRuntime);
    const train = await worker(run, engine);
    const task = writeTask(join(place, "unknown-harness"));
    expect(await train.run(job(join(place, "nothing"), { groupId: "none" }), NEVER)).toMatchObject({ outcome: "task_error", error: { permanent: true }, samples: [] });
    expect(await train.run(job(task, { groupId: "harness", harness: ["bahs"] }), NEVER)).toMatchObject({ outcome: "task_error", error: { code: "usage", permanent: true } });
    await expect(train.check(task, ["bahs"])).rejects.toMatchObject({ code: "usage" });
    await expect(train.check(join(place, "nothing"), ["bash"])).rejects.toMatchObject({ code: "invalid_task" });
    await train.close(true);
    await engine.close();
  });

  it("of a server that gives no tokens end as the model server's failure, and an endpoint that is none is refused at once", async () => {
    const task = writeTask(join(place, "no-tokens"));
    const engine = await startEngine(WORKS, { flavour: "openai", level: "text" });
    const train = await worker(newId("run", systemRuntime), null, { tokenizer: null });
    for (const url of ["ftp://x", "http://user:secret@127.0.0.1:1", "nonsense"]) {
      const refused = train.setPolicy({ version: 1, state: "live", model: "m", endpoints: [{ url }] });
      await expect(refused).rejects.toMatchObject({ code: "usage" });
      await expect(refused).rejects.not.toThrow("secret");
    }
    await train.setPolicy({ version: 1, state: "live", model: "test-model", endpoints: [{ url: engine.url, kind: "openai" }] });
    expect(await train.run(job(task), NEVER)).toMatchObject({ outcome: "model_error", samples: [], error: { code: "upstream_failed", permanent: false } });
    await train.close(true);
    await engine.close();
  });

  it("are gone on with after the worker was closed in their middle, and recorded once", async () => {
    const task = writeTask(join(place, "again"));
    const engine = await startEngine((request) => (request.turn > 0 ? { content: "done" } : { content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }], ...(hold && !isProbe(request.body) ? { breakOff: "never" as const } : {}) }), { flavour: "sglang" });
    let hold = true;
    const run = newId("run", systemRuntime);
    const before = await worker(run, engine, { seed: "7" });
    const ended = before.run(job(task, { groupId: "first" }), NEVER);
    ended.catch(() => undefined);
    await until(() => Promise.resolve(engine.requests.some(({ body }) => !isProbe(body))));
    await before.close();
    await expect(ended).rejects.toMatchObject({ code: "cancelled" });
    hold = false;
    const after = await worker(run, engine, { seed: "8" });
    expect(await after.run(job(task, { groupId: "first" }), NEVER)).toMatchObject({ outcome: "scored", reward: 1 });
    await after.close(true);
    const log = readFileSync(join(home, "runs", run, "events.jsonl"), "utf8");
    expect(log.split('"type":"rollout_recorded"').length - 1).toBe(1);
    expect(log.split('"type":"rollout_admitted"').length - 1).toBe(2);
    await engine.close();
  });
});

function isProbe(body: Readonly<Record<string, unknown>>): boolean {
  return String(body["rid"]).startsWith("probe-");
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 20));
}

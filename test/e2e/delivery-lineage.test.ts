import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { systemRuntime } from "../../src/core/runtime.ts";
import { leaseRequestSchema, runRequestSchema } from "../../src/delivery/contract.ts";
import { DeliveryRegistry } from "../../src/delivery/index.ts";
import { machineWorkers } from "../../src/delivery/machines/worker.ts";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { openRunHost } from "../support/run-host.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-lineage-"));
const home = join(place, "home");
afterAll(() => rmSync(place, { recursive: true, force: true }));

const NEVER = new AbortController().signal;
const WRONG = 'if [ -e /work/out ]; then echo 0.25; else echo 0; fi > /logs/verifier/reward.txt';

it("follows a reward from its machine to the trainer's step and checkpoint, and back when its verifier was wrong", async () => {
  mkdirSync(home);
  const task = writeTask(join(place, "task"), { name: "test/lineage", test: WRONG });
  let turns = 0;
  // The weights change between the two turns of each rollout: its oldest token is of version 3.
  const engine = await startEngine((request) => {
    engine.version = String(3 + request.turn);
    turns++;
    return request.turn > 0 ? { content: "done" } : { content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] };
  }, { flavour: "sglang" });
  const open = await openRunHost(home);
  const registry = await DeliveryRegistry.open({ directory: join(home, "delivery", "local"), runtime: systemRuntime, durability: "process", openWorker: machineWorkers({ home, host: open.host, runtime: systemRuntime }), note: () => undefined });
  const request = runRequestSchema.parse({ tokenizer: { directory: MODEL_DIRECTORY }, group_size: 2, keep_workspaces: true, max_staleness: 2 });
  const run = await registry.put("train", request);
  await run.setPolicy({ version: 3, state: "live", model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
  await run.submit([{ group_id: "g-1", task }, { group_id: "g-2", task }]);
  const lease = await run.lease(leaseRequestSchema.parse({ min_groups: 2, max_groups: 2, wait_ms: 60_000, current_version: 4 }), NEVER);
  expect(lease.groups.map(({ facts }) => [facts.group_id, facts.outcome, facts.usable]).toSorted()).toEqual([["g-1", "complete", 2], ["g-2", "complete", 2]]);
  expect(turns).toBeGreaterThanOrEqual(8);
  for (const { facts, samples } of lease.groups) {
    expect([facts.version_min, facts.version_max]).toEqual([3, 4]);
    for (const { facts: sample, arrays } of samples) {
      expect(sample).toMatchObject({ reward: 0.25, model: "test-model", tokenizer: expect.stringMatching(/^sha256:/) as string, image: expect.any(String) as string, verifier: expect.stringMatching(/^sha256:/) as string, stop_reason: "finished" });
      const trained = [...arrays.versions].filter((_, at) => arrays.lossMask[at] === 1);
      expect(new Set(trained)).toEqual(new Set([3, 4]));
      expect([...arrays.versions].filter((_, at) => arrays.lossMask[at] === 0).every((version) => version === -1)).toBe(true);
    }
  }
  // Five versions on, the oldest token is too old, although the youngest would do.
  const stale = await run.lease(leaseRequestSchema.parse({ current_version: 9 }), NEVER);
  expect(stale.groups).toEqual([]);
  const consumed = lease.groups.find(({ facts }) => facts.group_id === "g-1");
  const id = consumed?.samples[0]?.facts.rollout_id ?? "";
  await run.ack(lease.head.lease_id ?? "", { consumed: ["g-1"], rejected: [{ group_id: "g-2", reason: "filtered" }], trained_version: 5, step: 17, checkpoint: "ckpt/17" });

  const shown = JSON.parse((await mw(["show", id, "--json"], { env: { MW_HOME: home } })).stdout) as unknown;
  expect(shown).toMatchObject({
    reward: 0.25,
    lineage: {
      calls: 2,
      samples: 1,
      policyVersions: [{ version: "3" }, { version: "4" }],
      delivery: { group: "g-1", delivered: true, leases: [{ lease: lease.head.lease_id, consumer: "trainer" }], consumed: { outcome: "consumed", step: 17, trainedVersion: 5, checkpoint: "ckpt/17" } },
    },
  });
  const text = (await mw(["show", id], { env: { MW_HOME: home } })).stdout;
  expect(text).toContain("step 17");
  // A controller is at work here, and says so.
  const busy = await mw(["reverify", run.run, "--task", task], { env: { MW_HOME: home } });
  expect([busy.code, busy.stderr]).toEqual([3, expect.stringContaining("another controller")]);
  await registry.close();
  await open.close();
  await engine.close();

  writeTask(task, { name: "test/lineage" });
  const again = await mw(["reverify", run.run, "--task", task, "--json", "--quiet"], { env: { MW_HOME: home } });
  expect(again.code, again.stderr + again.stdout).toBe(0);
  const document = JSON.parse(again.stdout) as { readonly rollouts: readonly { readonly was: number; readonly reward: number }[]; readonly touched: Readonly<Record<string, readonly unknown[]>> };
  expect(document.rollouts.map(({ was, reward }) => [was, reward])).toEqual([[0.25, 1], [0.25, 1], [0.25, 1], [0.25, 1]]);
  expect(document.touched["rollouts"]?.length).toBe(4);
  expect(document.touched["samples"]?.length).toBe(4);
  // The rejected group was leased, and no step consumed it.
  expect(document.touched).toMatchObject({ leases: [lease.head.lease_id], steps: [17], checkpoints: ["ckpt/17"] });
  expect(readFileSync(join(home, "runs", run.run, "events.jsonl"), "utf8")).not.toContain('"reward":1,');
  expect(await leftoversAfter(home)).toEqual([]);
});

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { systemRuntime } from "../core/runtime.ts";
import { scoredEnd, SimulatedWorker } from "../../test/support/delivery/simulated-worker.ts";
import { writeTask } from "../../test/support/tasks.ts";
import { leaseRequestSchema, runRequestSchema, type LeaseRequest, type PolicyUpdate } from "./contract.ts";
import { DeliveryRegistry } from "./registry.ts";
import type { DeliveryService } from "./service.ts";

let home = "";
let registry: DeliveryRegistry;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "mw-delivery-"));
});
afterEach(async () => {
  await registry.close();
  rmSync(home, { recursive: true, force: true });
});

const never = new AbortController().signal;
const POLICY: PolicyUpdate = { version: 0, state: "live", model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] };
const wanted = (request: Partial<LeaseRequest> = {}): LeaseRequest => leaseRequestSchema.parse(request);

const openRegistry = (): Promise<DeliveryRegistry> =>
  DeliveryRegistry.open({
    directory: home,
    runtime: systemRuntime,
    durability: "process",
    note: () => undefined,
    openWorker: () =>
      Promise.resolve(
        new SimulatedWorker(systemRuntime, (job) => ({
          durationMs: 0,
          end: ({ startedAt, endedAt, version }) => scoredEnd(job, { startedAt, endedAt, reward: job.member % 2, prompt: 3, sampled: 5, versionMin: version, versionMax: version }),
        })),
      ),
  });

async function openRun(request: object = {}): Promise<DeliveryService> {
  registry = await openRegistry();
  return registry.put("r", runRequestSchema.parse({ group_size: 4, ...request }));
}

describe("a run of delivery", () => {
  it("takes groups, runs them, gives them out and remembers that they were consumed", async () => {
    const run = await openRun();
    await run.setPolicy(POLICY);
    const submitted = await run.submit([{ group_id: "a", task: "/t/one", metadata: { row: 7 } }, { group_id: "b", task: "/t/two", size: 2 }]);
    expect(submitted).toEqual({ groups: [{ group_id: "a", status: "accepted" }, { group_id: "b", status: "accepted" }], credits: { groups: 1022, bytes: 1024 ** 3 } });
    const lease = await run.lease(wanted({ min_groups: 2, wait_ms: 60_000 }), never);
    expect(lease.groups.map(({ facts }) => [facts.group_id, facts.outcome, facts.usable, facts.metadata])).toEqual([["a", "complete", 4, { row: 7 }], ["b", "complete", 2, {}]]);
    const [first] = lease.groups;
    expect(first?.samples.map(({ facts }) => [facts.member, facts.reward])).toEqual([[0, 0], [1, 1], [2, 0], [3, 1]]);
    expect(first?.samples.every(({ arrays }) => arrays.tokenIds.length === 8 && [...arrays.versions].join() === "-1,-1,-1,0,0,0,0,0")).toBe(true);
    expect(run.status().groups).toMatchObject({ leased: 2, ready: 0 });
    const credits = await run.ack(lease.head.lease_id ?? "", { consumed: ["a"], rejected: [{ group_id: "b", reason: "filtered" }], trained_version: 0, step: 1 });
    expect(credits).toEqual({ groups: 1024, bytes: 1024 ** 3 });
    const log = await run.terminal(0, 100);
    expect(log.map(({ seq, group_id, outcome, reason, step }) => [seq, group_id, outcome, reason, step])).toEqual([[1, "a", "consumed", null, 1], [2, "b", "rejected", "filtered", 1]]);
  });

  it("draws from directories as they were when it was made, also after it was opened again", async () => {
    const tasks = ["a", "b", "c"].map((name) => writeTask(join(home, "tasks", name), { name: `test/${name}` }));
    const run = await openRun({ dataset: [{ name: "mine", inputs: [join(home, "tasks")] }], credits: { groups: 3 }, group_size: 2 });
    await run.setPolicy(POLICY);
    const first = await run.lease(wanted({ min_groups: 3, wait_ms: 60_000 }), never);
    expect(first.groups.map(({ facts }) => facts.task).sort()).toEqual(["a", "b", "c"]);
    expect(first.groups.every(({ facts }) => facts.dataset === "mine")).toBe(true);
    await registry.close();
    rmSync(tasks[0] ?? "", { recursive: true });
    writeTask(join(home, "tasks", "d"), { name: "test/d" });
    registry = await openRegistry();
    const again = await registry.get("r");
    await again.ack(first.head.lease_id ?? "", { consumed: first.groups.map(({ facts }) => facts.group_id), rejected: [] });
    const second = await again.lease(wanted({ min_groups: 3, wait_ms: 60_000 }), never);
    expect(second.groups.map(({ facts }) => facts.task).sort()).toEqual(["a", "b", "c"]);
    await expect(registry.put("none", runRequestSchema.parse({ dataset: [{ name: "x", inputs: [join(home, "nowhere")] }] }))).rejects.toMatchObject({ exitCode: 2 });
    await expect(registry.get("none")).rejects.toMatchObject({ code: "not_found" });
  });

  it("is the same run after it was closed and opened again", async () => {
    const run = await openRun();
    await run.setPolicy(POLICY);
    await run.submit([{ group_id: "a", task: "/t/one" }]);
    const lease = await run.lease(wanted({ wait_ms: 60_000 }), never);
    const before = run.status();
    await registry.close();
    registry = await openRegistry();
    const again = await registry.get("r");
    expect({ ...again.status(), last_progress_at: 0 }).toEqual({ ...before, last_progress_at: 0 });
    await again.ack(lease.head.lease_id ?? "", { consumed: ["a"], rejected: [] });
    expect(again.status().groups).toMatchObject({ leased: 0, consumed: 1 });
  });
});

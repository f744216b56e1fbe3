/**
 * A hundred thousand rollouts in flight: what they cost in memory, and how fast they are admitted with the log durable.
 *
 * An admission is a rollout whose group was accepted and begun, both on the disk, and which was handed to what runs it. Trainers admit whole groups, of eight here: both are counted, with
 * the simulation of the rollouts on the same thread, and of a worker that does nothing, which is the service alone.
 */
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { leaseRequestSchema, runRequestSchema, type PolicyUpdate } from "../../src/delivery/contract.ts";
import { KeptBudget } from "../../src/delivery/kept-members.ts";
import { DeliveryService, type DeliveryOptions } from "../../src/delivery/service.ts";
import type { RolloutWorker } from "../../src/delivery/worker.ts";
import { settle, VirtualRuntime } from "../../test/support/delivery/virtual-runtime.ts";
import { ShapedWorker } from "./shape.ts";

export interface CrowdResult {
  readonly rollouts: number;
  readonly inFlight: number;
  /** Rollouts a second, beside their simulation. */
  readonly admissionsPerSecond: number;
  readonly groupsPerSecond: number;
  /** Groups of eight a second, of the service alone. */
  readonly groupsPerSecondAlone: number;
  readonly bytesPerRollout: number;
  readonly logBytes: number;
  readonly reopenMs: number;
  readonly delivered: number;
  readonly drainSeconds: number;
}

const GROUP = 8;
const BATCH = 250;
const POLICY: PolicyUpdate = { version: 0, state: "live", model: "load", endpoints: [{ url: "http://127.0.0.1:1" }] };
const never = new AbortController().signal;

export async function simulateCrowd(rollouts: number): Promise<CrowdResult> {
  const groupsPerSecondAlone = await admitAlone(Math.ceil(rollouts / GROUP));
  return { ...(await crowd(rollouts)), groupsPerSecondAlone };
}

/** Nothing is simulated: rollouts are handed over, and never end. */
async function admitAlone(groups: number): Promise<number> {
  const directory = mkdtempSync(join(tmpdir(), "mw-bench-admit-"));
  const runtime = new VirtualRuntime();
  const never = new Promise<never>(() => undefined);
  let handed = 0;
  const worker: RolloutWorker = {
    check: (task) => Promise.resolve({ name: task, family: "load", digest: null }),
    setPolicy: () => Promise.resolve(),
    run: () => {
      handed++;
      return never;
    },
    over: () => undefined,
    close: () => Promise.resolve(),
  };
  const service = await DeliveryService.open(optionsOf(directory, runtime, groups, worker));
  try {
    await service.setPolicy(POLICY);
    const seconds = await submitAll(service, groups);
    if (handed !== groups * GROUP) throw new Error(`${handed} of ${groups * GROUP} rollouts were begun`);
    return groups / seconds;
  } finally {
    await service.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Until all are accepted and begun. Two requests at a time: one is on its way to the disk while the next is read. */
async function submitAll(service: DeliveryService, groups: number): Promise<number> {
  const begun = performance.now();
  let at = 0;
  const submit = async (): Promise<void> => {
    while (at < groups) {
      const first = at;
      at += BATCH;
      await service.submit(Array.from({ length: Math.min(BATCH, groups - first) }, (_, index) => ({ group_id: `g${first + index}`, task: `/tasks/${(first + index) % 1000}`, metadata: { row: first + index } })));
    }
  };
  await Promise.all([submit(), submit()]);
  await settle(() => service.idle);
  return (performance.now() - begun) / 1000;
}

function optionsOf(directory: string, runtime: VirtualRuntime, groups: number, worker: RolloutWorker): DeliveryOptions {
  return {
    directory,
    name: "crowd",
    run: "crowd",
    epoch: 1,
    createdAt: runtime.now(),
    request: runRequestSchema.parse({ group_size: GROUP, concurrency: groups * GROUP, batch_groups: groups, credits: { groups: groups + 1, bytes: 8 * 1024 ** 3 }, deadlines: { group_s: 48 * 3600 } }),
    mix: null,
    runtime,
    durability: "power",
    kept: new KeptBudget(64 << 20),
    openWorker: () => Promise.resolve(worker),
  };
}

async function crowd(rollouts: number): Promise<Omit<CrowdResult, "groupsPerSecondAlone">> {
  const directory = mkdtempSync(join(tmpdir(), "mw-bench-crowd-"));
  const runtime = new VirtualRuntime();
  const groups = Math.ceil(rollouts / GROUP);
  const worker = new ShapedWorker(runtime, { keep: false });
  const options = optionsOf(directory, runtime, groups, worker);
  let service = await DeliveryService.open(options);
  try {
    await service.setPolicy(POLICY);
    const before = memory();
    const seconds = await submitAll(service, groups);
    const inFlight = worker.running;
    const bytesPerRollout = (memory() - before) / inFlight;
    const draining = performance.now();
    let delivered = 0;
    while (delivered < groups) {
      // A minute at a time: who ends within it ends together.
      const until = runtime.now() + 60_000;
      while (runtime.step(until));
      await settle(() => service.idle);
      const { head } = await service.lease(leaseRequestSchema.parse({ max_groups: 256 }), never);
      if (head.lease_id === null) continue;
      delivered += head.groups.length;
      await service.ack(head.lease_id, { consumed: head.groups.map(({ group_id }) => group_id), rejected: [] });
    }
    const drainSeconds = (performance.now() - draining) / 1000;
    await service.close();
    const reopening = performance.now();
    service = await DeliveryService.open(options);
    const reopenMs = performance.now() - reopening;
    return { rollouts, inFlight, admissionsPerSecond: rollouts / seconds, groupsPerSecond: groups / seconds, bytesPerRollout, logBytes: statSync(join(directory, "events.jsonl")).size, reopenMs, delivered, drainSeconds };
  } finally {
    await service.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** What is really held: after a collection. Without `--expose-gc` the figure is of no use. */
function memory(): number {
  for (let round = 0; round < 3; round++) globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

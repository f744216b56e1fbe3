/** A trainer with a fixed step time against the real delivery service in virtual time: how long it waits, how stale its samples are, and what is lost. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { leaseRequestSchema, runRequestSchema } from "../../src/delivery/contract.ts";
import { KeptBudget } from "../../src/delivery/kept-members.ts";
import { DeliveryService } from "../../src/delivery/service.ts";
import { settle, VirtualRuntime } from "../../test/support/delivery/virtual-runtime.ts";
import { percentile } from "../statistics.ts";
import { ShapedWorker, type PlannedRollout } from "./shape.ts";

export interface TrainingOptions {
  readonly maxStaleness: number;
  readonly steps: number;
  readonly stepMs: number;
  readonly batchGroups: number;
  readonly groupSize: number;
  readonly concurrency: number;
}

export interface TrainingResult {
  /** Of the time after the first batch was there. */
  readonly idleShare: number;
  readonly hours: number;
  /** How many samples were so many versions old. */
  readonly staleness: readonly number[];
  readonly expired: number;
  /** Rollouts that came to a score or would have, and were not trained on, by tenth of their length. */
  readonly drops: readonly { readonly upToMinutes: number; readonly rollouts: number; readonly dropped: number }[];
  readonly dropShare: number;
  /** Of the places among the running. */
  readonly busyShare: number;
}

const MOMENT_MS = 10_000;
const never = new AbortController().signal;
const ENDPOINTS = [{ url: "http://127.0.0.1:1" }];

export async function simulateTraining(options: TrainingOptions): Promise<TrainingResult> {
  const directory = mkdtempSync(join(tmpdir(), "mw-bench-load-"));
  const runtime = new VirtualRuntime();
  const worker = new ShapedWorker(runtime, { keep: true });
  const { maxStaleness, batchGroups, groupSize, concurrency } = options;
  const service = await DeliveryService.open({
    directory,
    name: "load",
    run: "load",
    epoch: 1,
    createdAt: runtime.now(),
    request: runRequestSchema.parse({
      group_size: groupSize,
      concurrency,
      batch_groups: batchGroups,
      max_staleness: maxStaleness,
      // No group is overtaken into lateness; how far it is otherwise is the admission rule's.
      window: batchGroups * (maxStaleness + 1),
      quarantine_after: null,
      dataset: [{ name: "tasks", inputs: ["/tasks"] }],
    }),
    mix: [{ name: "tasks", tasks: Array.from({ length: 1000 }, (_, at) => `/tasks/${at}`) }],
    runtime,
    durability: "process",
    kept: new KeptBudget(64 << 20),
    openWorker: () => Promise.resolve(worker),
  });
  try {
    return await train(options, service, worker, runtime);
  } finally {
    await service.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

async function train({ steps, stepMs, batchGroups, concurrency }: TrainingOptions, service: DeliveryService, worker: ShapedWorker, runtime: VirtualRuntime): Promise<TrainingResult> {
  const begunAt = runtime.now();
  const staleness: number[] = [];
  const consumed = new Set<string>();
  let busyMs = 0;
  let idleMs = 0;
  let firstAt = 0;
  const advance = async (until: number): Promise<void> => {
    await settle(() => service.idle);
    while (runtime.now() < until) {
      // Who is woken within a moment is heard together: that saves most of the turns of the event loop.
      const moment = Math.min(until, Math.max(runtime.now(), runtime.next ?? until) + MOMENT_MS);
      for (let more = true; more; ) {
        const from = runtime.now();
        more = runtime.step(moment);
        busyMs += (runtime.now() - from) * worker.running;
      }
      await settle(() => service.idle);
    }
  };
  for (let step = 0; step < steps; step++) {
    await service.setPolicy({ version: step, state: "live", model: "load", endpoints: ENDPOINTS });
    const askedAt = runtime.now();
    const batch: string[] = [];
    const leases: { readonly id: string; readonly groups: string[] }[] = [];
    while (batch.length < batchGroups) {
      const { head, groups } = await service.lease(leaseRequestSchema.parse({ max_groups: batchGroups - batch.length, current_version: step }), never);
      for (const { facts } of groups) {
        batch.push(facts.group_id);
        staleness[step - (facts.version_min ?? step)] = (staleness[step - (facts.version_min ?? step)] ?? 0) + facts.samples;
      }
      if (head.lease_id !== null) leases.push({ id: head.lease_id, groups: groups.map(({ facts }) => facts.group_id) });
      if (batch.length >= batchGroups) break;
      const next = runtime.next;
      if (next === null) throw new Error(`nothing will come any more: ${JSON.stringify(service.status())}`);
      await advance(Math.max(next, runtime.now() + 1));
      for (const { id } of leases) await service.extend(id);
    }
    if (step === 0) firstAt = runtime.now();
    else idleMs += runtime.now() - askedAt;
    // Leases do not run out during a step.
    for (let left = stepMs; left > 0; left -= 300_000) {
      await advance(runtime.now() + Math.min(left, 300_000));
      for (const { id } of leases) await service.extend(id);
    }
    for (const { id, groups } of leases) await service.ack(id, { consumed: groups, rejected: [], trained_version: step });
    for (const name of batch) consumed.add(name);
  }
  const over = new Set(consumed);
  for (let after = 0; ; ) {
    const records = await service.terminal(after, 1000);
    for (const record of records) over.add(record.group_id);
    if (records.length === 0) break;
    after = records.at(-1)?.seq ?? after;
  }
  const drops = dropsByLength(worker.planned, over, consumed);
  const rollouts = drops.reduce((sum, decile) => sum + decile.rollouts, 0);
  return {
    idleShare: idleMs / (runtime.now() - firstAt),
    hours: (runtime.now() - begunAt) / 3_600_000,
    staleness: Array.from({ length: staleness.length }, (_, behind) => staleness[behind] ?? 0),
    expired: service.status().groups.expired,
    drops,
    dropShare: drops.reduce((sum, { dropped }) => sum + dropped, 0) / rollouts,
    busyShare: busyMs / (runtime.now() - begunAt) / concurrency,
  };
}

/** Rollouts of groups that are over. What infrastructure lost is no drop: it would have been one whoever trains. */
function dropsByLength(planned: readonly PlannedRollout[], over: ReadonlySet<string>, consumed: ReadonlySet<string>): TrainingResult["drops"] {
  const own = planned.filter(({ job, faulty }) => over.has(job.groupId) && !faulty);
  const lengths = own.map(({ durationMs }) => durationMs);
  const limits = Array.from({ length: 10 }, (_, decile) => percentile(lengths, (decile + 1) * 10));
  const deciles = limits.map((limit) => ({ upToMinutes: limit / 60_000, rollouts: 0, dropped: 0 }));
  for (const { job, durationMs, fate } of own) {
    const decile = deciles[Math.max(0, limits.findIndex((limit) => durationMs <= limit))];
    if (decile === undefined) continue;
    decile.rollouts++;
    if (!(fate === "scored" && consumed.has(job.groupId))) decile.dropped++;
  }
  return deciles;
}

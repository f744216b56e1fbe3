/** Measures the newest weights on tasks that are not trained on: one rollout each, by the most likely answer. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { newId, type RunId } from "../core/ids.ts";
import type { Runtime } from "../core/runtime.ts";
import { runRequestSchema, type RunRequest } from "../delivery/contract.ts";
import type { DeliveryService } from "../delivery/service.ts";
import { EMBEDDED_MODEL } from "./settings.ts";

export interface Evaluation {
  readonly run: string;
  readonly tasks: number;
  /** How many were graded. */
  readonly scored: number;
  readonly mean: number | null;
}

export interface EvaluateParts {
  readonly tasks: readonly string[];
  /** Of the training. */
  readonly directory: string;
  readonly policy: { readonly url: string };
  readonly version: number;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
  /** Of the training: the same machines, harness and budgets. */
  readonly request: RunRequest;
  readonly open: (run: RunId, request: RunRequest, place: string) => Promise<DeliveryService>;
}

const LEASE_WAIT_MS = 5_000;

export async function evaluate({ tasks, directory, policy, version, runtime, signal, request, open }: EvaluateParts): Promise<Evaluation> {
  const run = newId("run", runtime);
  const place = join(directory, `held-out-${run}`);
  const asked = runRequestSchema.parse({ ...request, group_size: 1, batch_groups: tasks.length, sampling: { ...request.sampling, temperature: 0 }, partial: { rule: "min_usable", min: 1 } });
  const delivery = await open(run, asked, place);
  try {
    await delivery.setPolicy({ version, state: "live", model: EMBEDDED_MODEL, endpoints: [{ url: policy.url, kind: "sglang" }] });
    await delivery.submit(tasks.map((task, index) => ({ group_id: `t${index}`, task })));
    const rewards: number[] = [];
    let over = 0;
    while (over < tasks.length) {
      const lease = await delivery.lease({ consumer: "evaluation", max_groups: tasks.length, min_groups: 1, wait_ms: LEASE_WAIT_MS }, signal);
      if (lease.head.lease_id !== null) await delivery.ack(lease.head.lease_id, { consumed: lease.groups.map(({ facts }) => facts.group_id), rejected: [] });
      for (const { samples } of lease.groups) rewards.push(...samples.slice(0, 1).flatMap(({ facts }) => facts.reward ?? []));
      const { consumed, failed, cancelled, expired, rejected } = delivery.status().groups;
      over = consumed + failed + cancelled + expired + rejected;
      if (lease.head.run_state !== "running") break;
    }
    await delivery.end("the evaluation is done");
    return { run, tasks: tasks.length, scored: rewards.length, mean: rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length };
  } finally {
    await delivery.close();
    await rm(place, { recursive: true, force: true });
  }
}

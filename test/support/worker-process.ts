/** A process that runs the members of groups, to be killed: says each end on a line of its own, once the worker has said it, and ends when all are over and its input has ended. */
import { createHash } from "node:crypto";
import type { RunId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { runRequestSchema } from "../../src/delivery/contract.ts";
import { machineWorkers } from "../../src/delivery/machines/worker.ts";
import { MODEL_DIRECTORY } from "./engine/tokenizer.ts";
import { openRunHost } from "./run-host.ts";

const [home = "", run = "", engine = "", members = "1", ...tasks] = process.argv.slice(2);
const open = await openRunHost(home);
const request = runRequestSchema.parse({ tokenizer: { directory: MODEL_DIRECTORY }, concurrency: 3 });
const worker = await machineWorkers({ home, host: open.host, runtime: systemRuntime })({ run: run as RunId, name: "killed", epoch: 1, request });
await worker.setPolicy({ version: 1, state: "live", model: "test-model", endpoints: [{ url: engine, kind: "sglang" }] });
await Promise.all(
  tasks.flatMap((task, group) =>
    Array.from({ length: Number(members) }, async (_, member) => {
      const end = await worker.run({ groupId: `group-${group}`, task, dataset: null, member, attempt: 0, seed: `${group}-${member}`, harness: ["bash"], sampling: {}, deadlineMs: null }, new AbortController().signal);
      const tokens = createHash("sha256");
      for (const { arrays } of end.samples) for (const array of [arrays.tokenIds, arrays.lossMask, arrays.logprobs, arrays.versions]) tokens.update(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
      process.stdout.write(`${JSON.stringify({ group, member, rollout: end.rollout, outcome: end.outcome, reward: end.reward, samples: end.samples.length, digest: tokens.digest("hex") })}\n`);
    }),
  ),
);
for await (const _ of process.stdin);
await worker.close(true);
await open.close();

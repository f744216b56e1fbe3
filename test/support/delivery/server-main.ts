/** The delivery service as a process that can be killed: rollouts take some milliseconds, one in six is lost to infrastructure, and the same rollout always comes to the same end. */
import { systemRuntime } from "../../../src/core/runtime.ts";
import { startDeliveryServer } from "./delivery-server.ts";
import { failedEnd, scoredEnd, SimulatedWorker } from "./simulated-worker.ts";

const [directory = "", port = "0"] = process.argv.slice(2);
const server = await startDeliveryServer(
  directory,
  () =>
    Promise.resolve(
      new SimulatedWorker(systemRuntime, (job, random) => {
        const [duration, fate, version] = [random(), random(), Math.floor(random() * 2)];
        return {
          durationMs: duration * 40,
          end: ({ startedAt, endedAt }) => (fate < 1 / 6 ? failedEnd(job, "sandbox_error", "sandbox_gone", startedAt, endedAt) : scoredEnd(job, { startedAt, endedAt, reward: fate, prompt: 5, sampled: 20, versionMin: version, versionMax: version + 1 })),
        };
      }),
    ),
  Number(port),
);
process.stdout.write(`${JSON.stringify({ url: server.url })}\n`);

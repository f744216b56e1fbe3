/** The delivery service in a process of its own, with groups that are ready at once: samples of 2,048 tokens of which 1,024 were sampled. Prints its address. */
import { systemRuntime } from "../../src/core/runtime.ts";
import { startDeliveryServer } from "../../test/support/delivery/delivery-server.ts";
import { scoredEnd, SimulatedWorker } from "../../test/support/delivery/simulated-worker.ts";

const [directory = ""] = process.argv.slice(2);
const worker = new SimulatedWorker(systemRuntime, (job) => ({
  durationMs: 0,
  end: ({ startedAt, endedAt, version }) => scoredEnd(job, { startedAt, endedAt, reward: job.member % 2, prompt: 1024, sampled: 1024, versionMin: version, versionMax: version }),
}));
worker.keepJobs = false;
const server = await startDeliveryServer(directory, () => Promise.resolve(worker));
process.on("SIGTERM", () => void server.close().then(() => process.exit(0)));
process.stdout.write(`${JSON.stringify({ url: server.url })}\n`);

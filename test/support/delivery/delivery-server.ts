/** The routes of delivery on a port of loopback, with rollouts that are only simulated. */
import fastify from "fastify";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { systemRuntime } from "../../../src/core/runtime.ts";
import { DeliveryRegistry } from "../../../src/delivery/registry.ts";
import type { WorkerFactory } from "../../../src/delivery/worker.ts";
import { deliveryEndpoints } from "../../../src/server/delivery/endpoints.ts";
import { mountEndpoints } from "../../../src/server/endpoint.ts";
import { answerProblems } from "../../../src/server/problem.ts";
import { scoredEnd, SimulatedWorker } from "./simulated-worker.ts";

export interface DeliveryServer {
  readonly url: string;
  readonly http: Server;
  readonly registry: DeliveryRegistry;
  readonly draining: AbortController;
  close(): Promise<void>;
}

/** A rollout for every job at once: 3 tokens of context, 5 sampled, reward 1 for members with an odd number. */
export const quickWorkers: WorkerFactory = () =>
  Promise.resolve(
    new SimulatedWorker(systemRuntime, (job) => ({
      durationMs: 0,
      end: ({ startedAt, endedAt, version }) => scoredEnd(job, { startedAt, endedAt, reward: job.member % 2, prompt: 3, sampled: 5, versionMin: version, versionMax: version }),
    })),
  );

export async function startDeliveryServer(directory: string, openWorker: WorkerFactory = quickWorkers, port = 0): Promise<DeliveryServer> {
  const registry = await DeliveryRegistry.open({ directory, runtime: systemRuntime, durability: "process", note: () => undefined, openWorker });
  const draining = new AbortController();
  const app = fastify({ forceCloseConnections: true });
  answerProblems(app, () => undefined);
  mountEndpoints(app, deliveryEndpoints({ registryOf: () => Promise.resolve(registry), draining: draining.signal }));
  await app.listen({ host: "127.0.0.1", port });
  // A server that listens on TCP has such an address.
  const address = app.server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${address.port}`,
    http: app.server,
    registry,
    draining,
    close: async () => {
      await app.close();
      await registry.close();
    },
  };
}

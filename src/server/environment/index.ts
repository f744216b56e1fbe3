/** `mw serve --zmq`: an environment server whose rollouts run on the server's machines. */
import type { Runtime } from "../../core/runtime.ts";
import { machineWorkers } from "../../delivery/machines/worker.ts";
import type { RunHost } from "../../rollout/run-host.ts";
import { SingleRollouts } from "../single/single-rollouts.ts";
import { openEnvironmentServer, type EnvironmentServer, type EnvironmentWire } from "./environment-server.ts";

export type { EnvironmentServer, EnvironmentWire } from "./environment-server.ts";

export interface EnvironmentOptions {
  readonly home: string;
  readonly runtime: Runtime;
  readonly runs: RunHost;
  readonly version: string;
  readonly log: (line: string) => void;
  readonly address: string;
  readonly wire: EnvironmentWire;
  /** As for `PUT /v1/runs`: what tasks do not say. */
  readonly defaults: unknown;
}

/** Rejects `unsupported` without ZeroMQ, `usage` for an address that cannot be bound, `invalid_input` for defaults that are none. */
export async function openEnvironment({ home, runtime, runs, version, log, address, wire, defaults }: EnvironmentOptions): Promise<EnvironmentServer> {
  const rollouts = new SingleRollouts({ home, runtime, name: "environment", defaults, openWorker: machineWorkers({ home, host: runs, runtime }) });
  const server = await openEnvironmentServer({ address, wire, rollouts, runtime, version, log });
  return {
    address: server.address,
    close: async () => {
      await server.close();
      await rollouts.close();
    },
  };
}

/**
 * The dashboard over a data directory, without owning it: beside the controller that writes there, or where nothing runs. It has the read API and the page, and no machines.
 */
import type { Machines } from "../rollout/run.ts";
import type { RunHost } from "../rollout/run-host.ts";
import { dashboardModule } from "./dashboard/index.ts";
import { runsModule } from "./runs/index.ts";
import { openServer, type OpenServer, type ServerOptions } from "./server.ts";

export interface Reader {
  /** Base address, to which paths of the page are added, without a slash at its end. */
  readonly url: string;
  /** What a link ends in, so that whoever has it is let in. */
  readonly fragment: string;
  close(): Promise<void>;
}

/** Listens on loopback, on any free port. Its key lives as long as it does, and is in no file. */
export async function openReader(options: Pick<ServerOptions, "home" | "version" | "runtime" | "env" | "log" | "board">): Promise<Reader> {
  const key = Buffer.from(options.runtime.randomBytes(18)).toString("base64url");
  const server: OpenServer = await openServer({
    ...options,
    env: { ...options.env, MW_API_KEY: key },
    machines: NO_MACHINES,
    runs: NO_RUNS,
    modules: { runs: runsModule, dashboard: dashboardModule({ sandboxes: false, delivery: false }) },
    host: "127.0.0.1",
    port: 0,
  });
  return { url: server.url, fragment: `#key=${key}`, close: () => server.close(0) };
}

/** No module of a reader asks for machines or begins rollouts; what counts the machines that live finds none. */
const NO_MACHINES = { backend: { capabilities: { pause: false }, list: () => Promise.resolve([]), get: () => null } } as unknown as Machines;
const NO_RUNS = {} as unknown as RunHost;

/** What `mw serve` and `mw train` with a trainer of somebody's open: machines, runs on them, and the server in front. */
import { makeDataDirectory } from "../core/home.ts";
import { LIMITS } from "../core/limits.ts";
import { CallBoard } from "../gateway/call-board.ts";
import { makeRunHarness } from "../rollout/run-harness.ts";
import { RunHost } from "../rollout/run-host.ts";
import { withWarmSandboxes } from "../sandbox/pool/warm-backend.ts";
import { endUnrecorded, MODULES, openServer, survivingMachines, type OpenServer, type ServerOptions } from "../server/index.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { openMachines } from "./machines.ts";
import { note } from "./output.ts";
import { readApiKey } from "./upstream.ts";
import { VERSION } from "./version.ts";

interface Interruptions {
  readonly first: Promise<void>;
  readonly second: Promise<void>;
  stop(): void;
}

function interruptions(context: AppContext): Interruptions {
  const done: (() => void)[] = [];
  const promise = (): Promise<void> => new Promise((resolve) => done.push(resolve));
  const [first, second] = [promise(), promise()];
  return { first, second, stop: context.onInterrupt(() => done.shift()?.()) };
}

function limitsOf(config: Config): NonNullable<ServerOptions["limits"]> {
  return {
    maxSandboxes: config.get("maxSandboxes") ?? undefined,
    maxSandboxesPerOwner: config.get("maxSandboxesPerOwner") ?? undefined,
    maxSnapshotsPerOwner: config.get("maxSnapshotsPerOwner") ?? undefined,
    maxDiskBytesPerOwner: config.get("maxDiskPerOwner") ?? undefined,
  };
}

export interface Serving {
  readonly server: OpenServer;
  readonly runs: RunHost;
  readonly log: (line: string) => void;
  /** The first interrupt. */
  readonly stopped: Promise<void>;
}

/** `work` has the server until it resolves, or until the first interrupt; then requests under way have their time, which a second interrupt ends. */
export async function withServer(context: AppContext, config: Config, { host, port, takeOver = 0 }: { readonly host: string; readonly port: number; readonly takeOver?: number }, work: (serving: Serving) => Promise<void>): Promise<void> {
  const home = config.home.value;
  makeDataDirectory(home);
  const stopped = interruptions(context);
  const log = (line: string): void => note(context, line);
  const keyFile = config.get("apiKeyFile");
  // The environment's key is the server's own here, and goes to no model server.
  const apiKey = keyFile === null ? null : readApiKey(keyFile, {});
  const cold = await openMachines(context, config, "native", takeOver, "server");
  const surviving = takeOver > 0 ? await survivingMachines(home, cold.backend, log) : { sandboxes: [], awaited: [] };
  if (takeOver > 0) await endUnrecorded(home, cold.backend, surviving.sandboxes, log);
  const backend = withWarmSandboxes(cold.backend, { runtime: context.runtime, most: config.get("warmSandboxes") ?? 0, log });
  const machines = { ...cold, backend, close: () => backend.close() };
  let runs: RunHost | null = null;
  try {
    const { runtime, env } = context;
    const board = new CallBoard();
    runs = await RunHost.open({ home, board, version: VERSION, runtime, env, machines, makeHarness: makeRunHarness, ...(takeOver > 0 ? { awaited: surviving.awaited, takeOverSeconds: takeOver } : {}), apiKey, observer: { changed: () => undefined, note: log } });
    const server = await openServer({ home, board, version: VERSION, runtime, env, machines, warm: backend.warm, keepsMachines: takeOver > 0, runs, log, modules: MODULES, host, port, limits: limitsOf(config) });
    try {
      await work({ server, runs, log, stopped: stopped.first });
    } finally {
      const graceMs = await Promise.race([server.close(LIMITS.serverDrainMs).then(() => null), stopped.second.then(() => 0)]);
      if (graceMs !== null) await server.close(graceMs);
    }
  } finally {
    stopped.stop();
    await runs?.close();
    await machines.close();
  }
}

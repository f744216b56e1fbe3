/** A run host on real machines of a data directory, as `mw serve` opens it. */
import { join } from "node:path";
import { createImageBuilder } from "../../src/build/builder.ts";
import { makeRunHarness } from "../../src/rollout/run-harness.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { openImageStore } from "../../src/image/store.ts";
import { RunHost } from "../../src/rollout/run-host.ts";
import { openNativeBackend } from "../../src/sandbox/backends/native/backend.ts";

export interface OpenHost {
  readonly home: string;
  readonly host: RunHost;
  close(): Promise<void>;
}

export async function openRunHost(home: string): Promise<OpenHost> {
  const backend = await openNativeBackend({ home, runtime: systemRuntime });
  const images = await openImageStore({ home, aliases: {}, cwd: home, env: process.env, runtime: systemRuntime });
  const builder = createImageBuilder({ backend, images, directory: join(home, "build") });
  const machines = { backend, images, builder, epoch: await backend.epoch, close: () => backend.close() };
  const host = await RunHost.open({
    home,
    version: "test",
    runtime: systemRuntime,
    env: process.env,
    machines,
    makeHarness: makeRunHarness,
    apiKey: null,
    observer: { changed: () => undefined, note: () => undefined },
  });
  return {
    home,
    host,
    close: async () => {
      await host.close();
      await machines.close();
    },
  };
}

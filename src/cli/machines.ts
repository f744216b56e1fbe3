/** Opens what makes machines for one controller: backend, images, builds. */
import { join } from "node:path";
import { createImageBuilder } from "../build/builder.ts";
import { openImageStore } from "../image/store.ts";
import type { Machines } from "../rollout/run.ts";
import { openNativeBackend } from "../sandbox/backends/native/backend.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";

/** Rejects `busy` when another controller owns the data directory, `environment` when this host cannot make machines. */
export async function openMachines(context: AppContext, config: Config): Promise<Machines> {
  const home = config.home.value;
  const backend = await openNativeBackend({ home, runtime: context.runtime });
  try {
    const images = await openImageStore({ home, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime });
    const builder = createImageBuilder({ backend, images, directory: join(home, "build") });
    return { backend, images, builder, epoch: Number(await backend.epoch), close: () => backend.close() };
  } catch (error) {
    await backend.close();
    throw error;
  }
}

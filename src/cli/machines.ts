/** Opens what makes machines for one controller: backend, images, builds. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createImageBuilder } from "../build/builder.ts";
import { MwError } from "../core/errors.ts";
import { openImageStore } from "../image/store.ts";
import type { Machines } from "../rollout/run.ts";
import { openNativeBackend } from "../sandbox/backends/native/backend.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";

/** Rejects `busy` when another controller owns the data directory, `environment` when this host cannot make machines. */
export async function openMachines(context: AppContext, config: Config): Promise<Machines> {
  const home = config.home.value;
  const backend = await openNativeBackend({ home, runtime: context.runtime }).catch((error: unknown) => {
    throw withFix(namingController(error, home));
  });
  try {
    const images = await openImageStore({ home, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime });
    const builder = createImageBuilder({ backend, images, directory: join(home, "build") });
    return { backend, images, builder, epoch: await backend.epoch, close: () => backend.close() };
  } catch (error) {
    await backend.close();
    throw error;
  }
}

/** Whatever it was, the way on begins at the same place. */
function withFix(error: unknown): unknown {
  if (!(error instanceof MwError) || error.code !== "environment" || error.fix !== undefined) return error;
  return new MwError("environment", error.message, { fix: "mw doctor says what this host lacks; MW_HOME names another data directory", facts: error.facts, cause: error });
}

/** The lock is held by the spawner of another controller; people know the controller. */
function namingController(error: unknown, home: string): unknown {
  if (!(error instanceof MwError) || error.code !== "busy") return error;
  const spawner = error.facts["pid"];
  const parent = typeof spawner === "number" ? parentOf(spawner) : null;
  if (parent === null) return error;
  return new MwError("busy", `another controller (process ${parent}) is at work in ${home}`, {
    fix: `wait for it or stop it (kill -INT ${parent}), or use another data directory (MW_HOME)`,
    facts: { pid: parent },
    cause: error,
  });
}

/** Null for a process that is gone, or whose parent is: then the spawner is about to end. */
function parentOf(pid: number): number | null {
  try {
    const parent = Number(/^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
    return parent > 1 ? parent : null;
  } catch {
    return null;
  }
}

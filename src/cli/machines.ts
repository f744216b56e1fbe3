/** Opens what makes machines for one controller: backend, images, builds. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createImageBuilder } from "../build/builder.ts";
import { MwError } from "../core/errors.ts";
import { openImageStore } from "../image/store.ts";
import type { Machines } from "../rollout/run.ts";
import { openChosenBackend, parseBackendChoice } from "../sandbox/backend-choice.ts";
import { openNativeBackend } from "../sandbox/backends/native/backend.ts";
import type { SandboxBackend } from "../sandbox/sandbox.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { note } from "./output.ts";
import { type Claim, waitingForOthers } from "./waiting.ts";

/**
 * `chosen`: the backend of the machines, as `parseBackendChoice` reads it. Images are built in native machines whatever it is, and the native backend keeps other controllers away.
 * `keepSeconds`: how long native machines outlive this process when it dies, for the next controller to take them over, as this one does unless somebody else could go on with what waits
 * there. Rejects `busy` when another controller owns the data directory, or then, `environment` when this host, or the chosen service, cannot make machines.
 */
export async function openMachines(context: AppContext, config: Config, chosen = "native", keepSeconds = 0, claim: Claim = "nothing"): Promise<Machines> {
  const home = config.home.value;
  const choice = parseBackendChoice(chosen);
  const takesOver = keepSeconds > 0 && (await waitingForOthers(home, claim)).length === 0;
  const native = await openNativeBackend({ home, runtime: context.runtime, keepSeconds, takesOver }).catch(async (error: unknown) => {
    throw withFix(await namingWaiting(namingController(error, home), home, claim));
  });
  let backend: SandboxBackend = native;
  const close = async (): Promise<void> => {
    if (backend !== native) await backend.close();
    await native.close();
  };
  try {
    if (choice.kind !== "native") backend = await openChosenBackend(choice, { home, env: context.env, runtime: context.runtime, log: (line) => note(context, line) });
    const images = await openImageStore({ home, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime, ...(keepSeconds > 0 ? { keeper: () => native.keeper } : {}) });
    const builder = createImageBuilder({ backend: native, images, directory: join(home, "build") });
    return { backend, images, builder, epoch: await native.epoch, close };
  } catch (error) {
    await close();
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
  if (!(error instanceof MwError) || error.code !== "busy" || error.facts["leftMs"] !== undefined) return error;
  const spawner = error.facts["pid"];
  const parent = typeof spawner === "number" ? parentOf(spawner) : null;
  if (parent === null) return error;
  return new MwError("busy", `another controller (process ${parent}) is at work in ${home}`, {
    fix: `wait for it or stop it (kill -INT ${parent}), or use another data directory (MW_HOME)`,
    facts: { pid: parent },
    cause: error,
  });
}

/** The backend does not know whose machines they are. */
async function namingWaiting(error: unknown, home: string, claim: Claim): Promise<unknown> {
  if (!(error instanceof MwError) || typeof error.facts["leftMs"] !== "number") return error;
  const waiting = await waitingForOthers(home, claim);
  if (waiting.length === 0) return error;
  const seconds = Math.ceil(error.facts["leftMs"] / 1000);
  return new MwError("busy", error.message, { fix: `${waiting.join(", ")}; else wait ${seconds} s, then the machines have ended, or use another data directory (MW_HOME)`, facts: error.facts, cause: error });
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

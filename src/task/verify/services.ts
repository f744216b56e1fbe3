/** Starts what the task declares as the agent's services again, in the fresh machine, and waits until each is ready. */
import { MwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { TaskService } from "../task.ts";
import { agentCaused } from "./agent-caused.ts";

export interface StartedServices {
  readonly notes: readonly string[];
  /** Returns once their output is no longer read. The processes end with the machine, or when it kills them. */
  stop(): Promise<void>;
}

interface ServiceContext {
  readonly workdir: string;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
}

const POLL_MS = 200;
const OUTPUT_BYTES = 64 * 1024;

/** A service that does not come up is noted, not an error: whether it should have is for the tests to say. */
export async function startServices(sandbox: Sandbox, services: readonly TaskService[], context: ServiceContext): Promise<StartedServices> {
  const notes: string[] = [];
  const abort = new AbortController();
  const draining: Promise<void>[] = [];
  for (const service of services) {
    const starting = sandbox.exec({
      command: service.command,
      cwd: service.workdir ?? context.workdir,
      ...(service.user === null ? {} : { user: service.user }),
      maxOutputBytes: OUTPUT_BYTES,
      signal: AbortSignal.any([abort.signal, context.signal]),
    });
    // Its directory or its user is the agent's to make, and to take away.
    const exec = await starting.catch((error: unknown) => {
      if (agentCaused(error)) return error;
      throw error;
    });
    if (exec instanceof MwError) {
      notes.push(`the service ${JSON.stringify(service.command)} could not be started: ${exec.message.slice(0, 500)}`);
      continue;
    }
    let tail = "";
    let code: number | null = null;
    draining.push(
      (async () => {
        try {
          for await (const { data } of exec.output) tail = `${tail}${Buffer.from(data).toString("utf8")}`.slice(-500);
          code = (await exec.exit).code;
        } catch {
          code = -1;
        }
      })(),
    );
    const ready = await waitReady(sandbox, service, context, () => code);
    if (!ready) notes.push(`the service ${JSON.stringify(service.command)} was not ready after ${service.readyTimeoutMs / 1000} seconds${code === null ? "" : `, it exited with ${String(code)}`}${tail === "" ? "" : `: ${tail}`}`);
  }
  return {
    notes,
    async stop() {
      abort.abort();
      await Promise.allSettled(draining);
    },
  };
}

/** Without a command that tells: ready when the command ended well (it started a daemon), or when it still runs after a moment. */
async function waitReady(sandbox: Sandbox, service: TaskService, { runtime, signal, workdir }: ServiceContext, exited: () => number | null): Promise<boolean> {
  const deadline = runtime.monotonic() + service.readyTimeoutMs;
  const settled = runtime.monotonic() + 1000;
  for (;;) {
    signal.throwIfAborted();
    if (service.readyCommand === null) {
      const code = exited();
      if (code !== null) return code === 0;
      if (runtime.monotonic() >= settled) return true;
    } else {
      const left = deadline - runtime.monotonic();
      if (left <= 0) return false;
      const { code } = await sandbox.run({ command: service.readyCommand, cwd: service.workdir ?? workdir, timeoutMs: Math.max(1, Math.ceil(left)), maxOutputBytes: OUTPUT_BYTES, signal });
      if (code === 0) return true;
      // One that failed will not become ready; one that ended well may have started a daemon.
      if (runtime.monotonic() >= deadline || (exited() ?? 0) !== 0) return false;
    }
    await runtime.sleep(POLL_MS, signal);
  }
}

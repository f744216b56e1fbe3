/**
 * The processes of a machine, kept at the same moment as its files.
 *
 * Whoever talks to init parts from it, everything stands still, and CRIU writes the processes out while the layer is copied; then everything goes on. Whatever fails, the machine
 * goes on as if nothing had been asked for.
 */
import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../../../core/errors.ts";
import { newId } from "../../../../core/ids.ts";
import { noRoom } from "../../../snapshots/no-room.ts";
import type { SnapshotLayer } from "../../../snapshots/record.ts";
import type { KeptMachine } from "../keeping.ts";
import type { KeptProcesses } from "../spawner-protocol.ts";
import { mendProcessTree } from "./process-tree.ts";

export interface Dumped {
  readonly processes: KeptProcesses;
  /** Its layer in the spawner's keeping, the caller's to release. */
  readonly workspace: string;
  readonly memoryLayers: number;
  readonly diskLayers: readonly SnapshotLayer[];
  readonly stoppedMs: number;
}

/** `directory` is empty, and the caller's whatever happens. */
export async function dumpAndGoOn(machine: KeptMachine, directory: string): Promise<Dumped> {
  const { client, runtime, ground } = machine;
  const workspace = newId("snap", runtime);
  await partFrom(machine);
  try {
    const start = runtime.monotonic();
    const processes = await whenAllCanStop(machine, directory, () => standing(machine, directory, workspace));
    return { processes, workspace, memoryLayers: ground.memoryLayers + 1, diskLayers: ground.diskLayers, stoppedMs: runtime.monotonic() - start };
  } finally {
    await client.rejoin();
  }
}

async function standing({ id, spawner }: KeptMachine, directory: string, workspace: string): Promise<KeptProcesses> {
  try {
    await spawner.freeze(id);
    const [dump, copy] = await Promise.allSettled([spawner.dump(id, directory), spawner.copy(id, workspace)]);
    if (dump.status === "rejected" && copy.status === "fulfilled") await spawner.releaseWorkspace(workspace).catch(() => undefined);
    if (dump.status === "rejected") throw notKept(id, dump.reason);
    if (copy.status === "rejected") throw copy.reason;
    return { directory, ...dump.value };
  } finally {
    await spawner.thaw(id).catch(() => undefined);
  }
}

/** It stands still from then on; what fails lets it go on. */
export async function dumpAndStand(machine: KeptMachine, directory: string): Promise<KeptProcesses> {
  const { id, spawner, client } = machine;
  await partFrom(machine);
  try {
    return await whenAllCanStop(machine, directory, async () => {
      await spawner.freeze(id);
      try {
        return { directory, ...(await spawner.dump(id, directory)) };
      } catch (error) {
        await spawner.thaw(id).catch(() => undefined);
        throw notKept(id, error);
      }
    });
  } catch (error) {
    await client.rejoin();
    throw error;
  }
}

/** A program that starts others without end is in the middle of a vfork every now and then; then it runs on for a moment. */
const VFORK_TRIES = 100;
/** Of a process that CRIU could not stop in its own time, which is long. */
const STOP_TRIES = 3;

/** `attempt` freezes the machine, and where it fails has let it go on. */
async function whenAllCanStop<T>({ runtime }: KeptMachine, directory: string, attempt: () => Promise<T>): Promise<T> {
  let stops = 0;
  for (let tries = 1; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof MwError)) throw error;
      const vforks = error.facts["native"] === "vfork";
      if (!vforks && !(error.message.includes(CRIU_STOP_TIMEOUT) && ++stops < STOP_TRIES)) throw error;
      if (tries === VFORK_TRIES) throw error;
      if (!vforks) await emptied(directory);
    }
    // Not in step with whatever it does.
    await runtime.sleep(1 + (tries % 7));
  }
}

/** The last words of a CRIU that gives up. */
const CRIU_STOP_TIMEOUT = "Timeout reached";

async function emptied(directory: string): Promise<void> {
  for (const name of await readdir(directory)) await rm(join(directory, name), { recursive: true, force: true });
}

/** What was written of a dump, ready for use: its size in bytes. */
export async function finishDump({ directory }: KeptProcesses): Promise<number> {
  try {
    await mendProcessTree(directory);
  } catch (error) {
    throw noRoom(error);
  }
  return sizeOf(directory);
}

/** Bytes of all files below it. */
export async function sizeOf(directory: string): Promise<number> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  const sizes = await Promise.all(entries.filter((entry) => entry.isFile()).map(async (entry) => (await stat(join(entry.parentPath, entry.name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}

async function partFrom({ id, client, frozen }: KeptMachine): Promise<void> {
  // Init has to answer, to end its connections.
  if (frozen) throw new MwError("conflict", `The sandbox ${id} is frozen, and its processes cannot be kept until it is thawed`, { fix: "thaw it first" });
  await client.part();
}

const NOT_KEPT: ReadonlySet<unknown> = new Set(["criu", "vfork"]);

function notKept(id: string, error: unknown): unknown {
  if (!(error instanceof MwError) || !NOT_KEPT.has(error.facts["native"])) return error;
  const { message } = error;
  if (/No space left|Disk quota/.test(message)) return new MwError("host_exhausted", `There is no room for the processes of the sandbox ${id}`, { cause: error, fix: "free some space (mw sandbox snapshots rm, mw image gc), or name a data directory on a larger file system in MW_HOME" });
  if (message.includes("CRIU was killed")) return new MwError("sandbox_failed", `The processes of the sandbox ${id} were not kept: ${message}`, { cause: error, facts: error.facts });
  return new MwError("unsupported", `The processes of the sandbox ${id} cannot be kept: ${message}`, { cause: error, fix: "end what hinders it, or keep the files alone", facts: error.facts });
}

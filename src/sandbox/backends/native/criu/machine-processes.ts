/** Snapshots, forks and pauses of a machine with its processes, as files of the snapshot store. */
import { mkdir } from "node:fs/promises";
import { release } from "node:os";
import { join } from "node:path";
import { MwError } from "../../../../core/errors.ts";
import { removeTree } from "../../../../image/unpacker.ts";
import type { SnapshotTaken } from "../../../sandbox.ts";
import type { DiskSnapshotStore } from "../../../snapshots/disk-store.ts";
import { snapshotOf, type SnapshotRecord } from "../../../snapshots/record.ts";
import { persist, type KeptMachine } from "../keeping.ts";
import type { KeptProcesses } from "../spawner-protocol.ts";
import { type Dumped, dumpAndGoOn, dumpAndStand, finishDump, sizeOf } from "./keep.ts";
import { findCriu } from "./program.ts";

type Memory = NonNullable<SnapshotRecord["memory"]>;
/** Writes the record of what was kept. */
type Recorder = (layers: SnapshotRecord["layers"], memory: Memory) => SnapshotRecord;

export async function snapshotWithProcesses(machine: KeptMachine, recordOf: Recorder): Promise<SnapshotTaken> {
  const { spawner, store } = machine;
  return inWork(store, async (images) => {
    const { processes, workspace, diskLayers, stoppedMs } = await dumpAndGoOn(machine, images);
    try {
      const record = await keep(machine, workspace, diskLayers, processes, recordOf);
      return { snapshot: snapshotOf(record), method: "dumped", stoppedMs };
    } finally {
      await spawner.releaseWorkspace(workspace).catch(() => undefined);
    }
  });
}

/** Nothing is written to disk that outlives the fork. */
export async function forkWithProcesses<T>(machine: KeptMachine, children: (layer: Dumped, processes: KeptProcesses) => Promise<T>): Promise<T> {
  const { spawner, store } = machine;
  return inWork(store, async (images) => {
    const dumped = await dumpAndGoOn(machine, images);
    try {
      await finishDump(dumped.processes);
      return await children(dumped, dumped.processes);
    } finally {
      await spawner.releaseWorkspace(dumped.workspace).catch(() => undefined);
    }
  });
}

/** The machine stands still afterwards. What fails lets it go on. */
export async function pauseWithProcesses(machine: KeptMachine, recordOf: Recorder): Promise<SnapshotRecord> {
  const { id, spawner, client, store, ground } = machine;
  return inWork(store, async (images) => {
    const processes = await dumpAndStand(machine, images);
    try {
      return await keep(machine, id, ground.diskLayers, processes, recordOf);
    } catch (error) {
      await spawner.thaw(id).catch(() => undefined);
      await client.rejoin();
      throw error;
    }
  });
}

/** The processes of a snapshot, or null where it has files alone. Rejects `unsupported` where they cannot go on, `corrupt` where they are not whole. */
export async function processesOf({ id, memory }: SnapshotRecord, store: DiskSnapshotStore): Promise<KeptProcesses | null> {
  if (memory === null) return null;
  // They have the kernel's own code mapped, and know its clocks.
  if (memory.kernel !== release()) {
    throw new MwError("unsupported", `The processes of the snapshot ${id} were kept on Linux ${memory.kernel}, and cannot go on on Linux ${release()}`, { fix: "start from its files alone" });
  }
  const directory = store.memoryPath(id);
  // Of pages that are not there CRIU waits for ever.
  const bytes = await sizeOf(directory).catch(() => 0);
  if (bytes !== memory.bytes) throw new MwError("corrupt", `The processes of the snapshot ${id} are ${bytes} bytes, where ${memory.bytes} were kept`, { fix: "start from its files alone, or take it in again from its archive" });
  return { directory, lifeline: memory.lifeline, listener: memory.listener };
}

async function keep({ spawner, store, spec, id }: KeptMachine, workspace: string, diskLayers: SnapshotRecord["layers"], processes: KeptProcesses, recordOf: Recorder): Promise<SnapshotRecord> {
  const bytes = await finishDump(processes);
  const persisted = await persist({ spawner, store }, workspace, diskLayers);
  try {
    const criu = findCriu();
    const { lifeline, listener } = processes;
    const record = recordOf(persisted.layers, { bytes, criu: "version" in criu ? criu.version : "", kernel: release(), hostname: spec.hostname ?? id, lifeline, listener });
    const hold = await store.hold([record.id]);
    try {
      await store.addMemory(record.id, processes.directory);
      await store.commit(record);
    } finally {
      await hold.release();
    }
    return record;
  } finally {
    await persisted.hold.release();
  }
}

async function inWork<T>(store: DiskSnapshotStore, work: (images: string) => Promise<T>): Promise<T> {
  const directory = await store.workspace();
  const images = join(directory, "processes");
  try {
    await mkdir(images, { mode: 0o700 });
    return await work(images);
  } finally {
    await removeTree(directory);
  }
}

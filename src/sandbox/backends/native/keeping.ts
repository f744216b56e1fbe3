/**
 * What a running machine has written, kept as a layer that never changes again, while the machine goes on.
 *
 * Switching: when nothing but init is in the machine, its init ends, its upper directory becomes a memory layer, and a machine of the same id starts over it. Nothing is
 * copied, so it takes milliseconds whatever was written. Copying: else everything in the machine stands still while the upper directory is copied in memory.
 * Writing to disk comes after either, when the machine runs again.
 */
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import { newId, type SandboxId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { removeTree } from "../../../image/unpacker.ts";
import type { SandboxSpec, SnapshotTaken } from "../../sandbox.ts";
import type { DiskSnapshotStore, LayerHold } from "../../snapshots/disk-store.ts";
import type { SnapshotLayer } from "../../snapshots/record.ts";
import { noRoom } from "../../snapshots/no-room.ts";
import { DISK_LAYERS_MOST, layersOf, MEMORY_LAYERS_MOST, NO_HOLD, type Ground } from "./ground.ts";
import type { MachineClient } from "./machine-client.ts";
import type { Spawner } from "./spawner.ts";
import { WorkspaceReader } from "./workspace.ts";

/** The machine as this file needs it. */
export interface KeptMachine {
  readonly id: SandboxId;
  readonly spec: SandboxSpec;
  readonly spawner: Spawner;
  readonly client: MachineClient;
  readonly store: DiskSnapshotStore;
  readonly runtime: Runtime;
  readonly ground: Ground;
  /** Stands still already: then its init answers nobody. */
  readonly frozen: boolean;
  /** Its layers as a snapshot wrote them to disk; what the next switch stands on. */
  readonly persisted: PersistedLayers | null;
  /** Its incarnation ends in a moment, which is then said with `gone`, or it stays after all. */
  leaving(): Promise<{ gone(): void; stays(): void }>;
  /** Where machines outlive their controller: a successor that finds only the layer makes the machine again on this. Null: it stays on what it stands on. */
  announce(next: Ground | null): Promise<void>;
  /** Makes the machine again on another ground. */
  relaunch(ground: Ground): Promise<void>;
}

export interface PersistedLayers {
  readonly layers: readonly SnapshotLayer[];
  readonly hold: LayerHold;
}

/** A layer in the spawner's keeping, the caller's to release. */
export interface FrozenLayer {
  readonly workspace: string;
  /** With this one. */
  readonly memoryLayers: number;
  readonly diskLayers: readonly SnapshotLayer[];
  readonly method: Exclude<SnapshotTaken["method"], "dumped">;
  readonly stoppedMs: number;
}

export async function freezeLayer(machine: KeptMachine): Promise<FrozenLayer> {
  const { client } = machine;
  const flat = await flattenDeep(machine);
  try {
    try {
      if (!machine.frozen && (await client.quiesce())) {
        const switched = await switchOver(machine, flat);
        if (switched !== null) return switched;
      }
    } finally {
      client.reopen();
    }
    return await copyLayer(machine);
  } finally {
    // Whoever stands on it keeps it.
    if (flat !== null) await machine.spawner.releaseWorkspace(flat).catch(() => undefined);
  }
}

/** Many memory layers become one, while the machine runs over them: they do not change. */
async function flattenDeep({ ground, persisted, spawner, runtime, id }: KeptMachine): Promise<string | null> {
  if (persisted !== null || ground.memoryLayers < MEMORY_LAYERS_MOST) return null;
  const flat = newId("snap", runtime);
  await spawner.flatten(id, flat, 0);
  return flat;
}

/** Null when something was in the machine after all; then nothing was done. */
async function switchOver(machine: KeptMachine, flat: string | null): Promise<FrozenLayer | null> {
  const { id, spawner, client, runtime, ground, persisted, store } = machine;
  const workspace = newId("snap", runtime);
  // A hold of its own would need room on disk, which a fork does not.
  const hold = persisted?.hold ?? ground.hold;
  const leaving = await machine.leaving();
  const below = persisted !== null ? 0 : flat !== null ? 1 : ground.memoryLayers;
  const diskLayers = persisted?.layers ?? ground.diskLayers;
  const next: Ground = { ...ground, workspace, memoryLayers: below + 1, diskLayers, hold, ownIdentity: false };
  const start = runtime.monotonic();
  try {
    await machine.announce(next);
    await spawner.detach(id, workspace);
  } catch (error) {
    leaving.stays();
    await machine.announce(null);
    if (error instanceof MwError && error.code === "busy") return null;
    throw error;
  }
  leaving.gone();
  client.drop();
  try {
    if (persisted !== null) await spawner.rebase(workspace, null, layersOf(machine.spec, persisted.layers, store));
    else if (flat !== null) await spawner.rebase(workspace, flat);
    await machine.relaunch(next);
    if (persisted !== null) await ground.hold.release();
    return { workspace, memoryLayers: below + 1, diskLayers, method: "switched", stoppedMs: runtime.monotonic() - start };
  } catch (error) {
    await spawner.releaseWorkspace(workspace).catch(() => undefined);
    throw error;
  }
}

async function copyLayer({ id, spawner, runtime, ground }: KeptMachine): Promise<FrozenLayer> {
  const workspace = newId("snap", runtime);
  const { stoppedMs } = await spawner.copy(id, workspace);
  return { workspace, memoryLayers: ground.memoryLayers + 1, diskLayers: ground.diskLayers, method: "copied", stoppedMs };
}

/** Writes a workspace (or what a machine that stands still wrote) to disk, with all memory layers below it. The layers are held until the caller releases them. */
export async function persist(from: { readonly spawner: Spawner; readonly store: DiskSnapshotStore }, workspace: string, diskLayers: readonly SnapshotLayer[]): Promise<PersistedLayers> {
  const { spawner, store } = from;
  const merged = diskLayers.length >= DISK_LAYERS_MOST;
  const work = await store.workspace();
  let kept = NO_HOLD;
  try {
    if (!merged && diskLayers.length > 0) kept = await store.hold(diskLayers.map((layer) => layer.id));
    const reader = await WorkspaceReader.connect(await spawner.openWorkspace(workspace));
    try {
      const directory = join(work, "layer");
      const { bytes } = await reader.squash(directory, merged ? diskLayers.length : 0);
      const added = await store.addLayer(directory, bytes);
      const release = async (): Promise<void> => void (await Promise.all([added.hold.release(), kept.release()]));
      return { layers: merged ? [added.layer] : [added.layer, ...diskLayers], hold: { release } };
    } finally {
      reader.close();
    }
  } catch (error) {
    await kept.release();
    throw noRoom(error);
  } finally {
    await removeTree(work);
  }
}

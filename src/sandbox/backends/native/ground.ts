/**
 * What a machine stands on, below what it writes and above its image.
 *
 *   memory layers   workspaces held by the spawner, a chain of which the machine names the topmost: what it (or the machine that it was forked of) wrote before it was last
 *                   switched over its own frozen layer
 *   disk layers     directories of the snapshot store, topmost first
 *
 * Taking a snapshot writes memory layers to disk. The next switch then stands on those instead, and the memory is given back.
 */
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import type { Isolation, SandboxSpec } from "../../sandbox.ts";
import type { DiskSnapshotStore, LayerHold } from "../../snapshots/disk-store.ts";
import type { SnapshotLayer } from "../../snapshots/record.ts";
import { layeredParts } from "./layered-parts.ts";
import { EGRESS_PORT } from "../../exec-environment.ts";
import type { CreateMachine, KeptProcesses } from "./spawner-protocol.ts";

export interface Ground {
  /** Id of the topmost memory layer, or of the sealed workspace that the machine was made from; null when there is none. */
  readonly workspace: string | null;
  /** Memory layers of its own; a sealed workspace that the machine was made from is not counted. */
  readonly memoryLayers: number;
  readonly diskLayers: readonly SnapshotLayer[];
  /** On the disk layers. */
  readonly hold: LayerHold;
  /** Stays the machine's through pauses; copies have their own. */
  readonly machineId: string;
  /** In place of what the layers say: the machine is a copy of another. */
  readonly ownIdentity: boolean;
  /** Go on in the machine when it is made. Absent: none. */
  readonly processes?: KeptProcesses;
}

export const NO_HOLD: LayerHold = { release: async () => undefined };

/** Beyond it what a snapshot writes to disk is one layer with all that is below it. The kernel takes 500, but every part of a root needs its own. */
export const DISK_LAYERS_MOST = 8;
/** Beyond it they are made one before the next switch. */
export const MEMORY_LAYERS_MOST = 4;

/** Directories below a machine, topmost first. */
export function layersOf(spec: SandboxSpec, diskLayers: readonly SnapshotLayer[], store: DiskSnapshotStore): readonly string[] {
  return [...diskLayers.map((layer) => store.layerPath(layer.id)), ...(spec.layers ?? []).map((layer) => layer.path), ...spec.root.layers];
}

export function createRequest(
  id: SandboxId,
  spec: SandboxSpec,
  ground: Ground,
  how: { readonly store: DiskSnapshotStore; readonly profile: Exclude<Isolation["profile"], "remote">; readonly ttlMs: number; /** Socket of the egress proxy, of a machine that has one. */ readonly egress: string | null },
): CreateMachine {
  const { root, cpus, memoryBytes, diskBytes, pids, network, hostname } = spec;
  const services = [...(spec.services ?? []), ...(how.egress === null ? [] : [{ port: EGRESS_PORT, target: how.egress }])];
  const own = ground.diskLayers.map((layer) => how.store.layerPath(layer.id));
  const { workspace } = ground;
  return {
    id,
    profile: spec.checkpointable === true ? "checkpointable" : how.profile,
    layers: layersOf(spec, ground.diskLayers, how.store),
    parts: layeredParts(spec.layers ?? [], root.parts, own),
    ttlMs: Math.max(1, Math.round(how.ttlMs)),
    machineId: ground.machineId,
    ownIdentity: ground.ownIdentity,
    ...(workspace === null ? {} : { workspace }),
    ...(ground.processes === undefined ? {} : { processes: ground.processes }),
    ...(cpus === undefined ? {} : { cpus }),
    ...(memoryBytes === undefined ? {} : { memoryBytes }),
    ...(diskBytes === undefined ? {} : { diskBytes }),
    ...(pids === undefined ? {} : { pids }),
    // The proxy is a service like others: what the kernel gives the machine is loopback.
    network: network === "public" ? "public" : "none",
    services,
    ...(hostname === undefined ? {} : { hostname }),
  };
}

/** The spawner speaks of directories; here it is known what they were for. */
export function creationError(error: unknown, spec: SandboxSpec): unknown {
  if (!(error instanceof MwError)) return error;
  const { facts, message } = error;
  if (spec.workspace !== undefined && message.includes(spec.workspace.id)) return new MwError("sandbox_gone", `There is no sealed workspace ${spec.workspace.id}: it was released, or its keeper died`, { cause: error, facts });
  if (["ENOENT", "ENOTDIR", "EACCES", "ELOOP"].includes(String(facts["native"]))) return new MwError("invalid_image", message, { cause: error, facts });
  return error;
}

/** What a controller tells its spawner of a machine, so that another controller can take the machine over when it dies: everything that only this side knows. */
import { z } from "zod";
import { isId, type SandboxId } from "../../../core/ids.ts";
import type { SandboxSpec } from "../../sandbox.ts";
import type { Ground } from "./ground.ts";

/** Part of the version that controllers compare: raise it with every change of the notes, or of what is said to init. */
export const NOTE_VERSION = 1;

/** Holds are the successor's own, and processes have gone on already. */
export type NotedGround = Omit<Ground, "hold" | "processes">;

export interface MachineNote {
  readonly id: SandboxId;
  /** What it was made from lies below it: a workspace is named by the ground. */
  readonly spec: Omit<SandboxSpec, "workspace">;
  readonly createdAt: number;
  readonly leaseMs: number;
  readonly ownerRenews: boolean;
  /** On its owner's demand. */
  readonly frozen: boolean;
  readonly ground: NotedGround;
  /** What it is about to stand on, while its files become a layer below it: where only the layer is left, the machine is made again on this. */
  readonly next: NotedGround | null;
  readonly carried: { readonly limits: { readonly oom_killed: number; readonly pids: number; readonly disk_full: number }; readonly cpuMs: number };
}

const ground = z.object({ workspace: z.string().nullable(), memoryLayers: z.number(), diskLayers: z.array(z.object({ id: z.string(), bytes: z.number() })), machineId: z.string(), ownIdentity: z.boolean() });

/** Its writer was this version, so that what is looked at here is whether it is whole. */
const schema = z.object({
  id: z.string().refine((id) => isId("sbx", id)),
  spec: z.looseObject({ root: z.looseObject({ digest: z.string(), layers: z.array(z.string()) }) }),
  createdAt: z.number(),
  leaseMs: z.number(),
  ownerRenews: z.boolean(),
  frozen: z.boolean(),
  ground,
  next: ground.nullable(),
  carried: z.object({ limits: z.object({ oom_killed: z.number(), pids: z.number(), disk_full: z.number() }), cpuMs: z.number() }),
});

export function writeNote({ spec, ground: now, next, ...rest }: MachineNote): Uint8Array {
  const { workspace: _workspace, ...lasting } = spec as SandboxSpec;
  const document: MachineNote = { ...rest, spec: lasting, ground: lastingGround(now), next: next === null ? null : lastingGround(next) };
  return Buffer.from(JSON.stringify(document));
}

/** Null for what is no note. */
export function readNote(text: string): MachineNote | null {
  try {
    const parsed = schema.safeParse(JSON.parse(text));
    // The specification was checked when the machine was made.
    return parsed.success ? (parsed.data as unknown as MachineNote) : null;
  } catch {
    return null;
  }
}

function lastingGround({ workspace, memoryLayers, diskLayers, machineId, ownIdentity }: NotedGround): NotedGround {
  return { workspace, memoryLayers, diskLayers, machineId, ownIdentity };
}

/** What is written down about a snapshot: one JSON file each, which alone makes it exist. */
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { isId, type SandboxId, type SnapshotId } from "../../core/ids.ts";
import type { Snapshot } from "../sandbox.ts";

const Layer = z.strictObject({ id: z.string().refine((id) => isId("snap", id)), bytes: z.number().nonnegative() });

export const SnapshotRecord = z.strictObject({
  version: z.literal(1),
  id: z.custom<SnapshotId>((id) => typeof id === "string" && isId("snap", id)),
  name: z.string().nullable(),
  createdAt: z.number(),
  sandbox: z.custom<SandboxId>((id) => typeof id === "string" && isId("sbx", id)),
  imageDigest: z.string(),
  labels: z.record(z.string(), z.string()),
  pausedSandbox: z.custom<SandboxId>((id) => typeof id === "string" && isId("sbx", id)).nullable(),
  /** File layers over the image, topmost first. */
  layers: z.array(Layer).max(64).readonly(),
  /** What tells the machine from others: a resumed one has it again, children have their own. */
  machineId: z.string().regex(/^[0-9a-f]{32}$/),
  /** Processes, in `memory/<id>`: null for files only. */
  memory: z
    .strictObject({
      bytes: z.number().nonnegative(),
      criu: z.string(),
      kernel: z.string(),
      hostname: z.string(),
      /** Numbers by which they know the two descriptors that lead out of the machine. */
      lifeline: z.number().int().positive(),
      listener: z.number().int().positive(),
    })
    .nullable(),
});
export type SnapshotRecord = z.infer<typeof SnapshotRecord>;
export type SnapshotLayer = z.infer<typeof Layer>;

export function snapshotOf(record: SnapshotRecord): Snapshot {
  const { id, name, createdAt, sandbox, imageDigest, labels, pausedSandbox, layers, memory } = record;
  const bytes = layers.reduce((sum, layer) => sum + layer.bytes, 0) + (memory?.bytes ?? 0);
  return { id, name, createdAt, sandbox, imageDigest, labels, pausedSandbox, memory: memory !== null, bytes, layers: layers.length };
}

/** Throws `invalid_input` for what cannot be a snapshot's name. An id is none: it would hide the snapshot that has it. */
export function checkSnapshotName(name: string): void {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/.test(name) || isId("snap", name)) {
    throw new MwError("invalid_input", `${JSON.stringify(name)} cannot be a snapshot's name`, { fix: "use up to 128 letters, digits, dots, dashes and underscores, beginning with a letter or digit" });
  }
}

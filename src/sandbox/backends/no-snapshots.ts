/** The snapshot store of a backend that keeps none. */
import { MwError } from "../../core/errors.ts";
import type { Snapshot, SnapshotStore } from "../sandbox.ts";

const absent = async (reference: string): Promise<never> => {
  throw new MwError("not_found", `There is no snapshot ${JSON.stringify(reference)}: this backend keeps none`);
};

export const NO_SNAPSHOTS: SnapshotStore = {
  list: async () => [],
  get: async (): Promise<Snapshot | null> => null,
  remove: absent,
  rename: absent,
  sizeOf: async () => 0,
  collect: async () => ({ layers: 0, bytes: 0 }),
  export: absent,
  import: async () => {
    throw new MwError("unsupported", "This backend keeps no snapshots", { facts: { capability: "snapshot" } });
  },
};

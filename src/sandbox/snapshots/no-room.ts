/** A full disk under the data directory is the host's state, whichever part of a snapshot finds it. */
import { isDiskFull, MwError } from "../../core/errors.ts";

/** What to throw in place of `error`: `host_exhausted` for a full disk, else the same. */
export function noRoom(error: unknown): unknown {
  if (!isDiskFull(error)) return error;
  return new MwError("host_exhausted", "There is no room for a snapshot in the data directory", { cause: error, fix: "free some space (mw sandbox snapshots rm, mw image gc), or name a data directory on a larger file system in MW_HOME" });
}

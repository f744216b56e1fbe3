/** `parent.json` in the directory of a rollout that branched from another one. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RolloutId } from "../../core/ids.ts";

export const PARENT_FILE = "parent.json";

export interface Parent {
  readonly rollout: RolloutId;
  /** It branched behind this turn. */
  readonly turn: number;
  /** So many of the calls in its log are its parent's, and so are their tokens. */
  readonly calls: number;
}

/** Null for a rollout that began at its task's beginning. */
export async function readParent(directory: string): Promise<Parent | null> {
  try {
    return JSON.parse(await readFile(join(directory, PARENT_FILE), "utf8")) as Parent;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
}

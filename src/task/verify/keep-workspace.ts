/** A sealed workspace as a file for people: all that the agent added, changed and removed, as an OCI layer. */
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { writeLayerArchive } from "../../image/export.ts";
import { removeTree } from "../../image/unpacker.ts";
import type { Workspace } from "../../sandbox/sandbox.ts";

/** `path` must not exist yet. Needs room for the workspace twice on its file system. */
export async function keepWorkspace(workspace: Workspace, path: string, signal: AbortSignal): Promise<void> {
  const tree = `${path}.tree`;
  await mkdir(dirname(path), { recursive: true });
  try {
    await workspace.export(tree);
    await writeLayerArchive(tree, path, signal);
  } finally {
    await removeTree(tree);
  }
}

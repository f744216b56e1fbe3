/** A sealed workspace as a file for people: all that the agent added, changed and removed, as an OCI layer. */
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { messageOf } from "../../core/errors.ts";
import { writeLayerArchive } from "../../image/export.ts";
import { removeTree } from "../../image/unpacker.ts";
import type { Sandbox, Workspace } from "../../sandbox/sandbox.ts";

/**
 * `path` must not exist yet; without one nothing is done. Needs room for the workspace twice on its file system. Returns notes: what could not be kept is no reason
 * not to verify.
 */
export async function archiveWorkspace(workspace: Workspace, path: string | undefined, signal: AbortSignal): Promise<readonly string[]> {
  if (path === undefined) return [];
  try {
    await write(workspace, path, signal);
    return [];
  } catch (error) {
    signal.throwIfAborted();
    return [`the workspace was not kept: ${messageOf(error)}`];
  }
}

/** The end of a machine whose files are wanted for nothing else. */
export async function endArchiving(sandbox: Sandbox, path: string | undefined, signal: AbortSignal): Promise<void> {
  if (path === undefined) return sandbox.kill();
  const workspace = await sandbox.seal();
  try {
    await archiveWorkspace(workspace, path, signal);
  } finally {
    await workspace.release();
  }
}

async function write(workspace: Workspace, path: string, signal: AbortSignal): Promise<void> {
  const tree = `${path}.tree`;
  await mkdir(dirname(path), { recursive: true });
  try {
    await workspace.export(tree);
    await writeLayerArchive(tree, path, signal);
  } finally {
    await removeTree(tree);
  }
}

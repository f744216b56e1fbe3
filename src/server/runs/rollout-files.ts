/**
 * Files of a rollout's directory. What is in `artifacts/`, `verifier/` and `harness/` was named and made by an agent: no link is followed, neither at the end of a path nor on the
 * way to it, and nothing but plain files is read.
 */
import { constants } from "node:fs";
import { lstat, open, readdir, realpath } from "node:fs/promises";
import { join, sep } from "node:path";
import type { FilesView } from "./contract/rollout.ts";

const LISTED = 5_000;
const DEPTH = 32;

export interface Range {
  readonly bytes: Buffer;
  /** Size of the file. */
  readonly total: number;
}

/** Null when there is no such plain file below `directory`. */
export async function readRange(directory: string, name: string, offset: number, length: number): Promise<Range | null> {
  const path = await plainFile(directory, name);
  if (path === null) return null;
  try {
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const info = await file.stat();
      if (!info.isFile()) return null;
      const bytes = Buffer.alloc(Math.max(0, Math.min(length, info.size - offset)));
      const { bytesRead } = await file.read(bytes, 0, bytes.length, offset);
      return { bytes: bytes.subarray(0, bytesRead), total: info.size };
    } finally {
      await file.close();
    }
  } catch {
    return null;
  }
}

/** Where a plain file is that a relative path names without a link on its way; null where there is none. */
async function plainFile(directory: string, name: string): Promise<string | null> {
  const parts = name.split("/");
  if (name === "" || name.includes("\0") || parts.some((part) => part === "" || part === "." || part === "..")) return null;
  const path = join(directory, ...parts);
  try {
    const root = await realpath(directory);
    // A link anywhere below the directory would show here.
    if ((await realpath(path)) !== [root, ...parts].join(sep)) return null;
    return (await lstat(path)).isFile() ? path : null;
  } catch {
    return null;
  }
}

/** Everything below the directory, in order of names, links not followed. */
export async function listFiles(directory: string): Promise<FilesView> {
  const files: FilesView["files"] = [];
  const walk = async (relative: string, depth: number): Promise<void> => {
    const entries = await readdir(join(directory, relative), { withFileTypes: true }).catch(() => []);
    for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
      if (files.length >= LISTED) return;
      const path = relative === "" ? entry.name : `${relative}/${entry.name}`;
      const kind = entry.isSymbolicLink() ? "link" : entry.isDirectory() ? "directory" : entry.isFile() ? "file" : "other";
      const bytes = kind === "file" ? ((await lstat(join(directory, path)).catch(() => null))?.size ?? 0) : 0;
      files.push({ path, bytes, kind });
      if (kind === "directory" && depth < DEPTH) await walk(path, depth + 1);
    }
  };
  await walk("", 0);
  return { files, truncated: files.length >= LISTED };
}

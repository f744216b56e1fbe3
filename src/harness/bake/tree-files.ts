/** What baking does to a directory before it becomes a layer, so that the same packages make the same layer: modes, times and owners say nothing. */
import { chmod, readdir, rm } from "node:fs/promises";
import { join, relative } from "node:path";
import type { TreeEvent } from "../../image/tree.ts";
import { readHostTree } from "../../image/unpacker.ts";
import { globMatcher } from "../../sandbox/backends/native/glob.ts";
import { readElf } from "./elf.ts";
import type { ProgramFile } from "./private-libc.ts";

/** 1985-10-26, as npm has it: some programs take the epoch itself for a missing time. */
const MTIME_NS = 499_162_500_000_000_000n;

/** Every file below the directory, in no order; links are not followed. */
async function* filesBelow(directory: string): AsyncGenerator<string> {
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) yield* filesBelow(path);
    else if (entry.isFile()) yield path;
  }
}

/** Removes what matches; whole trees where a directory does. A pattern without a slash is matched against names, one with against the path below the directory. */
export async function removeMatching(directory: string, patterns: readonly string[]): Promise<void> {
  const matches = globMatcher(patterns);
  const visit = async (at: string): Promise<void> => {
    for (const entry of await readdir(at, { withFileTypes: true })) {
      const path = join(at, entry.name);
      if (matches(relative(directory, path))) await rm(path, { recursive: true, force: true });
      else if (entry.isDirectory()) await visit(path);
    }
  };
  await visit(directory);
}

/** The ELF files below the directory. Programs among them become executable, which packages forget. */
export async function elfFiles(directory: string): Promise<readonly ProgramFile[]> {
  const found: ProgramFile[] = [];
  for await (const path of filesBelow(directory)) {
    const elf = await readElf(path);
    if (elf === null) continue;
    found.push({ path, elf });
    const library = /\.(?:node|o)$|\.so(?:\.[\w.]+)?$/.test(path);
    if (!library) await chmod(path, 0o755);
  }
  return found;
}

/** The tree as a layer has it: root's, readable by all, writable by its owner, of no time. */
export async function* plainTree(directory: string): AsyncGenerator<TreeEvent> {
  for await (const event of readHostTree(directory)) {
    if (event.type === "data") {
      yield event;
      continue;
    }
    const { entry } = event;
    const executable = entry.kind === "directory" || (entry.mode & 0o111) !== 0;
    yield { type: "entry", entry: { ...entry, uid: 0, gid: 0, mtimeNs: MTIME_NS, xattrs: [], mode: entry.kind === "symlink" ? 0o777 : executable ? 0o755 : 0o644 } };
  }
}


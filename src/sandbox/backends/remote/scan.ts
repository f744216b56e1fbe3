/** What a machine's files are, entry by entry, and how they differ from what they were. */
import type { ScannedEntry } from "../native/files.ts";
import type { WorkspaceChange } from "../../sandbox.ts";
import { GUEST_DIRECTORY } from "./guest-programs.ts";

/** By path without the leading slash, each byte one character. */
export type Scan = ReadonlyMap<string, ScannedEntry>;

/** No files of the machine: what its kernel shows, and our programs. */
export const NOT_SCANNED: readonly string[] = ["/proc", "/sys", "/dev", GUEST_DIRECTORY];

export function scanOf(entries: readonly ScannedEntry[]): Scan {
  return new Map(entries.map((entry) => [Buffer.from(entry.path).toString("latin1"), entry]));
}

/** In the order of their paths. Times do not count: a file that has its bytes, owner and mode is the same. */
export function changesBetween(before: Scan, after: Scan): readonly WorkspaceChange[] {
  const changes: WorkspaceChange[] = [];
  for (const [path, entry] of after) {
    const old = before.get(path);
    if (old === undefined) changes.push(change(path, "added", entry));
    else if (!same(old, entry)) changes.push(change(path, "changed", entry));
  }
  for (const [path, entry] of before) {
    // What went with its directory, or lies below what took the directory's place, is told by that.
    if (!after.has(path) && (parentOf(path) === "" || after.get(parentOf(path))?.type === "directory")) changes.push(change(path, "removed", entry));
  }
  return changes.sort((one, two) => Buffer.compare(one.path, two.path));
}

export function same(one: ScannedEntry, two: ScannedEntry): boolean {
  return sameBut(one, two) && one.digest === two.digest;
}

/** Whether nothing but content and attributes can differ. */
export function sameBut(one: ScannedEntry, two: ScannedEntry): boolean {
  return one.type === two.type && one.mode === two.mode && one.uid === two.uid && one.gid === two.gid && (one.type !== "file" || one.size === two.size) && Buffer.compare(one.target ?? EMPTY, two.target ?? EMPTY) === 0;
}

const EMPTY = Buffer.alloc(0);

/** Empty for what lies at the top. */
export function parentOf(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf("/")));
}

function change(path: string, kind: WorkspaceChange["kind"], { type, mode, size, target }: ScannedEntry): WorkspaceChange {
  return { path: Buffer.from(`/${path}`, "latin1"), kind, type, mode, size, target };
}

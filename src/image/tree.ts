/**
 * File trees as streams of events: what tar archives, directories and layers have in common here. Names, link targets and attribute values are bytes.
 */

/** `whiteout` hides what lower layers have at the path; `opaque` is the mark alone, of a directory whose own entry may come before or after it or not at all. */
export type EntryKind = "file" | "directory" | "symlink" | "hardlink" | "char" | "block" | "fifo" | "whiteout" | "socket" | "opaque";

export interface TreeEntry {
  /** Relative, without `.`, `..` and empty components; empty for the root directory itself. */
  readonly path: Buffer;
  readonly kind: EntryKind;
  /** Permission, set-id and sticky bits. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** Nanoseconds since the epoch. */
  readonly mtimeNs: bigint;
  /** Of a symlink as it is stored; of a hard link, the path of an earlier entry. */
  readonly target: Buffer | null;
  readonly device: { readonly major: number; readonly minor: number } | null;
  /** Bytes of a regular file. */
  readonly size: number;
  readonly xattrs: readonly { readonly name: string; readonly value: Buffer }[];
  /** A directory that hides what lower layers have at its path. */
  readonly opaque: boolean;
}

/** `data` belongs to the entry before it; bytes that no data event covers are zero. Offsets of one entry only grow. */
export type TreeEvent =
  | { readonly type: "entry"; readonly entry: TreeEntry }
  | { readonly type: "data"; readonly offset: number; readonly bytes: Uint8Array };

/** What could not be recreated as it was, and why. */
export interface Refusal {
  readonly path: string;
  /** An errno name, or `EINVAL` for an entry that no honest archive holds. */
  readonly code: string;
  readonly reason: string;
}

const NOTHING = { mtimeNs: 0n, target: null, device: null, size: 0, xattrs: [], opaque: false } as const;

export function directoryEntry(path: string, mode: number, more: Partial<TreeEntry> = {}): TreeEntry {
  return { ...NOTHING, path: Buffer.from(path), kind: "directory", mode, uid: 0, gid: 0, ...more };
}

export function fileEntry(path: string, mode: number, size: number, more: Partial<TreeEntry> = {}): TreeEntry {
  return { ...NOTHING, path: Buffer.from(path), kind: "file", mode, uid: 0, gid: 0, ...more, size };
}

export function symlinkEntry(path: string, target: string, more: Partial<TreeEntry> = {}): TreeEntry {
  return { ...NOTHING, path: Buffer.from(path), kind: "symlink", mode: 0o777, uid: 0, gid: 0, ...more, target: Buffer.from(target) };
}

export function whiteoutEntry(path: Buffer): TreeEntry {
  return { ...NOTHING, path, kind: "whiteout", mode: 0, uid: 0, gid: 0 };
}

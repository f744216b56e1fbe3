/** Numbers of the file protocol: the same as in native/files.h, explained in docs/internals/native.md. */
export const FILES = {
  read: 1,
  write: 2,
  list: 3,
  stat: 4,
  mkdir: 5,
  move: 6,
  remove: 7,
  upload: 8,
  download: 9,
  watch: 10,
  ids: 11,
  connect: 12,
  scan: 13,
  data: 20,
  end: 21,
  entry: 22,
  refused: 23,
  event: 24,
} as const;

export const FILE_TAG = {
  path: 1,
  max: 2,
  mode: 3,
  uid: 4,
  gid: 5,
  to: 6,
  exclude: 7,
  kind: 8,
  size: 9,
  mtime: 10,
  target: 11,
  data: 12,
  reason: 13,
  entries: 14,
  recursive: 15,
  bytes: 17,
  attribute: 18,
} as const;

/** By number in a frame. `directory-end` closes a directory of a tree. */
export const KINDS = ["file", "directory", "symlink", "hardlink", "directory-end", "fifo", "socket", "device"] as const;
export type Kind = (typeof KINDS)[number];

export const EVENTS = [{ kind: "created" }, { kind: "modified" }, { kind: "removed" }, { kind: "overflow" }, { kind: "modified", cause: "attributes" }, { kind: "removed", cause: "moved" }] as const;

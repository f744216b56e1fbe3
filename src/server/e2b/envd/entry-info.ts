/** Files as the protocol describes them. */
import { posix } from "node:path";
import type { FileStat, Sandbox } from "../../../sandbox/sandbox.ts";
import type { Accounts } from "./accounts.ts";

export interface EntryInfo {
  readonly name: string;
  readonly type: "FILE_TYPE_FILE" | "FILE_TYPE_DIRECTORY" | "FILE_TYPE_SYMLINK" | "FILE_TYPE_UNSPECIFIED";
  readonly path: string;
  /** 64-bit numbers are text in the protocol's JSON. */
  readonly size: string;
  readonly mode: number;
  readonly permissions: string;
  readonly owner: string;
  readonly group: string;
  readonly modifiedTime: string;
  readonly symlinkTarget?: string;
  /** What clients gave a file to carry. */
  readonly metadata?: Readonly<Record<string, string>>;
}

/** Of the attributes in which metadata are kept. */
const METADATA = "user.e2b.";

export function metadataAttributes(metadata: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(metadata).map(([name, value]) => [`${METADATA}${name}`, value]));
}

function metadataOf({ attributes = {} }: FileStat): { readonly metadata?: Readonly<Record<string, string>> } {
  const metadata = Object.entries(attributes).flatMap(([name, value]) => (name.startsWith(METADATA) ? [[name.slice(METADATA.length), value] as const] : []));
  return metadata.length === 0 ? {} : { metadata: Object.fromEntries(metadata) };
}

const TYPES = { file: "FILE_TYPE_FILE", directory: "FILE_TYPE_DIRECTORY", symlink: "FILE_TYPE_SYMLINK", fifo: "FILE_TYPE_UNSPECIFIED", socket: "FILE_TYPE_UNSPECIFIED", device: "FILE_TYPE_UNSPECIFIED" } as const;
const LETTERS = { file: "-", directory: "d", symlink: "L", fifo: "p", socket: "S", device: "D" } as const;
/** Links on the way that are followed. */
const LINKS_MOST = 40;

type Names = Awaited<ReturnType<Accounts["namesOf"]>>;

/** Of what is at the path itself; of a link, with what it leads to. */
export function entryInfo(stat: FileStat, path: string, names: Names, led: { readonly path: string; readonly stat: FileStat } | null): EntryInfo {
  const link = stat.type === "symlink";
  return {
    name: posix.basename(path),
    type: link ? (led === null ? "FILE_TYPE_UNSPECIFIED" : TYPES[led.stat.type]) : TYPES[stat.type],
    path,
    size: String(stat.size),
    mode: link ? (led?.stat.mode ?? 0) & 0o777 : stat.mode & 0o777,
    permissions: permissionsOf(stat),
    owner: names.user(stat.uid),
    group: names.group(stat.gid),
    modifiedTime: timestamp(stat.mtimeNs),
    ...(link ? { symlinkTarget: led?.path ?? path } : {}),
    ...metadataOf(link ? (led?.stat ?? stat) : stat),
  };
}

/** Follows a link inside the sandbox by its texts; null when it leads nowhere. */
export async function followLink(sandbox: Sandbox, path: string, stat: FileStat): Promise<{ readonly path: string; readonly stat: FileStat } | null> {
  let at = path;
  let found: FileStat | null = stat;
  for (let links = 0; found !== null && found.type === "symlink"; links++) {
    if (links === LINKS_MOST || found.target === null) return null;
    at = posix.resolve(posix.dirname(at), Buffer.from(found.target).toString("utf8"));
    found = await sandbox.files.stat(at);
  }
  return found === null ? null : { path: at, stat: found };
}

function permissionsOf({ type, mode }: FileStat): string {
  const special = `${(mode & 0o4000) === 0 ? "" : "u"}${(mode & 0o2000) === 0 ? "" : "g"}${(mode & 0o1000) === 0 ? "" : "t"}`;
  const bits = Array.from("rwxrwxrwx", (letter, index) => ((mode >> (8 - index)) & 1 ? letter : "-")).join("");
  const kind = `${type === "file" ? "" : LETTERS[type]}${special}`;
  return `${kind === "" ? "-" : kind}${bits}`;
}

function timestamp(ns: bigint): string {
  const ms = ns / 1_000_000n;
  const rest = (((ns % 1_000_000_000n) + 1_000_000_000n) % 1_000_000_000n).toString().padStart(9, "0");
  return new Date(Number(ms)).toISOString().replace(/\.\d+Z$/, `.${rest}Z`);
}

/** The host's side of tree transfers: reading a tree to send, and writing what a machine sends so that nothing outside the target is ever touched. */
import * as fs from "node:fs";
import { dirname } from "node:path";
import { setImmediate } from "node:timers/promises";
import { messageOf, MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { globMatcher } from "./glob.ts";
import { escapes, validComponents } from "./tree-paths.ts";
import { Refusals, type TreeEntry, type TreeItem } from "./tree-items.ts";

const CHUNK_BYTES = 64 * 1024;
const SLASH = Buffer.from("/");
/** Items between two turns of the event loop. */
const BREATH = 256;

const join = (base: Buffer, name: Buffer): Buffer => (base.length === 0 ? name : Buffer.concat([base, SLASH, name]));

/** Walks a host file or directory without following links below it. A root that is a file is one entry with an empty path. */
export async function* readHostTree(root: string, exclude: readonly string[] = []): AsyncGenerator<TreeItem, void, undefined> {
  const excluded = globMatcher(exclude);
  const seen = new Map<string, Buffer>();
  const at = fs.statSync(root, { bigint: true, throwIfNoEntry: false });
  if (at === undefined) throw new MwError("not_found", `Nothing to upload at ${root}`);
  if (!at.isDirectory()) {
    yield* readFile(Buffer.from(root), Buffer.alloc(0), seen);
    return;
  }
  const rootBytes = Buffer.from(root);
  const stack: { readonly path: Buffer; readonly mtimeNs: bigint; readonly names: Buffer[] }[] = [{ path: Buffer.alloc(0), mtimeNs: 0n, names: fs.readdirSync(rootBytes, "buffer").toReversed() }];
  for (let count = 1; ; count++) {
    const top = stack.at(-1);
    if (top === undefined) return;
    const name = top.names.pop();
    if (name === undefined) {
      stack.pop();
      if (stack.length > 0) yield { type: "entry", path: top.path, kind: "directory-end", mode: 0, mtimeNs: top.mtimeNs, target: null };
      continue;
    }
    if (count % BREATH === 0) await setImmediate();
    const path = join(top.path, name);
    if (excluded(path.toString("utf8"))) continue;
    const full = join(rootBytes, path);
    const stat = fs.lstatSync(full, { bigint: true, throwIfNoEntry: false });
    if (stat === undefined) continue;
    const base = { type: "entry", path, mode: Number(stat.mode & 0o7777n), mtimeNs: stat.mtimeNs } as const;
    if (path.length >= LIMITS.treePathBytes) yield { type: "refused", path, reason: "the path is too long" };
    else if (stat.isSymbolicLink()) yield { ...base, kind: "symlink", target: fs.readlinkSync(full, "buffer") };
    else if (stat.isFile()) yield* readFile(full, path, seen);
    else if (stat.isDirectory()) {
      yield { ...base, kind: "directory", target: null };
      stack.push({ path, mtimeNs: stat.mtimeNs, names: fs.readdirSync(full, "buffer").toReversed() });
    } else yield { type: "refused", path, reason: "not a file, directory or link" };
  }
}

function* readFile(full: Buffer, path: Buffer, seen: Map<string, Buffer>): Generator<TreeItem, void, undefined> {
  const follow = path.length === 0 ? 0 : fs.constants.O_NOFOLLOW;
  const fd = fs.openSync(full, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK | follow);
  try {
    const stat = fs.fstatSync(fd, { bigint: true });
    if (!stat.isFile()) throw new MwError("invalid_input", `${full.toString()} is not a regular file`);
    const base = { type: "entry", path, mode: Number(stat.mode & 0o7777n), mtimeNs: stat.mtimeNs } as const;
    const key = `${stat.dev}:${stat.ino}`;
    const before = stat.nlink > 1n ? seen.get(key) : undefined;
    if (before !== undefined) {
      yield { ...base, kind: "hardlink", target: before };
      return;
    }
    if (stat.nlink > 1n) seen.set(key, path);
    yield { ...base, kind: "file", target: null };
    for (;;) {
      const data = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, Math.max(1, Number(stat.size))));
      const read = fs.readSync(fd, data, 0, data.length, null);
      if (read === 0) return;
      yield { type: "data", data: data.subarray(0, read) };
    }
  } finally {
    fs.closeSync(fd);
  }
}

export interface HostTreeLimits {
  readonly maxBytes: number;
  readonly maxEntries: number;
}

/**
 * Writes a tree that a machine sends. The target must not exist. Links are made last, so that no path which is written can lead through one, and only where they
 * stay inside, other links taken into account. Set-id bits are dropped; owners are the caller's. Entries that cannot be taken are refused and named.
 */
export class HostTreeWriter {
  readonly refusals = new Refusals();
  readonly #root: Buffer;
  readonly #limits: HostTreeLimits;
  /** What this transfer has made, by path in latin1 (one character a byte). */
  readonly #made = new Map<string, "file" | "directory" | "symlink">();
  readonly #links: TreeEntry[] = [];
  readonly #directories: TreeEntry[] = [];
  #file: { readonly fd: number; readonly entry: TreeEntry } | null = null;
  readonly #linkBudget = { work: LIMITS.treeLinkWork };
  #entries = 0;
  #bytes = 0;
  #namesBytes = 0;
  #state: "new" | "directory" | "file" = "new";

  constructor(root: string, limits: HostTreeLimits = { maxBytes: LIMITS.treeBytes, maxEntries: LIMITS.treeEntries }) {
    this.#root = Buffer.from(root);
    this.#limits = limits;
    if (fs.lstatSync(root, { throwIfNoEntry: false }) !== undefined) {
      throw new MwError("conflict", `Cannot download to ${root}: it exists already`, { fix: "Name a path that does not exist yet." });
    }
    fs.mkdirSync(dirname(root), { recursive: true });
  }

  /** Throws when the transfer cannot go on: over a limit, a full disk, nonsense. */
  take(item: TreeItem): void {
    if (item.type === "refused") this.refusals.add(item.path, item.reason);
    else if (item.type === "data") this.#data(item.data);
    else this.#entry(item);
  }

  /** Completes the tree. Only now is it whole. */
  finish(): { readonly entries: number; readonly bytes: number } {
    this.#closeFile();
    if (this.#state === "new") this.#makeRoot();
    const links = new Map(this.#links.map(({ path, target }) => [path.toString("latin1"), target?.toString("latin1") ?? ""]));
    for (const link of this.#links) this.#link(link, links);
    // Deepest first: a directory's mode may forbid entering it, and its time changes with its content.
    for (const entry of this.#directories.toReversed()) this.#closeDirectory(entry);
    return { entries: this.#entries, bytes: this.#bytes };
  }

  /** Takes away what was written of a transfer that failed. */
  discard(): void {
    if (this.#file) fs.closeSync(this.#file.fd);
    this.#file = null;
    if (this.#state !== "new") fs.rmSync(this.#root.toString(), { recursive: true, force: true });
  }

  #entry(entry: TreeEntry): void {
    this.#closeFile();
    if (entry.kind === "directory-end") return;
    if (++this.#entries > this.#limits.maxEntries) throw new MwError("limit_exceeded", `The tree has more than ${this.#limits.maxEntries} entries`);
    this.#namesBytes += entry.path.length + (entry.target?.length ?? 0);
    if (this.#namesBytes > LIMITS.treeNamesBytes) throw new MwError("limit_exceeded", `The names in the tree take more than ${LIMITS.treeNamesBytes} bytes`);
    if (this.#state === "file") throw new MwError("sandbox_failed", "The machine sent more than the one file that was asked for");
    if (entry.path.length === 0 && entry.kind === "file" && this.#state === "new") {
      this.#state = "file";
      this.#open(entry, this.#root);
      return;
    }
    if (this.#state === "new") this.#makeRoot();
    const refused = this.#why(entry) ?? this.#make(entry);
    if (refused !== null) {
      this.refusals.add(entry.path, refused);
      this.#entries--;
    }
  }

  #makeRoot(): void {
    this.#state = "directory";
    fs.mkdirSync(this.#root, 0o755);
  }

  /** Why an entry cannot be taken at all. */
  #why(entry: TreeEntry): string | null {
    const components = validComponents(entry.path);
    if (components === null) return "not a path below the target";
    const parent = components.slice(0, -1).join("/");
    if (parent !== "" && this.#made.get(parent) !== "directory") return "its directory was not sent";
    if (this.#made.has(components.join("/"))) return "named twice";
    return null;
  }

  #make(entry: TreeEntry): string | null {
    const full = join(this.#root, entry.path);
    const key = entry.path.toString("latin1");
    try {
      switch (entry.kind) {
        case "directory":
          fs.mkdirSync(full, 0o700);
          this.#directories.push(entry);
          this.#made.set(key, "directory");
          return null;
        case "file":
          this.#open(entry, full);
          this.#made.set(key, "file");
          return null;
        case "hardlink": {
          const from = entry.target?.toString("latin1") ?? "";
          if (entry.target === null || this.#made.get(from) !== "file") return "a hard link to nothing that was sent";
          fs.linkSync(join(this.#root, entry.target), full);
          this.#made.set(key, "file");
          return null;
        }
        case "symlink":
          if (entry.target === null || entry.target.length === 0 || entry.target.includes(0)) return "a link to nowhere";
          this.#links.push(entry);
          this.#made.set(key, "symlink");
          return null;
        case "fifo":
        case "socket":
        case "device":
        case "directory-end":
          return `a ${entry.kind}`;
      }
    } catch (error) {
      return refusable(error, entry);
    }
  }

  #open(entry: TreeEntry, full: Buffer): void {
    const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW } = fs.constants;
    this.#file = { fd: fs.openSync(full, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600), entry };
  }

  #data(data: Buffer): void {
    this.#bytes += data.length;
    if (this.#bytes > this.#limits.maxBytes) throw new MwError("limit_exceeded", `The tree is larger than ${this.#limits.maxBytes} bytes`);
    // Content of an entry that was refused is counted and dropped.
    for (let at = 0; this.#file !== null && at < data.length; ) at += fs.writeSync(this.#file.fd, data, at);
  }

  #closeFile(): void {
    if (this.#file === null) return;
    const { fd, entry } = this.#file;
    this.#file = null;
    try {
      fs.fchmodSync(fd, entry.mode & 0o777);
      fs.futimesSync(fd, seconds(entry), seconds(entry));
    } finally {
      fs.closeSync(fd);
    }
  }

  #link(entry: TreeEntry, links: ReadonlyMap<string, string>): void {
    const target = entry.target ?? Buffer.alloc(0);
    if (escapes(entry.path.toString("latin1"), target.toString("latin1"), links, this.#linkBudget)) {
      this.refusals.add(entry.path, `a link that leads outside, or that nobody can follow: ${target.toString("utf8").slice(0, 200)}`);
      this.#entries--;
      return;
    }
    const full = join(this.#root, entry.path);
    try {
      fs.symlinkSync(target, full);
      fs.lutimesSync(full, seconds(entry), seconds(entry));
    } catch (error) {
      this.refusals.add(entry.path, refusable(error, entry));
    }
  }

  #closeDirectory(entry: TreeEntry): void {
    const full = join(this.#root, entry.path);
    fs.utimesSync(full, seconds(entry), seconds(entry));
    fs.chmodSync(full, entry.mode & 0o777);
  }
}

/** Node takes times in microseconds, cut off; half of one keeps the binary fraction from falling into the one before. */
function seconds(entry: TreeEntry): number {
  return (Number(entry.mtimeNs / 1000n) + 0.5) / 1e6;
}

/** What concerns one entry is refused with its reason; what concerns the whole transfer is thrown. */
function refusable(error: unknown, entry: TreeEntry): string {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  if (["ENAMETOOLONG", "EILSEQ", "EINVAL", "EMLINK", "EEXIST"].includes(code)) return messageOf(error).replace(/,.*$/s, "");
  if (code === "ENOSPC" || code === "EDQUOT") throw new MwError("host_exhausted", "No room left on the host for the downloaded tree", { cause: error });
  throw new MwError("internal", `Cannot write ${entry.path.toString("utf8")} of a downloaded tree: ${messageOf(error)}`, { cause: error });
}

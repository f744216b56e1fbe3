/**
 * Looks into an image from the host without mounting it and without ever following a link out of it: each path is walked component by component through the
 * layers. For deciding what of an agent's changes touches what the image had.
 *
 * A directory that an upper layer replaced as a whole still shows what lower layers had in it: more is then taken for the image's, which errs on the safe side.
 */
import { lstat, open, readdir, readlink } from "node:fs/promises";
import { constants } from "node:fs";
import { join } from "node:path";
import type { RootFilesystem } from "../../sandbox/sandbox.ts";

export interface ImageEntry {
  readonly type: "file" | "directory" | "symlink" | "other";
  readonly mode: number;
  readonly size: number;
  /** Of a link. */
  readonly target: string | null;
}

export interface ImageView {
  /** What the image has at an absolute path; links in the middle are followed inside the image, the last component is not. */
  entry(path: string): Promise<ImageEntry | null>;
  /** The path without links in it, or null when nothing is there. */
  real(path: string): Promise<string | null>;
  /** Names in a directory, empty when there is none. Links at the path are followed inside the image. */
  list(path: string): Promise<readonly string[]>;
  /** The start of a regular file, following links inside the image; null when there is none. */
  read(path: string, maxBytes: number): Promise<Uint8Array | null>;
}

const MAX_LINKS = 40;

export function imageView(root: RootFilesystem): ImageView {
  const seen = new Map<string, Promise<Found | null>>();
  /** The topmost layer's file of a path whose parents are known to be real directories, with all layers that a directory is merged from. */
  const at = (path: string): Promise<Found | null> => {
    let entry = seen.get(path);
    if (entry === undefined) {
      entry = look(path);
      // Lookups repeat within one verification and between those of one image; the bound keeps a hostile workspace from growing it.
      if (seen.size > 50_000) seen.clear();
      seen.set(path, entry);
    }
    return entry;
  };
  const look = async (path: string): Promise<Found | null> => {
    const slash = path.lastIndexOf("/");
    const part = root.parts.find(({ target }) => target === path);
    if (part !== undefined) return merged(part.layers);
    const parent = slash <= 0 ? root.layers : ((await at(path.slice(0, slash)))?.hosts ?? []);
    return merged(parent.map((layer) => join(layer, path.slice(slash + 1))));
  };

  const resolve = async (path: string, followLast: boolean): Promise<string | null> => {
    let pending = path.split("/").filter((part) => part !== "" && part !== ".");
    let done = "";
    for (let links = 0; pending.length > 0; ) {
      const [part = "", ...rest] = pending;
      pending = rest;
      if (part === "..") {
        done = done.slice(0, Math.max(0, done.lastIndexOf("/")));
        continue;
      }
      const next = `${done}/${part}`;
      const entry = await at(next);
      if (entry === null) return null;
      if (entry.type !== "symlink" || (rest.length === 0 && !followLast)) {
        if (rest.length > 0 && entry.type !== "directory") return null;
        done = next;
        continue;
      }
      if (++links > MAX_LINKS) return null;
      const target = entry.target ?? "";
      if (target.startsWith("/")) done = "";
      pending = [...target.split("/").filter((piece) => piece !== "" && piece !== "."), ...rest];
    }
    return done === "" ? "/" : done;
  };

  return {
    async entry(path) {
      const real = await resolve(path, false);
      return real === null ? null : real === "/" ? ROOT : at(real);
    },
    real: (path) => resolve(path, true),
    async list(path) {
      const real = await resolve(path, true);
      if (real === null) return [];
      const names = new Set<string>();
      const hidden = new Set<string>();
      for (const layer of real === "/" ? root.layers : ((await at(real))?.hosts ?? [])) {
        const entries = await readdir(layer, { withFileTypes: true }).catch(() => []);
        for (const entry of entries) {
          if (names.has(entry.name) || hidden.has(entry.name)) continue;
          if (entry.isCharacterDevice() && (await isWhiteout(join(layer, entry.name)))) hidden.add(entry.name);
          else names.add(entry.name);
        }
      }
      return [...names];
    },
    async read(path, maxBytes) {
      const real = await resolve(path, true);
      const entry = real === null || real === "/" ? null : await at(real);
      return entry?.type === "file" ? readStart(entry.hosts[0] ?? "", maxBytes) : null;
    },
  };
}

interface Found extends ImageEntry {
  /** Host paths: one, or for a directory all that are merged, topmost first. */
  readonly hosts: readonly string[];
}

const ROOT: ImageEntry = { type: "directory", mode: 0o755, size: 0, target: null };

/** As overlayfs merges: the topmost entry counts, and directories below it join until something else hides the rest. */
async function merged(hosts: readonly string[]): Promise<Found | null> {
  let top: Found | null = null;
  const directories: string[] = [];
  for (const host of hosts) {
    const info = await lstat(host).catch(() => null);
    if (info === null) continue;
    if (!info.isDirectory()) {
      if (top !== null || (info.isCharacterDevice() && info.rdev === 0)) break;
      const type = info.isFile() ? "file" : info.isSymbolicLink() ? "symlink" : "other";
      return { type, mode: info.mode & 0o7777, size: info.size, target: type === "symlink" ? await readlink(host) : null, hosts: [host] };
    }
    directories.push(host);
    top ??= { type: "directory", mode: info.mode & 0o7777, size: 0, target: null, hosts: directories };
  }
  return top;
}

async function isWhiteout(host: string): Promise<boolean> {
  const info = await lstat(host).catch(() => null);
  return info !== null && info.isCharacterDevice() && info.rdev === 0;
}

async function readStart(host: string, maxBytes: number): Promise<Uint8Array | null> {
  const file = await open(host, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(() => null);
  if (file === null) return null;
  try {
    const buffer = Buffer.alloc(maxBytes);
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, maxBytes - length, length);
      if (bytesRead === 0 || length + bytesRead === maxBytes) return buffer.subarray(0, length + bytesRead);
      length += bytesRead;
    }
  } finally {
    await file.close();
  }
}

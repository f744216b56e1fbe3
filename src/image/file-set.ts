/** Files of an image archive by name: a directory, or a tar archive whose files are laid out beside the store first. Names lead nowhere else. */
import { open, readFile, stat, type FileHandle } from "node:fs/promises";
import { createReadStream } from "node:fs";
import { join, posix } from "node:path";
import type { Readable } from "node:stream";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { decompressed } from "./decompress.ts";
import { readTar } from "./tar-read.ts";

export interface FileSet {
  /** Null when there is no such file. */
  read(name: string, maxBytes: number): Promise<Buffer | null>;
  stream(name: string): Promise<Readable>;
}

export function directoryFiles(directory: string): FileSet {
  return new Files((name) => {
    // Names come from the image's own documents.
    const clean = posix.normalize(`/${name}`);
    return join(directory, clean);
  }, directory);
}

/** Lays the files of the archive out in `temporary`, numbered; links of the archive are followed among its own names only. */
export async function archiveFiles(path: string, temporary: string): Promise<FileSet> {
  const names = new Map<string, string>();
  const links = new Map<string, string>();
  const source = createReadStream(path);
  let handle: FileHandle | null = null;
  try {
    for await (const event of readTar(await decompressed(source, path), { name: path, whiteouts: false, onRefused: () => undefined })) {
      if (event.type === "data") {
        await handle?.write(event.bytes, 0, event.bytes.length, event.offset);
        continue;
      }
      await handle?.close();
      handle = null;
      const { entry } = event;
      const name = entry.path.toString();
      if (entry.kind === "symlink") links.set(name, posix.join(posix.dirname(name), entry.target?.toString() ?? ""));
      else if (entry.kind === "hardlink") links.set(name, entry.target?.toString() ?? "");
      else if (entry.kind === "file") {
        const file = join(temporary, `file${names.size}`);
        names.set(name, file);
        handle = await open(file, "w", 0o600);
      }
      if (names.size + links.size > 100_000) throw new MwError("limit_exceeded", `${path} holds too many files for an image archive`);
    }
  } finally {
    await handle?.close();
    source.destroy();
  }
  return new Files((name) => {
    let at = posix.normalize(name);
    for (let hops = 0; hops < 8 && !names.has(at); hops++) at = links.get(at) ?? at;
    return names.get(at) ?? null;
  }, path);
}

class Files implements FileSet {
  readonly #find: (name: string) => string | null;
  readonly #label: string;

  constructor(find: (name: string) => string | null, label: string) {
    this.#find = find;
    this.#label = label;
  }

  async read(name: string, maxBytes: number): Promise<Buffer | null> {
    const path = this.#find(name);
    const stats = path === null ? null : await stat(path).catch(() => null);
    if (path === null || stats === null || !stats.isFile()) return null;
    if (stats.size > Math.min(maxBytes, LIMITS.imageManifestBytes)) throw new MwError("limit_exceeded", `${name} in ${this.#label} has ${stats.size} bytes, more than ${maxBytes}`);
    return readFile(path);
  }

  async stream(name: string): Promise<Readable> {
    const path = this.#find(name);
    const stats = path === null ? null : await stat(path).catch(() => null);
    if (path === null || stats === null || !stats.isFile()) {
      throw new MwError("invalid_image", `${this.#label} is not whole: it has no ${name}`, { fix: "make or fetch it again" });
    }
    return createReadStream(path);
  }
}

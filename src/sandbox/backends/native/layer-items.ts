/** A layer archive as items of a tree in transfer. It is read twice: what it removes goes first. */
import { createReadStream } from "node:fs";
import { readTar } from "../../../image/tar-read.ts";
import type { TreeEvent } from "../../../image/tree.ts";
import type { TreeItem } from "./tree-items.ts";

const ZEROS = Buffer.alloc(64 * 1024);

/** Absolute paths of what the image has and the archive hides: whole trees. */
export async function removedPaths(archive: string): Promise<readonly Buffer[]> {
  const paths: Buffer[] = [];
  for await (const event of events(archive, () => undefined)) {
    if (event.type === "entry" && (event.entry.kind === "whiteout" || event.entry.kind === "opaque" || event.entry.opaque)) paths.push(Buffer.concat([Buffer.from("/"), event.entry.path]));
  }
  return paths;
}

/** What the archive adds and changes, parents before what is in them. */
export async function* layerItems(archive: string): AsyncGenerator<TreeItem, void, undefined> {
  const refused: TreeItem[] = [];
  const directories: { readonly path: Buffer; readonly mtimeNs: bigint }[] = [];
  const content = new Content();
  for await (const event of events(archive, (path, reason) => refused.push({ type: "refused", path, reason }))) {
    yield* refused.splice(0);
    if (event.type === "data") {
      yield* content.at(event.offset, event.bytes);
      continue;
    }
    yield* content.end();
    const { path, kind, mode, uid, gid, mtimeNs, target, size, xattrs } = event.entry;
    // The root of the machine is not the archive's to change.
    if (path.length === 0 || kind === "whiteout" || kind === "opaque") continue;
    if (kind !== "file" && kind !== "directory" && kind !== "symlink" && kind !== "hardlink") {
      yield { type: "refused", path, reason: "not a file, directory or link" };
      continue;
    }
    for (const { name } of xattrs) yield { type: "refused", path, reason: `its attribute ${name} is not put back` };
    yield { type: "entry", path, kind, mode, mtimeNs, target, owner: { uid, gid } };
    if (kind === "file") content.begin(size);
    if (kind === "directory") directories.push({ path, mtimeNs });
  }
  yield* content.end();
  yield* refused;
  for (const { path, mtimeNs } of directories.toReversed()) yield { type: "entry", path, kind: "directory-end", mode: 0, mtimeNs, target: null };
}

/** Content of one file: holes of the archive are sent as zeros. */
class Content {
  #size = 0;
  #sent = 0;

  begin(size: number): void {
    this.#size = size;
    this.#sent = 0;
  }

  *at(offset: number, bytes: Uint8Array): Generator<TreeItem, void, undefined> {
    yield* this.#zerosTo(offset);
    for (let from = 0; from < bytes.length; from += ZEROS.length) yield { type: "data", data: Buffer.from(bytes.subarray(from, from + ZEROS.length)) };
    this.#sent += bytes.length;
  }

  *end(): Generator<TreeItem, void, undefined> {
    yield* this.#zerosTo(this.#size);
    this.begin(0);
  }

  *#zerosTo(offset: number): Generator<TreeItem, void, undefined> {
    while (this.#sent < offset) {
      const count = Math.min(ZEROS.length, offset - this.#sent);
      yield { type: "data", data: ZEROS.subarray(0, count) };
      this.#sent += count;
    }
  }
}

function events(archive: string, refuse: (path: Buffer, reason: string) => void): AsyncGenerator<TreeEvent> {
  return readTar(createReadStream(archive), { name: archive, whiteouts: true, onRefused: ({ path, reason }) => refuse(Buffer.from(path), reason) });
}

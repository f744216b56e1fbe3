/** A tar archive of the build context as a tree: whether a file is one, and unpacking it with its owners. */
import { createReadStream } from "node:fs";
import { decompressed } from "./decompress.ts";
import { readTar } from "./tar-read.ts";
import type { Refusal, TreeEvent } from "./tree.ts";
import { TreeWriter } from "./unpacker.ts";
import { MwError } from "../core/errors.ts";

/** By its content, compressed or not, as Docker decides it; whatever the name is. Rejects when it is compressed and cannot be read here. */
export async function isArchive(path: string): Promise<boolean> {
  try {
    for await (const event of events(path, path, [])) return event.type === "entry";
    return false;
  } catch (error) {
    if (error instanceof MwError && error.code === "environment") throw error;
    return false;
  }
}

/** Unpacks into an empty directory; owners are kept as those of layers are. Returns what could not be made. `name` is for messages. */
export async function unpackArchive(path: string, directory: string, name: string): Promise<readonly Refusal[]> {
  const refused: Refusal[] = [];
  const writer = new TreeWriter(directory);
  try {
    for await (const event of events(path, name, refused)) await writer.push(event);
    return [...refused, ...(await writer.finish()).refused];
  } catch (error) {
    await writer.abort();
    throw error;
  }
}

async function* events(path: string, name: string, refused: Refusal[]): AsyncGenerator<TreeEvent> {
  const source = createReadStream(path);
  try {
    yield* readTar(await decompressed(source, name), { name, whiteouts: false, onRefused: (refusal) => refused.push(refusal) });
  } finally {
    source.destroy();
  }
}

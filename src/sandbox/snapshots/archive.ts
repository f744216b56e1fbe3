/**
 * A snapshot as one file: gzip over a magic line, a JSON header with its length, and the trees one after the other as frames (image/frames.ts), each ended by a `finish`
 * frame. No tar: OCI layers cannot say a file named `.wh.x`, and sparse files would have to be read twice.
 */
import { createReadStream } from "node:fs";
import { mkdir, open, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createGunzip, createGzip } from "node:zlib";
import { MwError } from "../../core/errors.ts";
import type { SnapshotId } from "../../core/ids.ts";
import { dataHead, decodeEvent, decodeFrames, encodeEntry, encodeFrame, FRAME, type Frame } from "../../image/frames.ts";
import { ownName } from "../../image/holder.ts";
import { ownersMode } from "../../image/owners.ts";
import { readTree, TreeWriter } from "../../image/unpacker.ts";
import { SnapshotRecord } from "./record.ts";

const MAGIC = Buffer.from("MANYWORLDS-SNAPSHOT 1\n");
const HEADER_BYTES = 1 << 20;

/** `path` must not exist; it appears only when it is whole. */
export async function exportSnapshot(record: SnapshotRecord, paths: { readonly layer: (id: string) => string; readonly memory: (id: SnapshotId) => string }, path: string): Promise<void> {
  const trees = [...record.layers.map(({ id }) => paths.layer(id)), ...(record.memory === null ? [] : [paths.memory(record.id)])];
  if (await exists(path)) throw new MwError("conflict", `${path} exists already`, { fix: "remove it, or choose another name" });
  const temporary = `${path}.${ownName()}`;
  const file = await open(temporary, "wx", 0o600);
  try {
    await pipeline(Readable.from(parts(record, trees)), createGzip({ level: 1 }), file.createWriteStream());
    await rename(temporary, path);
  } catch (error) {
    await unlink(temporary).catch(() => undefined);
    throw error;
  } finally {
    await file.close().catch(() => undefined);
  }
}

/** Where only root exists inside, files are the user's here and root's there. */
async function* parts(record: SnapshotRecord, trees: readonly string[]): AsyncGenerator<Uint8Array> {
  const header = Buffer.from(JSON.stringify(record));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(header.length);
  yield Buffer.concat([MAGIC, length, header]);
  for (const tree of trees) {
    let ref = 0;
    for await (const event of readTree(tree)) {
      if (event.type === "entry") yield encodeEntry(++ref, ownersMode().kind === "flattened" ? { ...event.entry, uid: 0, gid: 0 } : event.entry);
      else yield Buffer.concat([dataHead(ref, event.offset, event.bytes.length), event.bytes]);
    }
    yield encodeFrame(FRAME.finish, 0, []);
  }
}

export interface ImportedSnapshot {
  readonly record: SnapshotRecord;
  /** Directories below `work`, in the record's order. */
  readonly layers: readonly string[];
  readonly memory: string | null;
}

/** Unpacks into `work`. Whatever the archive holds, nothing outside is touched. */
export async function importSnapshot(path: string, work: string): Promise<ImportedSnapshot> {
  const source = createReadStream(path);
  const unzipped = createGunzip();
  source.on("error", (error) => unzipped.destroy(error));
  source.pipe(unzipped);
  try {
    const bytes = unzipped[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    const { record, rest } = await readHeader(bytes, path);
    const trees = [...record.layers.map(({ id }) => join(work, id)), ...(record.memory === null ? [] : [join(work, "memory")])];
    const frames = decodeFrames(prepended(rest, bytes));
    for (const tree of trees) await readOneTree(frames, tree, path);
    if ((await frames.next()).done !== true) throw broken(path, "there is more behind its last layer");
    return { record, layers: trees.slice(0, record.layers.length), memory: record.memory === null ? null : join(work, "memory") };
  } catch (error) {
    throw readable(error, path);
  } finally {
    source.destroy();
    unzipped.destroy();
  }
}

async function readHeader(bytes: AsyncIterator<Buffer>, path: string): Promise<{ readonly record: SnapshotRecord; readonly rest: Buffer }> {
  let held: Buffer = Buffer.alloc(0);
  const need = async (count: number): Promise<void> => {
    while (held.length < count) {
      const next = await bytes.next();
      if (next.done === true) throw broken(path, "it ends inside its header");
      held = Buffer.concat([held, next.value]);
    }
  };
  await need(MAGIC.length + 4);
  if (!held.subarray(0, MAGIC.length).equals(MAGIC)) throw broken(path, "it is no snapshot archive");
  const length = held.readUInt32LE(MAGIC.length);
  if (length > HEADER_BYTES) throw broken(path, `a header of ${length} bytes`);
  const start = MAGIC.length + 4;
  await need(start + length);
  const record = SnapshotRecord.safeParse(parsed(held.toString("utf8", start, start + length)));
  if (!record.success) throw broken(path, record.error.message);
  return { record: record.data, rest: held.subarray(start + length) };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function readOneTree(frames: AsyncGenerator<Frame>, tree: string, path: string): Promise<void> {
  await mkdir(tree, { mode: 0o755 });
  const writer = new TreeWriter(tree);
  let others = false;
  try {
    for (;;) {
      // Not a `for await`, which would end the stream for the next tree.
      const next = await frames.next();
      if (next.done === true) throw broken(path, "it ends inside a layer");
      if (next.value.type === FRAME.finish) break;
      const event = decodeEvent(next.value);
      if (event?.type === "entry" && (event.entry.uid !== 0 || event.entry.gid !== 0)) others = true;
      if (event !== null) await writer.push(event);
    }
    const { refused, flattened, lostAttributes } = await writer.finish();
    const [first] = refused;
    if (first !== undefined) throw broken(path, `${JSON.stringify(first.path)}: ${first.reason}`);
    // Where only root exists everything is root's before and after.
    if ((flattened > 0 && others) || lostAttributes > 0) throw new MwError("unsupported", `${path} holds owners or attributes that this user cannot give to files`, { fix: "import it as root" });
  } catch (error) {
    await writer.abort();
    throw error;
  }
}

async function* prepended(first: Buffer, rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  yield first;
  for (let next = await rest.next(); next.done !== true; next = await rest.next()) yield next.value;
}

function readable(error: unknown, path: string): unknown {
  if (error instanceof MwError) return error.code === "internal" || error.code === "image_failed" ? broken(path, error.message) : error;
  const { code } = error as NodeJS.ErrnoException;
  if (code === "ENOENT") return new MwError("not_found", `There is no file ${path}`, { cause: error });
  return code?.startsWith("Z_") === true ? broken(path, "it is damaged or cut short") : error;
}

function broken(path: string, why: string): MwError {
  return new MwError("corrupt", `${path} cannot be taken in as a snapshot: ${why}`, { fix: "make it again with `mw sandbox snapshots export`" });
}

async function exists(path: string): Promise<boolean> {
  return open(path, "r").then((file) => file.close().then(() => true), () => false);
}

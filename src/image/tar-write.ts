/**
 * A tree as the one tar archive that it has here: PAX, fixed field order, no user names. Its digest is the digest of layers made here, and exporting such a layer
 * gives exactly these bytes. Whiteouts and opaque marks are written as OCI layers have them (https://github.com/opencontainers/image-spec, layer.md).
 */
import { MwError } from "../core/errors.ts";
import type { EntryKind, TreeEntry, TreeEvent } from "./tree.ts";

const BLOCK = 512;
const ZEROS = Buffer.alloc(64 * 1024);
const TYPES: Readonly<Record<Exclude<EntryKind, "whiteout" | "socket" | "opaque">, string>> = { file: "0", hardlink: "1", symlink: "2", char: "3", block: "4", directory: "5", fifo: "6" };

export class TarEncoder {
  /** Bytes of the current file that were not written yet, and its padding. */
  #left = 0;
  #padding = 0;
  #at = 0;

  /** The archive's next bytes. */
  *encode(event: TreeEvent): Generator<Uint8Array> {
    if (event.type === "data") {
      yield* zeros(event.offset - this.#at);
      yield event.bytes;
      this.#left -= event.offset - this.#at + event.bytes.length;
      this.#at = event.offset + event.bytes.length;
      if (this.#left < 0) throw new MwError("internal", "a file has more data than its size");
      return;
    }
    yield* this.#finishFile();
    yield* this.#header(event.entry);
  }

  *end(): Generator<Uint8Array> {
    yield* this.#finishFile();
    yield* zeros(2 * BLOCK);
  }

  *#finishFile(): Generator<Uint8Array> {
    yield* zeros(this.#left + this.#padding);
    this.#left = this.#padding = this.#at = 0;
  }

  *#header(entry: TreeEntry): Generator<Uint8Array> {
    // Sockets have no place in an archive and mean nothing without the process that made them.
    if (entry.kind === "socket") return;
    if (entry.kind === "opaque") throw new MwError("internal", "an opaque mark without its directory");
    if (entry.kind === "whiteout") {
      yield* header(whiteoutName(entry.path, ".wh."), "0", { ...entry, size: 0 }, []);
      return;
    }
    const size = entry.kind === "file" ? entry.size : 0;
    const records: [string, Buffer][] = entry.xattrs.map(({ name, value }): [string, Buffer] => [`SCHILY.xattr.${name}`, value]).sort(([a], [b]) => (a < b ? -1 : 1));
    // A real file that looks like a whiteout cannot be said in an OCI layer; the mark keeps its digest apart.
    if (isWhiteoutName(entry.path)) records.push(["MANYWORLDS.literal", Buffer.from("1")]);
    yield* header(entry.kind === "directory" ? Buffer.concat([entry.path.length === 0 ? Buffer.from(".") : entry.path, Buffer.from("/")]) : entry.path, TYPES[entry.kind], entry, records);
    if (entry.opaque) yield* header(Buffer.concat([entry.path, Buffer.from(entry.path.length === 0 ? ".wh..wh..opq" : "/.wh..wh..opq")]), "0", { ...entry, mode: 0, size: 0, target: null }, []);
    this.#left = size;
    this.#padding = (BLOCK - (size % BLOCK)) % BLOCK;
  }
}

/** Whether an OCI reader would take a file of this path for a whiteout. */
export function isWhiteoutName(path: Buffer): boolean {
  return path.subarray(path.lastIndexOf("/") + 1).toString("latin1").startsWith(".wh.");
}

function whiteoutName(path: Buffer, prefix: string): Buffer {
  const slash = path.lastIndexOf("/") + 1;
  return Buffer.concat([path.subarray(0, slash), Buffer.from(prefix), path.subarray(slash)]);
}

function* header(name: Buffer, type: string, entry: TreeEntry, records: [string, Buffer][]): Generator<Uint8Array> {
  const seconds = Number(entry.mtimeNs / 1_000_000_000n);
  const pax: [string, Buffer][] = [...records];
  if (name.length > 100 || !isAscii(name)) pax.push(["path", name]);
  if (entry.target !== null && (entry.target.length > 100 || !isAscii(entry.target))) pax.push(["linkpath", entry.target]);
  if (entry.mtimeNs % 1_000_000_000n !== 0n || entry.mtimeNs < 0n || seconds > 0o77777777777) pax.push(["mtime", Buffer.from(decimalSeconds(entry.mtimeNs))]);
  for (const key of ["uid", "gid"] as const) if (entry[key] > 0o7777777) pax.push([key, Buffer.from(String(entry[key]))]);
  const size = type === "0" ? entry.size : 0;
  if (size > 0o77777777777) pax.push(["size", Buffer.from(String(size))]);
  if (pax.length > 0) {
    const body = Buffer.concat(pax.map(([key, value]) => paxRecord(key, value)));
    yield ustar(Buffer.from("PaxHeaders/entry"), "x", { mode: 0o644, uid: 0, gid: 0, size: body.length, seconds: 0, target: null, device: null });
    yield body;
    yield* zeros((BLOCK - (body.length % BLOCK)) % BLOCK);
  }
  yield ustar(name, type, { ...entry, size, seconds: Math.min(Math.max(seconds, 0), 0o77777777777) });
}

function isAscii(bytes: Buffer): boolean {
  return bytes.every((byte) => byte < 0x80);
}

/** `-1.5` style, as PAX times are written. */
function decimalSeconds(ns: bigint): string {
  const sign = ns < 0n ? "-" : "";
  const digits = (ns < 0n ? -ns : ns).toString().padStart(10, "0");
  return `${sign}${digits.slice(0, -9)}.${digits.slice(-9)}`.replace(/\.?0+$/, (zero) => (zero.startsWith(".") ? "" : zero.replace(/0+$/, "")));
}

/** A record's length counts its own digits. */
function paxRecord(key: string, value: Buffer): Buffer {
  const rest = key.length + value.length + 3;
  let length = rest + String(rest).length;
  if (String(length).length > String(rest).length) length = rest + String(length).length;
  return Buffer.concat([Buffer.from(`${length} ${key}=`), value, Buffer.from("\n")]);
}

function ustar(
  name: Buffer,
  type: string,
  of: Pick<TreeEntry, "mode" | "uid" | "gid" | "size" | "target" | "device"> & { readonly seconds: number },
): Buffer {
  const block = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, width: number): void => void block.write(Math.min(value, 8 ** (width - 1) - 1).toString(8).padStart(width - 1, "0"), at, "latin1");
  block.set(name.subarray(0, 100), 0);
  octal(of.mode & 0o7777, 100, 8);
  octal(of.uid, 108, 8);
  octal(of.gid, 116, 8);
  octal(of.size, 124, 12);
  octal(of.seconds, 136, 12);
  block.write(type, 156, "latin1");
  if (of.target !== null) block.set(of.target.subarray(0, 100), 157);
  block.write("ustar\u000000", 257, "latin1");
  octal(of.device?.major ?? 0, 329, 8);
  octal(of.device?.minor ?? 0, 337, 8);
  block.fill(" ", 148, 156);
  let sum = 0;
  for (const byte of block) sum += byte;
  block.write(`${sum.toString(8).padStart(6, "0")}\u0000 `, 148, "latin1");
  return block;
}

function* zeros(count: number): Generator<Uint8Array> {
  for (let left = count; left > 0; left -= ZEROS.length) yield ZEROS.subarray(0, Math.min(left, ZEROS.length));
}

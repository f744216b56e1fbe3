/** The stream format of `native/unpack` (its header names every field), as tree events. */
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { EntryKind, TreeEntry, TreeEvent } from "./tree.ts";

export const FRAME = { entry: 1, data: 2, finish: 3, done: 4, error: 255 } as const;
export const REF_FATAL = 0xffff_ffff;
export const FIELD = {
  path: 1, kind: 2, mode: 3, uid: 4, gid: 5, seconds: 6, nanoseconds: 7, target: 8, major: 9, minor: 10, size: 11, xattr: 12, offset: 13, bytes: 14, opaque: 15,
  entries: 20, total: 21, flattened: 22, lost: 23,
} as const;

const KINDS: readonly (EntryKind | null)[] = [null, "file", "directory", "symlink", "hardlink", "char", "block", "fifo", "whiteout", "socket", "opaque"];
const BILLION = 1_000_000_000n;

/** Most bytes of file data in one frame. */
export const DATA_BYTES: number = LIMITS.frameBytes / 4;

export interface Frame {
  readonly type: number;
  readonly ref: number;
  readonly fields: readonly { readonly tag: number; readonly bytes: Buffer }[];
}

export function encodeFrame(type: number, ref: number, fields: readonly (readonly [tag: number, value: bigint | number | Uint8Array])[]): Buffer {
  let length = 5;
  for (const [, value] of fields) length += 6 + (typeof value === "object" ? value.length : 8);
  if (length > LIMITS.frameBytes) throw new MwError("limit_exceeded", `a file's name and attributes take ${length} bytes, more than ${LIMITS.frameBytes}`);
  const frame = Buffer.allocUnsafe(length + 4);
  frame.writeUInt32LE(length, 0);
  frame.writeUInt8(type, 4);
  frame.writeUInt32LE(ref, 5);
  let at = 9;
  for (const [tag, value] of fields) {
    frame.writeUInt16LE(tag, at);
    if (typeof value === "object") {
      frame.writeUInt32LE(value.length, at + 2);
      frame.set(value, at + 6);
      at += 6 + value.length;
    } else {
      frame.writeUInt32LE(8, at + 2);
      frame.writeBigInt64LE(BigInt.asIntN(64, BigInt(value)), at + 6);
      at += 14;
    }
  }
  return frame;
}

export function encodeEntry(ref: number, entry: TreeEntry): Buffer {
  const seconds = entry.mtimeNs >= 0n ? entry.mtimeNs / BILLION : (entry.mtimeNs - BILLION + 1n) / BILLION;
  const fields: [number, bigint | number | Uint8Array][] = [
    [FIELD.path, entry.path],
    [FIELD.kind, KINDS.indexOf(entry.kind)],
    [FIELD.mode, entry.mode],
    [FIELD.uid, entry.uid],
    [FIELD.gid, entry.gid],
    [FIELD.seconds, seconds],
    [FIELD.nanoseconds, entry.mtimeNs - seconds * BILLION],
  ];
  if (entry.target !== null) fields.push([FIELD.target, entry.target]);
  if (entry.device !== null) fields.push([FIELD.major, entry.device.major], [FIELD.minor, entry.device.minor]);
  if (entry.kind === "file") fields.push([FIELD.size, entry.size]);
  if (entry.opaque) fields.push([FIELD.opaque, 1]);
  for (const { name, value } of entry.xattrs) fields.push([FIELD.xattr, Buffer.concat([Buffer.from(`${name}\0`), value])]);
  return encodeFrame(FRAME.entry, ref, fields);
}

/** The head of a data frame; the bytes follow as they are. */
export function dataHead(ref: number, offset: number, length: number): Buffer {
  const head = Buffer.allocUnsafe(9 + 14 + 6);
  head.writeUInt32LE(head.length - 4 + length, 0);
  head.writeUInt8(FRAME.data, 4);
  head.writeUInt32LE(ref, 5);
  head.writeUInt16LE(FIELD.offset, 9);
  head.writeUInt32LE(8, 11);
  head.writeBigUInt64LE(BigInt(offset), 15);
  head.writeUInt16LE(FIELD.bytes, 23);
  head.writeUInt32LE(length, 25);
  return head;
}

/** Cuts a byte stream into frames. Bytes of a frame stay valid after the next one. */
export async function* decodeFrames(stream: AsyncIterable<Buffer>): AsyncGenerator<Frame> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of stream) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    let at = 0;
    while (rest.length - at >= 4) {
      const length = rest.readUInt32LE(at);
      if (length < 5 || length > LIMITS.frameBytes) throw new MwError("internal", `the unpacker sent a frame of ${length} bytes`);
      if (rest.length - at < length + 4) break;
      yield decodeFrame(rest.subarray(at + 4, at + 4 + length));
      at += length + 4;
    }
    rest = rest.subarray(at);
  }
  if (rest.length > 0) throw new MwError("internal", "the unpacker's stream ended inside a frame");
}

function decodeFrame(body: Buffer): Frame {
  const fields = [];
  for (let at = 5; at < body.length; ) {
    const tag = body.readUInt16LE(at);
    const length = body.readUInt32LE(at + 2);
    if (at + 6 + length > body.length) throw new MwError("internal", "the unpacker sent a broken frame");
    fields.push({ tag, bytes: body.subarray(at + 6, at + 6 + length) });
    at += 6 + length;
  }
  return { type: body.readUInt8(0), ref: body.readUInt32LE(1), fields };
}

export function bytesField(frame: Frame, tag: number): Buffer | null {
  return frame.fields.find((field) => field.tag === tag)?.bytes ?? null;
}

export function numberField(frame: Frame, tag: number): number {
  const bytes = bytesField(frame, tag);
  return bytes === null ? 0 : Number(bytes.readBigUInt64LE(0));
}

/** Null for frames that are neither entries nor data. */
export function decodeEvent(frame: Frame): TreeEvent | null {
  if (frame.type === FRAME.data) return { type: "data", offset: numberField(frame, FIELD.offset), bytes: bytesField(frame, FIELD.bytes) ?? Buffer.alloc(0) };
  if (frame.type !== FRAME.entry) return null;
  const kind = KINDS[numberField(frame, FIELD.kind)];
  if (kind === undefined || kind === null) throw new MwError("internal", "the unpacker sent an entry of an unknown kind");
  const seconds = bytesField(frame, FIELD.seconds)?.readBigInt64LE(0) ?? 0n;
  const entry: TreeEntry = {
    path: bytesField(frame, FIELD.path) ?? Buffer.alloc(0),
    kind,
    mode: numberField(frame, FIELD.mode),
    uid: numberField(frame, FIELD.uid),
    gid: numberField(frame, FIELD.gid),
    mtimeNs: seconds * BILLION + BigInt(numberField(frame, FIELD.nanoseconds)),
    target: bytesField(frame, FIELD.target),
    device: kind === "char" || kind === "block" ? { major: numberField(frame, FIELD.major), minor: numberField(frame, FIELD.minor) } : null,
    size: numberField(frame, FIELD.size),
    xattrs: frame.fields
      .filter((field) => field.tag === FIELD.xattr)
      .map(({ bytes }) => {
        const nul = bytes.indexOf(0);
        return { name: bytes.toString("latin1", 0, nul), value: bytes.subarray(nul + 1) };
      }),
    opaque: numberField(frame, FIELD.opaque) === 1,
  };
  return { type: "entry", entry };
}

/**
 * Frames of the spawner, init, files and tree protocols (docs/internals/native.md, native/wire.h): an encoder and an incremental decoder.
 *
 * The peer is hostile or broken as often as not: the decoder holds at most one frame, checks every length before it believes it, and reports a broken stream
 * once, after which it takes nothing more.
 */
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";

/** Type of an error answer in all protocols; its fields are `code` (tag 1) and `message` (tag 2). */
export const ERROR_TYPE = 255;
const ERROR_TAGS = { code: 1, message: 2 } as const;

/** Length word, type, ref. */
const HEAD_BYTES = 9;
const FIELD_BYTES = 6;

/** Numbers are sent as u64 (or i64 when negative), strings as UTF-8. An array repeats the tag. */
type FieldItem = number | bigint | string | Uint8Array;
type FieldValue = FieldItem | readonly (string | Uint8Array)[];

/** `[tag, value]` in the order in which they are to be sent; an undefined value is left out. */
export type FieldList = readonly (readonly [tag: number, value: FieldValue | undefined])[];

/** A decoded frame. Field data are views of the frame's own bytes. */
export class Frame {
  readonly type: number;
  readonly ref: number;
  readonly fields: readonly { readonly tag: number; readonly data: Buffer }[];

  constructor(type: number, ref: number, fields: readonly { readonly tag: number; readonly data: Buffer }[]) {
    this.type = type;
    this.ref = ref;
    this.fields = fields;
  }

  /** The first field with this tag. */
  bytes(tag: number): Buffer | null {
    return this.fields.find((field) => field.tag === tag)?.data ?? null;
  }

  all(tag: number): readonly Buffer[] {
    return this.fields.filter((field) => field.tag === tag).map((field) => field.data);
  }

  text(tag: number): string | null {
    return this.bytes(tag)?.toString("utf8") ?? null;
  }

  /** Null when the field is absent or not 8 bytes. */
  u64(tag: number): bigint | null {
    const data = this.bytes(tag);
    return data?.length === 8 ? data.readBigUInt64LE() : null;
  }

  i64(tag: number): bigint | null {
    const data = this.bytes(tag);
    return data?.length === 8 ? data.readBigInt64LE() : null;
  }

  /** A u64 that fits a safe integer, else null. */
  number(tag: number): number | null {
    const data = this.bytes(tag);
    if (data?.length !== 8) return null;
    const value = data.readUInt32LE(4) * 0x1_0000_0000 + data.readUInt32LE(0);
    return Number.isSafeInteger(value) ? value : null;
  }

  /** Code and message when this is an error answer. */
  error(): { readonly code: string; readonly message: string } | null {
    if (this.type !== ERROR_TYPE) return null;
    return { code: this.text(ERROR_TAGS.code) ?? "unknown", message: this.text(ERROR_TAGS.message) ?? "no message" };
  }
}

/** Encodes one frame. Throws `limit_exceeded` when it is larger than a frame may be: callers split bulk data before. */
export function encodeFrame(type: number, ref: number, fields: FieldList = []): Buffer {
  let total = HEAD_BYTES;
  for (const [, value] of fields) {
    if (Array.isArray(value)) for (const item of value) total += FIELD_BYTES + sizeOf(item);
    else if (value !== undefined) total += FIELD_BYTES + sizeOf(value as FieldItem);
  }
  if (total - 4 > LIMITS.frameBytes) {
    throw new MwError("limit_exceeded", `A request of ${total} bytes exceeds the ${LIMITS.frameBytes} bytes of one frame`, {
      fix: "Pass less in arguments and environment; large data goes through stdin or files.",
    });
  }
  const frame = Buffer.allocUnsafe(total);
  frame.writeUInt32LE(total - 4, 0);
  frame.writeUInt8(type, 4);
  frame.writeUInt32LE(ref, 5);
  let at = HEAD_BYTES;
  for (const [tag, value] of fields) {
    if (Array.isArray(value)) for (const item of value) at = writeField(frame, at, tag, item);
    else if (value !== undefined) at = writeField(frame, at, tag, value as FieldItem);
  }
  return frame;
}

function sizeOf(value: FieldItem): number {
  if (typeof value === "string") return Buffer.byteLength(value);
  return value instanceof Uint8Array ? value.length : 8;
}

/** Returns where the next field begins. */
function writeField(frame: Buffer, at: number, tag: number, value: FieldItem): number {
  const data = at + FIELD_BYTES;
  let length = 8;
  if (typeof value === "string") length = frame.write(value, data);
  else if (value instanceof Uint8Array) {
    length = value.length;
    frame.set(value, data);
  } else if (value < 0) frame.writeBigInt64LE(BigInt(value), data);
  else frame.writeBigUInt64LE(BigInt(value), data);
  frame.writeUInt16LE(tag, at);
  frame.writeUInt32LE(length, at + 2);
  return data + length;
}

/**
 * Cuts a byte stream into frames. `push` returns the frames that are now whole; a broken stream throws `sandbox_failed`, at that push and at every later one.
 *
 * Each byte is copied at most once: a frame that comes in pieces is put together in memory of its own size. `borrowed` chunks are the caller's again after
 * `push`, so that it can read into the same memory for ever; frames of other chunks are views of them.
 */
export class FrameDecoder {
  readonly #borrowed: boolean;
  readonly #length = Buffer.alloc(4);
  /** The frame that has begun, in memory of its own; of its length word only, until that is whole. */
  #frame: Buffer | null = null;
  #filled = 0;
  #broken = false;

  constructor(chunks: "borrowed" | "owned" = "owned") {
    this.#borrowed = chunks === "borrowed";
  }

  /** Bytes of an unfinished frame that are held. */
  get buffered(): number {
    return this.#filled;
  }

  push(chunk: Buffer): Frame[] {
    if (this.#broken) throw this.#fail("bytes after a broken frame");
    const frames: Frame[] = [];
    for (let at = 0; at < chunk.length; ) {
      if (this.#filled === 0 && chunk.length - at >= 4) {
        const total = this.#total(chunk, at);
        if (chunk.length - at >= total) {
          const bytes = chunk.subarray(at, at + total);
          frames.push(this.#parse(this.#borrowed ? copyOf(bytes) : bytes));
          at += total;
          continue;
        }
      }
      at += this.#fill(chunk, at);
      if (this.#frame === null || this.#filled < this.#frame.length) continue;
      const bytes = this.#frame;
      this.#frame = null;
      this.#filled = 0;
      frames.push(this.#parse(bytes));
    }
    return frames;
  }

  /** Takes what the begun frame lacks, its length word first; returns how many bytes that were. */
  #fill(chunk: Buffer, at: number): number {
    const into = this.#frame ?? this.#length;
    const taken = chunk.copy(into, this.#filled, at);
    this.#filled += taken;
    if (this.#frame === null && this.#filled === 4) {
      this.#frame = Buffer.allocUnsafe(this.#total(this.#length, 0));
      this.#length.copy(this.#frame);
    }
    return taken;
  }

  #total(bytes: Buffer, at: number): number {
    const length = bytes.readUInt32LE(at);
    if (length < HEAD_BYTES - 4 || length > LIMITS.frameBytes) throw this.#fail(`a frame of ${length} bytes`);
    return length + 4;
  }

  #parse(bytes: Buffer): Frame {
    const fields: { tag: number; data: Buffer }[] = [];
    for (let at = HEAD_BYTES; at < bytes.length; ) {
      if (bytes.length - at < FIELD_BYTES) throw this.#fail("a field without a length");
      const length = bytes.readUInt32LE(at + 2);
      if (length > bytes.length - at - FIELD_BYTES) throw this.#fail("a field that is longer than its frame");
      fields.push({ tag: bytes.readUInt16LE(at), data: bytes.subarray(at + FIELD_BYTES, at + FIELD_BYTES + length) });
      at += FIELD_BYTES + length;
    }
    return new Frame(bytes.readUInt8(4), bytes.readUInt32LE(5), fields);
  }

  #fail(what: string): MwError {
    this.#broken = true;
    this.#frame = null;
    this.#filled = 0;
    return new MwError("sandbox_failed", `The peer sent ${what}: the connection is not usable any more`);
  }
}

function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafe(bytes.length);
  copy.set(bytes);
  return copy;
}

/**
 * The little of an ELF file that moving a program takes: who loads it, and which libraries it names. 64-bit little-endian files, the only ones that this product's
 * hosts run; anything else is none. Layout: the System V ABI, chapter "Object Files".
 */
import { open, type FileHandle } from "node:fs/promises";

export interface ElfFile {
  /** e_machine: 62 is x86-64, 183 is AArch64. */
  readonly machine: number;
  /** The program interpreter and where its name lies in the file, terminating NUL included. Null for libraries and static programs. */
  readonly interpreter: { readonly path: string; readonly offset: number; readonly size: number } | null;
  /** DT_NEEDED names. */
  readonly needed: readonly string[];
}

const PT_LOAD = 1;
const PT_DYNAMIC = 2;
const PT_INTERP = 3;
const DT_NULL = 0n;
const DT_NEEDED = 1n;
const DT_STRTAB = 5n;
/** More than any linker writes; what exceeds them is no file of ours. */
const MAX_SEGMENTS = 4096;
const MAX_DYNAMIC_BYTES = 1 << 20;

interface Segment {
  readonly type: number;
  readonly offset: number;
  readonly address: bigint;
  readonly size: number;
}

/** Null when the file is no 64-bit little-endian ELF file, or a damaged one. */
export async function readElf(path: string): Promise<ElfFile | null> {
  const file = await open(path, "r");
  try {
    const header = await bytesAt(file, 0, 64);
    if (header === null || header.readUInt32BE(0) !== 0x7f454c46 || header[4] !== 2 || header[5] !== 1) return null;
    const segments = await readSegments(file, header);
    if (segments === null) return null;
    return { machine: header.readUInt16LE(18), interpreter: await readInterpreter(file, segments), needed: await readNeeded(file, segments) };
  } finally {
    await file.close();
  }
}

/** Writes another interpreter over the one that the file names. The new path must not be longer: nothing in the file moves. */
export async function setInterpreter(path: string, elf: ElfFile, interpreter: string): Promise<void> {
  const { interpreter: old } = elf;
  if (old === null || Buffer.byteLength(interpreter) + 1 > old.size) throw new Error(`${path} has no room for the interpreter ${interpreter}`);
  const file = await open(path, "r+");
  try {
    const name = Buffer.alloc(old.size);
    name.write(interpreter);
    await file.write(name, 0, name.length, old.offset);
  } finally {
    await file.close();
  }
}

async function readSegments(file: FileHandle, header: Buffer): Promise<readonly Segment[] | null> {
  const start = Number(header.readBigUInt64LE(32));
  const [size, count] = [header.readUInt16LE(54), header.readUInt16LE(56)];
  if (count === 0) return [];
  if (size < 56 || count > MAX_SEGMENTS) return null;
  const table = await bytesAt(file, start, size * count);
  if (table === null) return null;
  return Array.from({ length: count }, (_, index) => {
    const at = index * size;
    return { type: table.readUInt32LE(at), offset: Number(table.readBigUInt64LE(at + 8)), address: table.readBigUInt64LE(at + 16), size: Number(table.readBigUInt64LE(at + 32)) };
  });
}

async function readInterpreter(file: FileHandle, segments: readonly Segment[]): Promise<ElfFile["interpreter"]> {
  const segment = segments.find(({ type }) => type === PT_INTERP);
  if (segment === undefined || segment.size > 4096) return null;
  const name = await bytesAt(file, segment.offset, segment.size);
  return name === null ? null : { path: textAt(name, 0), offset: segment.offset, size: segment.size };
}

async function readNeeded(file: FileHandle, segments: readonly Segment[]): Promise<readonly string[]> {
  const dynamic = segments.find(({ type }) => type === PT_DYNAMIC);
  if (dynamic === undefined || dynamic.size > MAX_DYNAMIC_BYTES) return [];
  const table = await bytesAt(file, dynamic.offset, dynamic.size);
  if (table === null) return [];
  const names: number[] = [];
  let strings: bigint | null = null;
  for (let at = 0; at + 16 <= table.length && table.readBigUInt64LE(at) !== DT_NULL; at += 16) {
    const [tag, value] = [table.readBigUInt64LE(at), table.readBigUInt64LE(at + 8)];
    if (tag === DT_NEEDED) names.push(Number(value));
    if (tag === DT_STRTAB) strings = value;
  }
  const place = segments.find(({ type, address, size }) => type === PT_LOAD && strings !== null && strings >= address && strings < address + BigInt(size));
  if (place === undefined || strings === null) return [];
  const base = place.offset + Number(strings - place.address);
  const found = await Promise.all(names.map((name) => bytesAt(file, base + name, 256, true)));
  return found.flatMap((bytes) => (bytes === null ? [] : [textAt(bytes, 0)]));
}

function textAt(bytes: Buffer, at: number): string {
  const end = bytes.indexOf(0, at);
  return bytes.toString("latin1", at, end < 0 ? bytes.length : end);
}

/** Null where the file ends before; `partial` takes what is there. */
async function bytesAt(file: FileHandle, offset: number, size: number, partial = false): Promise<Buffer | null> {
  if (!Number.isSafeInteger(offset) || size > 64 << 20) return null;
  const buffer = Buffer.alloc(size);
  const { bytesRead } = await file.read(buffer, 0, size, offset);
  if (bytesRead === size) return buffer;
  return partial && bytesRead > 0 ? buffer.subarray(0, bytesRead) : null;
}

/**
 * A tar archive as tree events: ustar, GNU (long names, base-256 numbers, sparse) and PAX (attributes with any bytes, nanosecond times, sparse 0.0, 0.1 and 1.0). Names
 * and values stay bytes. What an archive may not do (leave its root, name a device as something else) is refused here by name; links are the unpacker's business.
 */
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { EntryKind, Refusal, TreeEntry, TreeEvent } from "./tree.ts";

const BLOCK = 512;
/** Most bytes of one long name, one PAX header or one sparse map. */
const HEADER_BYTES = 4 * 1024 * 1024;

const KINDS: Readonly<Record<string, EntryKind>> = { "0": "file", "\0": "file", "7": "file", S: "file", "1": "hardlink", "2": "symlink", "3": "char", "4": "block", "5": "directory", "6": "fifo" };

export interface TarOptions {
  /** What the archive is, for messages. */
  readonly name: string;
  /** Reads `.wh.` names as whiteouts, as layers have them; else they are names like any other. */
  readonly whiteouts: boolean;
  readonly onRefused: (refusal: Refusal) => void;
}

interface Segment {
  readonly offset: number;
  readonly length: number;
}

type Pax = ReadonlyMap<string, Buffer>;

export async function* readTar(stream: AsyncIterable<Uint8Array>, options: TarOptions): AsyncGenerator<TreeEvent> {
  const input = new ByteReader(stream, options.name);
  let global: Pax = new Map();
  let local: Pax = new Map();
  let longName: Buffer | null = null;
  let longTarget: Buffer | null = null;
  for (let entries = 0; ; ) {
    const block = await input.take(BLOCK, true);
    // The end is two empty blocks; some writers stop short. What follows is drained so that the whole stream is digested.
    if (block === null || block.every((byte) => byte === 0)) break;
    const header = parseHeader(block, options.name);
    if ("LKxg".includes(header.type)) {
      if (header.size > HEADER_BYTES) throw broken(options.name, `a header of ${header.size} bytes`);
      const body = await input.takePadded(header.size);
      if (header.type === "L") longName = cString(body);
      else if (header.type === "K") longTarget = cString(body);
      else if (header.type === "x") local = new Map([...local, ...parsePax(body, options.name)]);
      else global = new Map([...global, ...parsePax(body, options.name)]);
      continue;
    }
    if (++entries > LIMITS.treeEntries) throw new MwError("limit_exceeded", `${options.name} holds more than ${LIMITS.treeEntries} files`);
    const pax = new Map([...global, ...local]);
    yield* readEntry(input, header, pax, longName, longTarget, options);
    local = new Map();
    longName = longTarget = null;
  }
  await input.drain();
}

async function* readEntry(input: ByteReader, header: Header, pax: Pax, longName: Buffer | null, longTarget: Buffer | null, options: TarOptions): AsyncGenerator<TreeEvent> {
  let stored = paxNumber(pax, "size") ?? header.size;
  const rawName = pax.get("GNU.sparse.name") ?? pax.get("path") ?? longName ?? header.name;
  // Only plain files have content in the archive; some writers give others a size all the same.
  const kind = header.type === "0" && rawName.at(-1) === 0x2f ? "directory" : KINDS[header.type];
  if (kind !== "file" && kind !== undefined) stored = 0;
  if (stored > LIMITS.imageLayerBytes) throw new MwError("limit_exceeded", `${options.name}: one file of ${stored} bytes`);
  const padding = (BLOCK - (stored % BLOCK)) % BLOCK;

  let segments: readonly Segment[] | null = null;
  let size = stored;
  if (header.type === "S") {
    segments = await oldGnuSparse(input, header.block, options.name);
    size = header.realSize;
  } else if (pax.has("GNU.sparse.major")) {
    const map = await sparseMap(input, options.name);
    segments = map.segments;
    stored -= map.bytes;
    size = paxNumber(pax, "GNU.sparse.realsize") ?? 0;
  } else if (pax.has("GNU.sparse.size")) {
    segments = paxSparse(pax, options.name);
    size = paxNumber(pax, "GNU.sparse.size") ?? 0;
  }
  segments ??= [{ offset: 0, length: stored }];
  checkSegments(segments, stored, size, options.name);

  const skip = async (): Promise<void> => {
    await input.skip(stored + padding);
  };
  if (kind === undefined) {
    options.onRefused({ path: rawName.toString(), code: "EINVAL", reason: `entries of type ${JSON.stringify(header.type)} are not supported` });
    return skip();
  }
  const problem = pathProblem(rawName);
  if (problem !== null) {
    options.onRefused({ path: rawName.subarray(0, 200).toString(), code: "EINVAL", reason: problem });
    return skip();
  }
  const path = cleanPath(rawName);
  const rawTarget = pax.get("linkpath") ?? longTarget ?? header.target;
  let target: Buffer | null = null;
  if (kind === "symlink") target = rawTarget;
  if (kind === "hardlink") {
    const targetProblem = pathProblem(rawTarget);
    if (targetProblem !== null) {
      options.onRefused({ path: path.toString(), code: "EINVAL", reason: `hard link to ${rawTarget.toString()}: ${targetProblem}` });
      return skip();
    }
    target = cleanPath(rawTarget);
  }
  const entry: TreeEntry = {
    path,
    kind,
    mode: header.mode & 0o7777,
    uid: paxNumber(pax, "uid") ?? header.uid,
    gid: paxNumber(pax, "gid") ?? header.gid,
    mtimeNs: paxTime(pax.get("mtime")) ?? BigInt(header.seconds) * 1_000_000_000n,
    target,
    device: kind === "char" || kind === "block" ? { major: header.major, minor: header.minor } : null,
    size: kind === "file" ? size : 0,
    xattrs: paxXattrs(pax),
    opaque: false,
  };
  const literal = pax.has("MANYWORLDS.literal");
  if (options.whiteouts && !literal) {
    const hidden = whiteoutOf(path);
    if (hidden !== null) {
      yield { type: "entry", entry: { ...entry, ...hidden, mode: 0, uid: 0, gid: 0, target: null, device: null, size: 0, xattrs: [] } };
      return skip();
    }
  }
  yield { type: "entry", entry };
  for (const segment of segments) {
    for (let at = 0; at < segment.length; ) {
      const bytes = await input.some(segment.length - at);
      yield { type: "data", offset: segment.offset + at, bytes };
      at += bytes.length;
    }
  }
  await input.skip(padding);
}

/** The OCI layer rules: `.wh.NAME` hides NAME, `.wh..wh..opq` hides everything that lower layers have in its directory; other `.wh..wh.` names are AUFS leftovers. */
function whiteoutOf(path: Buffer): { readonly path: Buffer; readonly kind: EntryKind } | null {
  const slash = path.lastIndexOf("/") + 1;
  const name = path.subarray(slash);
  if (!name.toString("latin1").startsWith(".wh.")) return null;
  if (name.equals(Buffer.from(".wh..wh..opq"))) return { path: path.subarray(0, Math.max(0, slash - 1)), kind: "opaque" };
  // What is hidden must be a name; `.wh...` would be the parent.
  return { path: Buffer.concat([path.subarray(0, slash), name.subarray(4)]), kind: "whiteout" };
}

function pathProblem(raw: Buffer): string | null {
  if (raw.length === 0) return "an empty name";
  if (raw.includes(0)) return "a name with a NUL byte";
  if (raw.length >= LIMITS.treePathBytes) return `a path of ${raw.length} bytes, more than ${LIMITS.treePathBytes - 1}`;
  const parts = raw.toString("latin1").split("/");
  if (parts.includes("..")) return "the path leaves the archive's root";
  if (parts.some((part) => part.length > 255)) return "a name of more than 255 bytes";
  return null;
}

/** Without leading slashes, `.` and empty components: the archive's root is the only root that its names have. */
function cleanPath(raw: Buffer): Buffer {
  return Buffer.from(raw.toString("latin1").split("/").filter((part) => part !== "" && part !== ".").join("/"), "latin1");
}

interface Header {
  readonly block: Buffer;
  readonly type: string;
  readonly name: Buffer;
  readonly target: Buffer;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  readonly realSize: number;
  readonly seconds: number;
  readonly major: number;
  readonly minor: number;
}

function parseHeader(block: Buffer, archive: string): Header {
  let sum = 0;
  for (let i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? 32 : (block[i] ?? 0);
  if (sum !== number(block, 148, 8, archive)) throw broken(archive, "a header's checksum is wrong: not a tar archive, or damaged");
  const magic = block.toString("latin1", 257, 265);
  const posix = magic.startsWith("ustar\0");
  const prefix = posix ? cString(block.subarray(345, 500)) : Buffer.alloc(0);
  const name = cString(block.subarray(0, 100));
  const type = block.toString("latin1", 156, 157);
  return {
    block,
    type,
    name: prefix.length > 0 ? Buffer.concat([prefix, Buffer.from("/"), name]) : name,
    target: cString(block.subarray(157, 257)),
    mode: number(block, 100, 8, archive),
    uid: number(block, 108, 8, archive),
    gid: number(block, 116, 8, archive),
    size: number(block, 124, 12, archive),
    realSize: type === "S" ? number(block, 483, 12, archive) : 0,
    seconds: signedNumber(block, 136, 12, archive),
    major: number(block, 329, 8, archive),
    minor: number(block, 337, 8, archive),
  };
}

function number(block: Buffer, at: number, width: number, archive: string): number {
  const value = signedNumber(block, at, width, archive);
  if (value < 0) throw broken(archive, "a negative number in a header");
  return value;
}

/** Octal digits, or base 256 when the first bit is set. */
function signedNumber(block: Buffer, at: number, width: number, archive: string): number {
  const first = block[at] ?? 0;
  if ((first & 0x80) !== 0) {
    let value = BigInt.asIntN(7, BigInt(first & 0x7f));
    for (let i = 1; i < width; i++) value = (value << 8n) | BigInt(block[at + i] ?? 0);
    if (value > BigInt(Number.MAX_SAFE_INTEGER) || value < BigInt(Number.MIN_SAFE_INTEGER)) throw broken(archive, "a number out of range in a header");
    return Number(value);
  }
  const text = cString(block.subarray(at, at + width)).toString("latin1").trim();
  if (text === "") return 0;
  if (!/^[0-7]+$/.test(text)) throw broken(archive, `not an octal number in a header: ${JSON.stringify(text)}`);
  return Number.parseInt(text, 8);
}

function cString(bytes: Buffer): Buffer {
  const nul = bytes.indexOf(0);
  return Buffer.from(nul < 0 ? bytes : bytes.subarray(0, nul));
}

function parsePax(body: Buffer, archive: string): Map<string, Buffer> {
  const records = new Map<string, Buffer>();
  const map: string[] = [];
  for (let at = 0; at < body.length && body[at] !== 0; ) {
    const space = body.indexOf(0x20, at);
    const digits = space < 0 ? "" : body.toString("latin1", at, space);
    const length = /^[1-9]\d{0,8}$/.test(digits) ? Number(digits) : 0;
    const equals = body.indexOf(0x3d, space);
    if (length === 0 || at + length > body.length || body[at + length - 1] !== 0x0a || equals < 0 || equals >= at + length) throw broken(archive, "a malformed PAX record");
    const key = body.toString("utf8", space + 1, equals);
    const value = Buffer.from(body.subarray(equals + 1, at + length - 1));
    // Sparse format 0.0 repeats these two keys, in pairs.
    if (key === "GNU.sparse.offset" || key === "GNU.sparse.numbytes") map.push(value.toString("latin1"));
    records.set(key, value);
    at += length;
  }
  if (map.length > 0) records.set("GNU.sparse.map", Buffer.from(map.join(",")));
  return records;
}

function paxNumber(pax: Pax, key: string): number | null {
  const text = pax.get(key)?.toString("latin1");
  if (text === undefined || !/^\d{1,16}$/.test(text)) return null;
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : null;
}

function paxTime(value: Buffer | undefined): bigint | null {
  const match = /^(-?)(\d{1,12})(?:\.(\d*))?$/.exec(value?.toString("latin1") ?? "");
  if (match === null) return null;
  const ns = BigInt(match[2] ?? "0") * 1_000_000_000n + BigInt((match[3] ?? "").slice(0, 9).padEnd(9, "0"));
  return match[1] === "-" ? -ns : ns;
}

/** Attributes as star and Go write them, and as libarchive does (base 64, names percent-encoded). */
function paxXattrs(pax: Pax): TreeEntry["xattrs"] {
  const found = new Map<string, Buffer>();
  for (const [key, value] of pax) {
    if (key.startsWith("SCHILY.xattr.")) found.set(key.slice(13), value);
    else if (key.startsWith("LIBARCHIVE.xattr.") && !found.has(key.slice(17))) found.set(key.slice(17), Buffer.from(value.toString("latin1"), "base64"));
  }
  return [...found].filter(([name]) => name !== "" && name.length <= 255 && !name.includes("\0")).map(([name, value]) => ({ name, value }));
}

/** The old GNU format: up to four segments in the header, then blocks of 21 while they say that more follow. */
async function oldGnuSparse(input: ByteReader, header: Buffer, archive: string): Promise<readonly Segment[]> {
  const segments: Segment[] = [];
  const read = (block: Buffer, start: number, count: number): void => {
    for (let i = 0; i < count; i++) {
      const at = start + i * 24;
      if (block[at] === 0) return;
      segments.push({ offset: number(block, at, 12, archive), length: number(block, at + 12, 12, archive) });
    }
  };
  read(header, 386, 4);
  for (let more = header[482] !== 0; more; ) {
    if (segments.length > 1_000_000) throw broken(archive, "an endless sparse map");
    const block = await input.take(BLOCK);
    read(block, 0, 21);
    more = block[504] !== 0;
  }
  return segments;
}

/** Sparse format 1.0: the map stands before the data as decimal lines, padded to a block. */
async function sparseMap(input: ByteReader, archive: string): Promise<{ readonly segments: readonly Segment[]; readonly bytes: number }> {
  let text = "";
  let bytes = 0;
  const numbers: number[] = [];
  let wanted = 1;
  while (numbers.length < wanted) {
    text += (await input.take(BLOCK)).toString("latin1");
    bytes += BLOCK;
    if (bytes > HEADER_BYTES) throw broken(archive, "an endless sparse map");
    for (let line = text.indexOf("\n"); line >= 0 && numbers.length < wanted; line = text.indexOf("\n")) {
      const digits = text.slice(0, line);
      if (!/^\d{1,16}$/.test(digits)) throw broken(archive, "a malformed sparse map");
      numbers.push(Number(digits));
      text = text.slice(line + 1);
      if (numbers.length === 1) wanted = 1 + 2 * (numbers[0] ?? 0);
    }
  }
  return { segments: pairs(numbers.slice(1)), bytes };
}

function paxSparse(pax: Pax, archive: string): readonly Segment[] {
  const text = pax.get("GNU.sparse.map")?.toString("latin1") ?? "";
  const numbers = text === "" ? [] : text.split(",").map(Number);
  if (numbers.length % 2 !== 0 || numbers.some((value) => !Number.isSafeInteger(value) || value < 0)) throw broken(archive, "a malformed sparse map");
  return pairs(numbers);
}

function pairs(numbers: readonly number[]): readonly Segment[] {
  const segments = [];
  for (let i = 0; i + 1 < numbers.length; i += 2) segments.push({ offset: numbers[i] ?? 0, length: numbers[i + 1] ?? 0 });
  return segments;
}

function checkSegments(segments: readonly Segment[], stored: number, size: number, archive: string): void {
  let end = 0;
  let total = 0;
  for (const { offset, length } of segments) {
    if (length > 0 && offset < end) throw broken(archive, "a sparse map whose parts overlap");
    end = Math.max(end, offset + length);
    total += length;
  }
  if (end > size || total !== stored || size > LIMITS.imageLayerBytes) throw broken(archive, "a sparse map that does not fit its file");
}

function broken(archive: string, what: string): MwError {
  return new MwError("invalid_image", `${archive} cannot be unpacked: ${what}`, { fix: "check that it is an archive of a root file system (tar, OCI layout or docker save), and whole" });
}

/** Pulls exact numbers of bytes from a stream of chunks. */
class ByteReader {
  readonly #source: AsyncIterator<Uint8Array>;
  readonly #archive: string;
  #chunk: Buffer = Buffer.alloc(0);

  constructor(stream: AsyncIterable<Uint8Array>, archive: string) {
    this.#source = stream[Symbol.asyncIterator]();
    this.#archive = archive;
  }

  /** Between 1 and `most` bytes. */
  async some(most: number): Promise<Buffer> {
    if (!(await this.#fill())) throw broken(this.#archive, "it ends in the middle of a file");
    const part = this.#chunk.subarray(0, most);
    this.#chunk = this.#chunk.subarray(part.length);
    return part;
  }

  async take(count: number): Promise<Buffer>;
  async take(count: number, orEnd: boolean): Promise<Buffer | null>;
  async take(count: number, orEnd = false): Promise<Buffer | null> {
    if (orEnd && !(await this.#fill())) return null;
    const parts: Buffer[] = [];
    for (let left = count; left > 0; ) {
      const part = await this.some(left);
      parts.push(part);
      left -= part.length;
    }
    return parts.length === 1 ? (parts[0] ?? null) : Buffer.concat(parts);
  }

  async takePadded(count: number): Promise<Buffer> {
    const body = await this.take(count);
    await this.skip((BLOCK - (count % BLOCK)) % BLOCK);
    return body;
  }

  async skip(count: number): Promise<void> {
    for (let left = count; left > 0; ) left -= (await this.some(left)).length;
  }

  async drain(): Promise<void> {
    while (await this.#fill()) this.#chunk = Buffer.alloc(0);
  }

  async #fill(): Promise<boolean> {
    while (this.#chunk.length === 0) {
      const next = await this.#source.next();
      if (next.done === true) return false;
      this.#chunk = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    }
    return true;
  }
}

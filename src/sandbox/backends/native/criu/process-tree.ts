/**
 * The tree of kept processes (`pstree.img`), made such that CRIU can make it again.
 *
 * CRIU finds a process's session among those above it, or hangs the process below init. But an orphan of a machine hangs below the supervisor of its command, the subreaper, whose
 * session it is not in. Where the leader of the session is not above it, it becomes a child of init: in the restored machine, not in the one that goes on.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../../../core/errors.ts";

/** Of `criu/include/magic.h`: images of a common kind, and this one. */
const MAGIC = [0x54_56_43_19, 0x50_27_30_30] as const;
const INIT = 1;
/** Fields of `pstree_entry`, all of them varints. */
const FIELD = { pid: 1, parent: 2, session: 4 } as const;

interface Entry {
  pid: number;
  parent: number;
  session: number;
  /** Number and value of each field, in their order. */
  readonly fields: readonly (readonly [number, number])[];
}

export async function mendProcessTree(images: string): Promise<void> {
  const path = join(images, "pstree.img");
  const { head, entries } = read(await readFile(path));
  const byPid = new Map(entries.map((entry) => [entry.pid, entry]));
  let changed = false;
  for (const entry of entries) {
    if (entry.parent <= INIT || entry.session === entry.pid || leads(entry, byPid)) continue;
    entry.parent = INIT;
    changed = true;
  }
  if (changed) await writeFile(path, Buffer.concat([head, ...entries.map(write)]));
}

/** Whether the leader of its session is above it, or its parent is in the same. */
function leads(entry: Entry, byPid: ReadonlyMap<number, Entry>): boolean {
  let above = byPid.get(entry.parent);
  if (above?.session === entry.session) return true;
  while (above !== undefined && above.pid !== entry.session) above = byPid.get(above.parent);
  return above !== undefined;
}

function read(image: Buffer): { readonly head: Buffer; readonly entries: readonly Entry[] } {
  if (image.length < 8 || image.readUInt32LE(0) !== MAGIC[0] || image.readUInt32LE(4) !== MAGIC[1]) throw broken("it begins as no list of processes");
  const entries: Entry[] = [];
  for (let at = 8; at < image.length; ) {
    const size = image.readUInt32LE(at);
    const body = image.subarray(at + 4, at + 4 + size);
    if (body.length !== size) throw broken("it is cut short");
    entries.push(entryOf(body));
    at += 4 + size;
  }
  return { head: image.subarray(0, 8), entries };
}

function entryOf(body: Buffer): Entry {
  const fields: (readonly [number, number])[] = [];
  for (let at = 0; at < body.length; ) {
    const key = varint(body, at);
    if ((key.value & 7) !== 0) throw broken("it has fields of an unknown kind");
    const value = varint(body, key.end);
    fields.push([key.value >>> 3, value.value]);
    at = value.end;
  }
  const one = (field: number): number => fields.find(([number]) => number === field)?.[1] ?? 0;
  return { pid: one(FIELD.pid), parent: one(FIELD.parent), session: one(FIELD.session), fields };
}

function write(entry: Entry): Buffer {
  const bytes: number[] = [];
  for (const [field, value] of entry.fields) {
    put(bytes, field << 3);
    put(bytes, field === FIELD.parent ? entry.parent : value);
  }
  const size = Buffer.alloc(4);
  size.writeUInt32LE(bytes.length);
  return Buffer.concat([size, Buffer.from(bytes)]);
}

function varint(bytes: Buffer, from: number): { readonly value: number; readonly end: number } {
  let value = 0;
  for (let at = from, factor = 1; at < bytes.length && at < from + 5; at++, factor *= 128) {
    const byte = bytes[at] ?? 0;
    value += (byte & 127) * factor;
    if (byte < 128) return { value, end: at + 1 };
  }
  throw broken("it has a number without end");
}

function put(bytes: number[], value: number): void {
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  bytes.push(rest);
}

function broken(why: string): MwError {
  return new MwError("sandbox_failed", `The kept processes cannot be used: ${why}`);
}

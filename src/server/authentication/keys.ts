/**
 * Keys and whose they are. A key is a secret of 160 random bits; what is kept of it is its SHA-256. The first key is the local owner's: it is given in `MW_API_KEY`, or made and
 * kept in `api-key` of the data directory, where clients of the same user find it. Further keys are in `keys.json`, as hashes.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import { chmodSync, existsSync, readFileSync, renameSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { messageOf, MwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Owner } from "../services.ts";

export const LOCAL_OWNER: Owner = { id: "local" };

const OWNER = /^[a-z0-9][a-z0-9-]{0,31}$/;
const stored = z.strictObject({ version: z.literal(1), keys: z.array(z.strictObject({ owner: z.string().regex(OWNER), sha256: z.string().regex(/^[0-9a-f]{64}$/), created_at: z.number() })) });
type Stored = z.infer<typeof stored>;

export interface StoredKey {
  readonly owner: string;
  readonly sha256: string;
  readonly createdAt: number;
}

/** Says whose a presented key is. Keys that are added or removed meanwhile count from the next request on. */
export class KeyRing {
  readonly #home: string;
  readonly #first: Buffer;
  #others: readonly { readonly owner: Owner; readonly hash: Buffer }[] = [];
  #seen = "";

  constructor(home: string, firstKey: string) {
    this.#home = home;
    this.#first = hashOf(firstKey);
    this.#refresh();
  }

  /** How many owners had keys when one was last asked for, the local one among them. */
  get owners(): number {
    return 1 + new Set(this.#others.map(({ owner }) => owner.id)).size;
  }

  /** Null for a key that is nobody's. Takes as long for every key. */
  ownerOf(key: string): Owner | null {
    this.#refresh();
    const hash = hashOf(key);
    let found: Owner | null = timingSafeEqual(hash, this.#first) ? LOCAL_OWNER : null;
    for (const other of this.#others) if (timingSafeEqual(hash, other.hash)) found ??= other.owner;
    return found;
  }

  #refresh(): void {
    const mark = markOf(keysFile(this.#home));
    if (mark === this.#seen) return;
    this.#others = readKeys(this.#home).map(({ owner, sha256 }) => ({ owner: { id: owner }, hash: Buffer.from(sha256, "hex") }));
    this.#seen = mark;
  }
}

/** The first key: `MW_API_KEY`, else what is in the data directory, else a new one, which is then there. */
export function firstKey(home: string, given: string | undefined, runtime: Runtime): { readonly key: string; readonly file: string | null } {
  if (given !== undefined && given !== "") {
    if (given.length < 8 || /[^\u0021-\u007e]/.test(given)) throw new MwError("usage", "MW_API_KEY cannot be a key: at least 8 printable characters without spaces are needed", { fix: "unset it, and a key is made" });
    return { key: given, file: null };
  }
  const file = join(home, "api-key");
  if (existsSync(file)) {
    const key = readFileSync(file, "utf8").trim();
    if (key === "") throw new MwError("invalid_input", `${file} is empty`, { fix: `remove it, and a key is made` });
    if ((statSync(file).mode & 0o077) !== 0) chmodSync(file, 0o600);
    return { key, file };
  }
  const key = newKey(runtime);
  writeAside(file, `${key}\n`);
  return { key, file };
}

/** Makes a key for an owner and keeps its hash. */
export function addKey(home: string, owner: string, runtime: Runtime): string {
  if (!OWNER.test(owner) || owner === LOCAL_OWNER.id) throw new MwError("usage", `${JSON.stringify(owner)} cannot be an owner's name`, { fix: "use at most 32 of a-z, 0-9 and -; local is the name of who runs the server" });
  const key = newKey(runtime);
  const keys = [...readKeys(home), { owner, sha256: hashOf(key).toString("hex"), createdAt: runtime.now() }];
  writeKeys(home, keys);
  return key;
}

/** Takes away all keys of an owner; returns how many there were. */
export function removeKeys(home: string, owner: string): number {
  const keys = readKeys(home);
  const left = keys.filter((key) => key.owner !== owner);
  if (left.length < keys.length) writeKeys(home, left);
  return keys.length - left.length;
}

export function readKeys(home: string): readonly StoredKey[] {
  const path = keysFile(home);
  if (!existsSync(path)) return [];
  try {
    return stored.parse(JSON.parse(readFileSync(path, "utf8"))).keys.map(({ owner, sha256, created_at: createdAt }) => ({ owner, sha256, createdAt }));
  } catch (error) {
    throw new MwError("corrupt", `${path} cannot be read: ${messageOf(error)}`, { fix: "restore it, or remove it and make new keys (mw key add)", cause: error });
  }
}

function writeKeys(home: string, keys: readonly StoredKey[]): void {
  const document: Stored = { version: 1, keys: keys.map(({ owner, sha256, createdAt }) => ({ owner, sha256, created_at: createdAt })) };
  writeAside(keysFile(home), `${JSON.stringify(document, null, 2)}\n`);
}

function writeAside(path: string, text: string): void {
  writeFileSync(`${path}.new`, text, { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

/** In the form that clients of the E2B protocol check their keys for: they take no other. */
function newKey(runtime: Runtime): string {
  return `e2b_${Buffer.from(runtime.randomBytes(20)).toString("hex")}`;
}

function hashOf(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}

function keysFile(home: string): string {
  return join(home, "keys.json");
}

function markOf(path: string): string {
  const stats = statSync(path, { throwIfNoEntry: false, bigint: true });
  return stats === undefined ? "" : `${stats.ino}:${stats.mtimeNs}`;
}

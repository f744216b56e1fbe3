/**
 * Snapshots of a data directory, for any number of processes at once.
 *
 *   records/<id>.json    a snapshot exists exactly as long as its record
 *   layers/<id>/         one file layer, as an overlay's upper directory; immutable
 *   memory/<id>/         the processes of one snapshot
 *   work/<holder>/       what is being made; whoever finds a dead holder's takes it away
 *   holds/<holder>.json  layers that a living machine stands on
 *   lock                 held for changes of records and for collecting
 *
 * A layer is moved to its place whole, and held by its maker until a record or a machine's hold names it: at no moment can a kill leave something that is listed and
 * not whole, or that is used and not held.
 */
import { mkdir, readdir, readFile, rename, stat, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../core/errors.ts";
import { isId, newId, type SandboxId, type SnapshotId } from "../../core/ids.ts";
import { systemRuntime, type Runtime } from "../../core/runtime.ts";
import { holderLives, isHolderName, ownName, tokenOf } from "../../image/holder.ts";
import { withLock } from "../../image/lock.ts";
import { removeTree } from "../../image/unpacker.ts";
import type { Snapshot, SnapshotStore } from "../sandbox.ts";
import { exportSnapshot, importSnapshot } from "./archive.ts";
import { noRoom } from "./no-room.ts";
import { checkSnapshotName, snapshotOf, SnapshotRecord, type SnapshotLayer } from "./record.ts";

/** Keeps layers from being collected until it is released or this process ends. */
export interface LayerHold {
  release(): Promise<void>;
}

export class DiskSnapshotStore implements SnapshotStore {
  readonly #root: string;
  readonly #runtime: Runtime;
  #prepared: Promise<void> | null = null;
  /** The process that the machines end with, where that is not this one. */
  #keeper: number | null = null;
  /** The collection after the last release; one that has not begun serves all that come before it does. */
  #collection: { readonly done: Promise<void>; begun: boolean } | null = null;

  constructor(home: string, runtime: Runtime = systemRuntime) {
    this.#root = join(home, "snapshots");
    this.#runtime = runtime;
  }

  async list(): Promise<readonly Snapshot[]> {
    return (await this.records()).map(snapshotOf);
  }

  async get(reference: string): Promise<Snapshot | null> {
    const record = await this.find(reference);
    return record === null ? null : snapshotOf(record);
  }

  async remove(reference: string): Promise<void> {
    await this.#locked(async () => {
      const record = await this.#needed(reference);
      await unlink(this.#recordPath(record.id));
      await this.#collectUnreferenced();
    }, { evenWithoutRoom: true });
  }

  async rename(reference: string, name: string | null): Promise<Snapshot> {
    if (name !== null) checkSnapshotName(name);
    return this.#locked(async () => {
      const record = { ...(await this.#needed(reference)), name };
      await this.#write(record);
      return snapshotOf(record);
    });
  }

  async sizeOf(ids: readonly SnapshotId[]): Promise<number> {
    const wanted = new Set<string>(ids);
    const parts = new Map<string, number>();
    for (const { id, layers, memory } of await this.records()) {
      if (!wanted.has(id)) continue;
      for (const layer of layers) parts.set(layer.id, layer.bytes);
      if (memory !== null) parts.set(`${id} memory`, memory.bytes);
    }
    return [...parts.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  async collect(): Promise<{ readonly layers: number; readonly bytes: number }> {
    return this.#locked(() => this.#collectUnreferenced(), { evenWithoutRoom: true });
  }

  async export(reference: string, path: string): Promise<void> {
    const used = await this.use(reference);
    if (used === null) throw missing(reference);
    const { record, hold } = used;
    try {
      await exportSnapshot(record, { layer: (id) => this.layerPath(id), memory: (id) => this.memoryPath(id) }, path);
    } finally {
      await hold.release();
    }
  }

  async import(path: string, options: { readonly name?: string } = {}): Promise<Snapshot> {
    if (options.name !== undefined) checkSnapshotName(options.name);
    const work = await this.workspace();
    let hold: LayerHold | null = null;
    try {
      const { record: read, layers, memory } = await importSnapshot(path, work);
      // A name in the archive was given elsewhere and means nothing here.
      const record: SnapshotRecord = { ...read, name: options.name ?? null, pausedSandbox: null };
      const known = await this.find(record.id);
      if (known !== null) return options.name === undefined ? snapshotOf(known) : await this.rename(record.id, options.name);
      hold = await this.hold([record.id, ...record.layers.map(({ id }) => id)]);
      for (const [index, { id }] of record.layers.entries()) await this.#place(layers[index] ?? "", this.layerPath(id));
      if (memory !== null) await this.#place(memory, this.memoryPath(record.id));
      await this.commit(record);
      return snapshotOf(record);
    } finally {
      await hold?.release();
      await removeTree(work);
    }
  }

  // ---- for backends ----

  layerPath(id: string): string {
    return join(this.#root, "layers", id);
  }

  memoryPath(id: SnapshotId): string {
    return join(this.#root, "memory", id);
  }

  /** From now on holds last as long as that process, which outlives this one. Returns the names of those that it has, of an earlier controller. */
  async keepWith(pid: number): Promise<readonly string[]> {
    await this.#ready();
    this.#keeper = pid;
    const token = tokenOf(pid, "");
    return token === null ? [] : (await readdir(join(this.#root, "holds"))).filter((name) => name.startsWith(token));
  }

  /** Gives up holds of an earlier controller, whose machines have others now. */
  async dropHolds(names: readonly string[]): Promise<void> {
    for (const name of names) await unlink(join(this.#root, "holds", name)).catch(() => undefined);
    if (names.length > 0) this.#collectSoon();
  }

  newId(): SnapshotId {
    return newId("snap", this.#runtime);
  }

  /** A directory of the caller's, to be removed by it. */
  async workspace(): Promise<string> {
    const path = join(this.#root, "work", ownName());
    try {
      await this.#ready();
      await mkdir(path, { mode: 0o700 });
    } catch (error) {
      throw noRoom(error);
    }
    return path;
  }

  /** Moves a whole tree in as a layer and holds it. */
  async addLayer(directory: string, bytes: number): Promise<{ readonly layer: SnapshotLayer; readonly hold: LayerHold }> {
    const id = this.newId();
    const hold = await this.hold([id]);
    try {
      await this.#place(directory, this.layerPath(id));
    } catch (error) {
      await hold.release();
      throw error;
    }
    return { layer: { id, bytes }, hold };
  }

  async addMemory(id: SnapshotId, directory: string): Promise<void> {
    await this.#place(directory, this.memoryPath(id));
  }

  /** From here on the snapshot exists. */
  async commit(record: SnapshotRecord): Promise<void> {
    if (record.name !== null) checkSnapshotName(record.name);
    await this.#locked(() => this.#write(record));
  }

  async hold(layers: readonly string[]): Promise<LayerHold> {
    if (layers.length === 0) return { release: async () => undefined };
    const path = join(this.#root, "holds", `${this.#holderName()}.json`);
    try {
      await this.#ready();
      await this.#writeWhole([[path, layers]]);
    } catch (error) {
      throw noRoom(error);
    }
    return {
      release: async () => {
        await unlink(path).catch(() => undefined);
        this.#collectSoon();
      },
    };
  }

  #holderName(): string {
    const name = ownName();
    const [random = "", count = ""] = name.split("-").at(-1)?.split(".") ?? [];
    const kept = this.#keeper === null ? null : tokenOf(this.#keeper, random);
    return kept === null ? name : `${kept}.${count}`;
  }

  /** What was held until a moment ago may be used by nobody now. */
  #collectSoon(): void {
    if (this.#collection !== null && !this.#collection.begun) return;
    const before = this.#collection?.done ?? Promise.resolve();
    const next: { done: Promise<void>; begun: boolean } = { done: before, begun: false };
    next.done = before.then(async () => {
      next.begun = true;
      // The next one tries again.
      await this.collect().catch(() => undefined);
    });
    this.#collection = next;
  }

  /** Resolves when nothing that this process has let go is left. */
  async settled(): Promise<void> {
    await this.#collection?.done;
  }

  /** The record and a hold on its layers, or null. */
  async use(reference: string): Promise<{ readonly record: SnapshotRecord; readonly hold: LayerHold } | null> {
    const found = await this.find(reference);
    if (found === null) return null;
    const hold = await this.hold([...found.layers.map(({ id }) => id), ...(found.memory === null ? [] : [found.id])]);
    // Removed in between: then its layers may be gone. Removed later: then the collector sees the hold.
    if ((await this.find(found.id)) !== null) return { record: found, hold };
    await hold.release();
    return null;
  }

  async find(reference: string): Promise<SnapshotRecord | null> {
    if (isId("snap", reference)) return this.#read(reference);
    return (await this.records()).findLast((record) => record.name === reference && ownerOf(record) === LOCAL) ?? null;
  }

  /** The pause of a sandbox. */
  async pauseOf(sandbox: SandboxId): Promise<SnapshotRecord | null> {
    return (await this.records()).findLast((record) => record.pausedSandbox === sandbox) ?? null;
  }

  /** Oldest first. */
  async records(): Promise<readonly SnapshotRecord[]> {
    const ids = (await readdir(join(this.#root, "records")).catch(() => [])).map((name) => name.replace(/\.json$/, "")).filter((id) => isId("snap", id));
    const found = await Promise.all(ids.toSorted().map((id) => this.#read(id)));
    return found.filter((record) => record !== null);
  }

  async #needed(reference: string): Promise<SnapshotRecord> {
    const record = await this.find(reference);
    if (record === null) throw missing(reference);
    return record;
  }

  async #read(id: string): Promise<SnapshotRecord | null> {
    let text: string;
    try {
      text = await readFile(this.#recordPath(id), "utf8");
    } catch {
      return null;
    }
    const parsed = SnapshotRecord.safeParse(parseJson(text));
    if (!parsed.success) throw new MwError("corrupt", `The record of the snapshot ${id} cannot be read: ${parsed.error.message}`, { fix: `remove ${this.#recordPath(id)}` });
    return parsed.data;
  }

  /** Takes its name from whoever had it. The caller has the lock. */
  async #write(record: SnapshotRecord): Promise<void> {
    const documents: [path: string, document: SnapshotRecord][] = [[this.#recordPath(record.id), record]];
    for (const other of record.name === null ? [] : await this.records()) {
      if (other.name === record.name && other.id !== record.id && ownerOf(other) === ownerOf(record)) documents.push([this.#recordPath(other.id), { ...other, name: null }]);
    }
    await this.#writeWhole(documents);
  }

  /** What there is no room for changes none of them. */
  async #writeWhole(documents: readonly (readonly [path: string, document: unknown])[]): Promise<void> {
    const prepared = documents.map(([path, document]) => ({ path, document, temporary: join(this.#root, "work", ownName()) }));
    try {
      for (const { temporary, document } of prepared) await writeFile(temporary, `${JSON.stringify(document)}\n`, { mode: 0o600 });
      for (const { temporary, path } of prepared) await rename(temporary, path);
    } catch (error) {
      for (const { temporary } of prepared) await unlink(temporary).catch(() => undefined);
      throw error;
    }
  }

  async #place(from: string, to: string): Promise<void> {
    try {
      await rename(from, to);
    } catch (error) {
      // The same immutable thing is there.
      if (!["ENOTEMPTY", "EEXIST"].includes(String((error as NodeJS.ErrnoException).code))) throw error;
    }
  }

  async #collectUnreferenced(): Promise<{ readonly layers: number; readonly bytes: number }> {
    // In this order: a layer that is seen has been held before it was there, and the hold goes only when a record names it.
    const [present, presentMemories] = [await readdir(join(this.#root, "layers")), await readdir(join(this.#root, "memory"))];
    const held = await this.#held();
    const records = await this.records();
    const used = new Set([...records.flatMap(({ layers }) => layers.map(({ id }) => id)), ...held]);
    const memories = new Set<string>(records.filter(({ memory }) => memory !== null).map(({ id }) => id));
    let layers = 0;
    let bytes = 0;
    for (const id of present) {
      if (used.has(id)) continue;
      bytes += await this.#takeAway(join(this.#root, "layers", id));
      layers++;
    }
    for (const id of presentMemories) if (!memories.has(id) && !used.has(id)) bytes += await this.#takeAway(join(this.#root, "memory", id));
    for (const name of await readdir(join(this.#root, "work"))) if (!holderLives(name)) await removeTree(join(this.#root, "work", name));
    // Of who died before it had the lock.
    for (const name of await readdir(this.#root)) if (isHolderName(name) && !holderLives(name)) await removeTree(join(this.#root, name));
    return { layers, bytes };
  }

  async #takeAway(path: string): Promise<number> {
    const { blocks } = await stat(path);
    await removeTree(path);
    return blocks * 512;
  }

  async #held(): Promise<readonly string[]> {
    const held: string[] = [];
    for (const name of await readdir(join(this.#root, "holds"))) {
      const path = join(this.#root, "holds", name);
      if (!holderLives(name)) await unlink(path).catch(() => undefined);
      else held.push(...(JSON.parse(await readFile(path, "utf8").catch(() => "[]")) as string[]));
    }
    return held;
  }

  #recordPath(id: string): string {
    return join(this.#root, "records", `${id}.json`);
  }

  async #locked<T>(work: () => Promise<T>, options: { readonly evenWithoutRoom?: boolean } = {}): Promise<T> {
    try {
      await this.#ready();
      return await withLock(join(this.#root, "lock"), work, options);
    } catch (error) {
      throw noRoom(error);
    }
  }

  #ready(): Promise<void> {
    this.#prepared ??= (async () => {
      for (const name of ["records", "layers", "memory", "work", "holds"]) await mkdir(join(this.#root, name), { recursive: true, mode: 0o700 });
    })();
    // Tried again: there may be room by then.
    this.#prepared.catch(() => (this.#prepared = null));
    return this.#prepared;
  }
}

/** Undefined for what is none: a host that lost its power may have left a file empty. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Names are apart for each owner of sandboxes; what belongs to nobody in particular belongs to who runs this host. */
const LOCAL = "local";

function ownerOf({ labels }: SnapshotRecord): string {
  return labels["owner"] ?? LOCAL;
}

function missing(reference: string): MwError {
  return new MwError("not_found", `There is no snapshot ${JSON.stringify(reference)}`, { fix: "mw sandbox snapshots lists them" });
}

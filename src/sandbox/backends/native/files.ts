/**
 * Files of a machine, through the helper program that runs inside it: one short process a request, so that paths and links resolve there, with the rights of a
 * user there, and a request that hangs or lies costs only itself.
 */
import { posix } from "node:path";
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { FileEvent, FileStat, SandboxFiles, SandboxPath, TreeOptions, TreeReport, WriteOptions } from "../../sandbox.ts";
import type { NativeExec } from "./exec.ts";
import { EVENTS, FILE_TAG, FILES, KINDS } from "./files-protocol.ts";
import { FilesSession } from "./files-session.ts";
import { HostTreeWriter, readHostTree } from "./host-tree.ts";
import { layerItems, removedPaths } from "./layer-items.ts";
import { decodeItem, encodeItem, Refusals, type TreeEntry, type TreeItem } from "./tree-items.ts";
import { encodeFrame, type FieldList, type Frame } from "./wire.ts";

/** Starts the helper in the machine as a user (empty: root), with stdin open, an empty environment and no output cap. `source`: a file in the machine that holds the request. */
export type StartHelper = (user: string, source?: string) => Promise<NativeExec>;

export interface ScannedEntry extends FileStat {
  readonly digest: string;
}

/** Bytes that `read` returns at most when the caller sets no bound. */
const READ_BYTES = 256 * 1024 * 1024;
/** Small frames are sent together. */
const BATCH_BYTES = 64 * 1024;

export class NativeFiles implements SandboxFiles {
  readonly #start: StartHelper;

  constructor(start: StartHelper) {
    this.#start = start;
  }

  async read(path: SandboxPath, { maxBytes = READ_BYTES, user = "" }: { readonly maxBytes?: number; readonly user?: string } = {}): Promise<Uint8Array> {
    const frames = await this.#ask(FILES.read, [[FILE_TAG.path, path], [FILE_TAG.max, maxBytes]], { user, maxBytes });
    return Buffer.concat(frames.filter((frame) => frame.type === FILES.data).map((frame) => frame.bytes(FILE_TAG.data) ?? Buffer.alloc(0)));
  }

  async *readStream(path: SandboxPath, { user = "" }: { readonly user?: string } = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const session = await this.#open(FILES.read, [[FILE_TAG.path, path], [FILE_TAG.max, Number.MAX_SAFE_INTEGER]], { user });
    let whole = false;
    try {
      for await (const frame of session.frames()) {
        if (frame.type === FILES.end) whole = true;
        else yield frame.bytes(FILE_TAG.data) ?? Buffer.alloc(0);
      }
      if (!whole) throw session.cutShort();
    } finally {
      await session.abandon();
    }
  }

  async write(path: SandboxPath, data: Uint8Array | string | AsyncIterable<Uint8Array>, options: WriteOptions = {}): Promise<void> {
    const owner = await this.#owner(options.owner);
    const session = await this.#open(FILES.write, [[FILE_TAG.path, path], [FILE_TAG.mode, options.mode], ...owner, ...attributesOf(options.attributes ?? {})]);
    const sending = (async () => {
      for await (const bytes of piecesOf(data)) {
        for (let at = 0; at < bytes.length; at += BATCH_BYTES) await session.send(FILES.data, [[FILE_TAG.data, bytes.subarray(at, at + BATCH_BYTES)]]);
      }
      await session.send(FILES.end);
    })();
    await session.finish(sending);
  }

  async list(path: SandboxPath): Promise<readonly FileStat[]> {
    const frames = await this.#ask(FILES.list, [[FILE_TAG.path, path]], { maxBytes: 512 * 1024 * 1024 });
    return frames.filter((frame) => frame.type === FILES.entry).map(statOf);
  }

  async stat(path: SandboxPath): Promise<FileStat | null> {
    try {
      const frames = await this.#ask(FILES.stat, [[FILE_TAG.path, path]]);
      const entry = frames.find((frame) => frame.type === FILES.entry);
      return entry === undefined ? null : statOf(entry);
    } catch (error) {
      if (error instanceof MwError && (error.facts["errno"] === "ENOENT" || error.facts["errno"] === "ENOTDIR")) return null;
      throw error;
    }
  }

  async mkdir(path: SandboxPath, options: { readonly mode?: number; readonly owner?: string } = {}): Promise<void> {
    const owner = await this.#owner(options.owner);
    await this.#ask(FILES.mkdir, [[FILE_TAG.path, path], [FILE_TAG.mode, options.mode], ...owner]);
  }

  async move(from: SandboxPath, to: SandboxPath): Promise<void> {
    await this.#ask(FILES.move, [[FILE_TAG.path, from], [FILE_TAG.to, to]]);
  }

  async remove(path: SandboxPath): Promise<void> {
    await this.#ask(FILES.remove, [[FILE_TAG.path, path]]);
  }

  async upload(from: string, to: SandboxPath, options: TreeOptions = {}): Promise<TreeReport> {
    return this.#receive(readHostTree(from, options.exclude), to, options);
  }

  async applyLayer(archive: string, { signal }: { readonly signal?: AbortSignal } = {}): Promise<TreeReport> {
    for (const path of await removedPaths(archive)) {
      signal?.throwIfAborted();
      await this.remove(path);
    }
    const options = { keepOwners: true, ...(signal === undefined ? {} : { signal }) };
    const first = await this.#receive(layerItems(archive), "/", options, true);
    // A file where the image has a directory, or the other way round: the archive's is what counts.
    const inTheWay = first.refused.filter(({ reason }) => reason.endsWith("is in the way"));
    if (inTheWay.length === 0) return first;
    for (const { path } of inTheWay) await this.remove(`/${path}`);
    return await this.#receive(layerItems(archive), "/", options, true);
  }

  async download(from: SandboxPath, to: string, options: TreeOptions = {}): Promise<TreeReport> {
    const maxBytes = options.maxBytes ?? LIMITS.treeBytes;
    const writer = new HostTreeWriter(to, { maxBytes, maxEntries: options.maxEntries ?? LIMITS.treeEntries });
    try {
      for await (const item of this.items(from, options)) writer.take(item);
      const { entries, bytes } = writer.finish();
      return { entries, bytes, refused: writer.refusals.list };
    } catch (error) {
      writer.discard();
      throw error;
    }
  }

  async copyTo(target: SandboxFiles, from: SandboxPath, to: SandboxPath, options: TreeOptions = {}): Promise<TreeReport> {
    if (!(target instanceof NativeFiles)) throw new MwError("unsupported", "Trees are copied between machines of the same backend only");
    return target.#receive(this.items(from, options), to, options);
  }

  /** Every entry below `path` that no `exclude` names, without contents: their digests (with the extended attributes) instead, made with a key of 16 bytes. Fails rather than leave something out. */
  async scan(path: SandboxPath, exclude: readonly string[], key: Uint8Array): Promise<readonly ScannedEntry[]> {
    const session = await this.#open(FILES.scan, [[FILE_TAG.path, path], [FILE_TAG.exclude, exclude], [FILE_TAG.data, key]]);
    const entries: ScannedEntry[] = [];
    let bytes = 0;
    await session.finish(Promise.resolve(), (frame) => {
      const { path: name, ...stat } = statOf(frame);
      if (frame.type === FILES.refused) throw new MwError("limit_exceeded", `/${Buffer.from(name).toString("utf8")} cannot be looked at: ${frame.text(FILE_TAG.reason) ?? "unknown"}`);
      if (frame.type !== FILES.entry) return;
      bytes += name.length + (stat.target?.length ?? 0);
      if (entries.length >= LIMITS.treeEntries || bytes > LIMITS.treeNamesBytes) throw new MwError("limit_exceeded", `There are more files, or longer names, than ${LIMITS.treeEntries} entries and ${LIMITS.treeNamesBytes} bytes`);
      entries.push({ ...stat, path: Buffer.from(name), digest: frame.bytes(FILE_TAG.data)?.toString("hex") ?? "" });
    });
    return entries;
  }

  /** `place` for items that are in a file of the machine already, as `placeRequest` writes them. */
  async placeFrom(source: string): Promise<TreeReport> {
    const session = new FilesSession(await this.#start("", source));
    const refusals = new Refusals();
    const frames = await session.finish(Promise.resolve(), (frame) => {
      if (frame.type === FILES.refused) refusals.add(frame.bytes(FILE_TAG.path) ?? Buffer.alloc(0), frame.text(FILE_TAG.reason) ?? "unknown");
    });
    return { entries: frames.number(FILE_TAG.entries) ?? 0, bytes: frames.number(FILE_TAG.bytes) ?? 0, refused: refusals.list };
  }

  /** Puts a tree in place as it is sent: with its own owners, times and modes. */
  async place(items: AsyncIterable<TreeItem>, to: SandboxPath): Promise<TreeReport> {
    return this.#receive(items, to, { keepOwners: true }, true);
  }

  async *watch(path: SandboxPath, options: { readonly recursive?: boolean; readonly signal?: AbortSignal; readonly onReady?: () => void } = {}): AsyncGenerator<FileEvent, void, undefined> {
    const session = await this.#open(FILES.watch, [[FILE_TAG.path, path], [FILE_TAG.recursive, options.recursive === true ? 1 : 0]], options);
    try {
      for await (const frame of session.frames()) {
        if (frame.type === FILES.end) options.onReady?.();
        if (frame.type !== FILES.event) continue;
        yield { ...(EVENTS[frame.number(FILE_TAG.kind) ?? 3] ?? EVENTS[3]), path: frame.bytes(FILE_TAG.path) ?? Buffer.alloc(0) };
      }
    } finally {
      await session.abandon();
    }
  }

  /** A tree of the machine as items; throws unless it came to its end. */
  async *items(from: SandboxPath, options: TreeOptions): AsyncGenerator<TreeItem, void, undefined> {
    const session = await this.#open(FILES.download, [[FILE_TAG.path, from], [FILE_TAG.exclude, options.exclude ?? []], [FILE_TAG.max, options.maxBytes ?? LIMITS.treeBytes]], options);
    let whole = false;
    try {
      for await (const frame of session.frames()) {
        if (frame.type === FILES.end) {
          whole = true;
          continue;
        }
        const item = decodeItem(frame);
        if (item === null) throw new MwError("sandbox_failed", "The machine sent something else than a tree");
        yield item;
      }
      if (!whole) throw session.cutShort();
    } finally {
      await session.abandon();
    }
  }

  /** Sends items into the machine. `exact`: directories that are there already become as they are sent. */
  async #receive(items: AsyncIterable<TreeItem>, to: SandboxPath, options: TreeOptions, exact = false): Promise<TreeReport> {
    const refusals = new Refusals();
    const owner = await this.#owner(options.owner ?? "0:0");
    const feed = items[Symbol.asyncIterator]();
    const first = await feed.next();
    // A single file goes into its parent directory under its own name.
    const single = first.done !== true && first.value.type === "entry" && first.value.path.length === 0;
    const target = Buffer.from(typeof to === "string" ? posix.normalize(to) : to);
    const { directory, name } = single ? parentAndName(target) : { directory: target, name: target };
    const session = await this.#open(FILES.upload, [[FILE_TAG.path, directory], ...owner, [FILE_TAG.max, options.maxBytes ?? LIMITS.treeBytes], [FILE_TAG.recursive, exact ? 1 : 0]], options);
    const sending = (async () => {
      try {
        for (let next = first; next.done !== true; next = await feed.next()) {
          const item = next.value.type === "entry" ? received(single ? { ...next.value, path: name } : next.value, options) : next.value;
          if (item.type === "refused") refusals.add(item.path, item.reason);
          else await session.sendBytes(encodeItem(item));
        }
        await session.send(FILES.end);
      } finally {
        await feed.return?.();
      }
    })();
    const frames = await session.finish(sending, (frame) => {
      if (frame.type !== FILES.refused) return;
      refusals.add(frame.bytes(FILE_TAG.path) ?? Buffer.alloc(0), frame.text(FILE_TAG.reason) ?? "unknown");
    });
    const refused = refusals.list;
    if (single && refused[0]) throw new MwError("conflict", `Cannot write ${target.toString()}: ${refused[0].reason}`);
    return { entries: frames.number(FILE_TAG.entries) ?? 0, bytes: frames.number(FILE_TAG.bytes) ?? 0, refused };
  }

  async #open(type: number, fields: FieldList, { user = "", signal }: { readonly user?: string; readonly signal?: AbortSignal } = {}): Promise<FilesSession> {
    signal?.throwIfAborted();
    const session = new FilesSession(await this.#start(user), signal);
    await session.send(type, fields).catch(async (error: unknown) => {
      await session.abandon();
      throw error;
    });
    return session;
  }

  /** A request whose answer is small or bounded. */
  async #ask(type: number, fields: FieldList, { user = "", maxBytes = LIMITS.frameBytes }: { readonly user?: string; readonly maxBytes?: number } = {}): Promise<readonly Frame[]> {
    const session = await this.#open(type, fields, { user });
    const frames: Frame[] = [];
    let bytes = 0;
    await session.finish(Promise.resolve(), (frame) => {
      bytes += frame.fields.reduce((sum, field) => sum + field.data.length, 0);
      if (bytes > maxBytes + LIMITS.frameBytes) throw new MwError("limit_exceeded", `The answer of the machine is larger than ${maxBytes} bytes`);
      frames.push(frame);
    });
    return frames;
  }

  /** Numbers of an owner; a name is asked from the machine. */
  async #owner(owner: string | undefined): Promise<FieldList> {
    if (owner === undefined) return [];
    const numbers = /^(\d+):(\d+)$/.exec(owner);
    if (numbers?.[1] !== undefined && numbers[2] !== undefined) return [[FILE_TAG.uid, BigInt(numbers[1])], [FILE_TAG.gid, BigInt(numbers[2])]];
    const [entry] = await this.#ask(FILES.ids, [], { user: owner });
    return [[FILE_TAG.uid, entry?.number(FILE_TAG.uid) ?? 0], [FILE_TAG.gid, entry?.number(FILE_TAG.gid) ?? 0]];
  }
}

/** The bytes of a request that puts items below `/`, with owners, times and modes. What the items themselves refuse is added to `refusals`. */
export async function* placeRequest(items: AsyncIterable<TreeItem>, refusals: Refusals): AsyncGenerator<Buffer> {
  yield encodeFrame(FILES.upload, 0, [[FILE_TAG.path, "/"], [FILE_TAG.uid, 0], [FILE_TAG.gid, 0], [FILE_TAG.max, LIMITS.treeBytes], [FILE_TAG.recursive, 1]]);
  for await (const item of items) {
    if (item.type === "refused") refusals.add(item.path, item.reason);
    else yield encodeItem(item);
  }
  yield encodeFrame(FILES.end, 0, []);
}

/** Items but for what lies below these names at the top. */
export async function* without(items: AsyncIterable<TreeItem>, names: ReadonlySet<string>): AsyncGenerator<TreeItem> {
  let left = false;
  for await (const item of items) {
    if (item.type !== "data") left = names.has(item.path.toString("latin1").split("/")[0] ?? "");
    if (!left) yield item;
  }
}

function piecesOf(data: Uint8Array | string | AsyncIterable<Uint8Array>): Iterable<Uint8Array> | AsyncIterable<Uint8Array> {
  if (typeof data === "string") return [Buffer.from(data)];
  return data instanceof Uint8Array ? [data] : data;
}

/** Throws for what a file cannot have. */
function attributesOf(attributes: Readonly<Record<string, string>>): FieldList {
  const fields = Object.entries(attributes).map(([name, value]) => [FILE_TAG.attribute, Buffer.from(`${name}\0${value}`)] as const);
  const bytes = fields.reduce((sum, [, field]) => sum + field.length, 0);
  if (fields.length > LIMITS.fileAttributes || bytes > LIMITS.fileAttributeBytes) throw new MwError("limit_exceeded", `a file has at most ${LIMITS.fileAttributes} attributes, and ${LIMITS.fileAttributeBytes} bytes of them`);
  const bad = Object.keys(attributes).find((name) => !/^user\.[^\0]{1,250}$/.test(name) || name.startsWith("user.overlay."));
  if (bad !== undefined) throw new MwError("invalid_input", `${JSON.stringify(bad.slice(0, 100))} cannot be an attribute`, { fix: "names begin with user." });
  return fields;
}

/** An entry as the options want it in the machine. */
function received({ owner, ...entry }: TreeEntry, { mode, keepOwners }: TreeOptions): TreeEntry {
  const own = keepOwners === true && owner !== undefined ? { owner } : {};
  return mode !== undefined && (entry.kind === "file" || entry.kind === "directory") ? { ...entry, ...own, mode } : { ...entry, ...own };
}

function parentAndName(path: Buffer): { readonly directory: Buffer; readonly name: Buffer } {
  const text = path.toString("latin1").replace(/\/+$/, "");
  const slash = text.lastIndexOf("/");
  if (slash < 0 || slash === text.length - 1) throw new MwError("invalid_input", `${path.toString()} is not an absolute path of a file`);
  return { directory: Buffer.from(text.slice(0, Math.max(slash, 1)), "latin1"), name: Buffer.from(text.slice(slash + 1), "latin1") };
}

function statOf(frame: Frame): FileStat {
  const kind = KINDS[frame.number(FILE_TAG.kind) ?? -1];
  const type = kind === "hardlink" || kind === "directory-end" || kind === undefined ? "device" : kind;
  return {
    path: frame.bytes(FILE_TAG.path) ?? Buffer.alloc(0),
    type,
    mode: frame.number(FILE_TAG.mode) ?? 0,
    uid: frame.number(FILE_TAG.uid) ?? 0,
    gid: frame.number(FILE_TAG.gid) ?? 0,
    size: frame.number(FILE_TAG.size) ?? 0,
    mtimeNs: frame.i64(FILE_TAG.mtime) ?? 0n,
    target: frame.bytes(FILE_TAG.target),
    attributes: Object.fromEntries(frame.all(FILE_TAG.attribute).map((data) => [data.subarray(0, data.indexOf(0)).toString("utf8"), data.subarray(data.indexOf(0) + 1).toString("utf8")])),
  };
}

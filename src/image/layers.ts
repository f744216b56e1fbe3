/**
 * The layer store: `layers/<hex>/fs` is an unpacked layer, an overlay lower directory that never changes again; `layers/<hex>/layer.json` says what it is.
 *
 * A layer is made in a temporary directory named after the process that makes it and renamed into place when it is whole, so that a layer that exists is
 * complete whatever was killed. One process unpacks a given layer at a time; the others wait for it.
 */
import { mkdir, readdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { Readable } from "node:stream";
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { decompressed } from "./decompress.ts";
import { DigestStream, hexOf } from "./digest.ts";
import { holderLives, ownName } from "./holder.ts";
import { withLock } from "./lock.ts";
import { readTar } from "./tar-read.ts";
import { TarEncoder } from "./tar-write.ts";
import type { Refusal, TreeEvent } from "./tree.ts";
import { removeTree, TreeWriter, type WriteReport } from "./unpacker.ts";

const LayerRecord = z.object({
  version: z.literal(1),
  digest: z.string(),
  /** Bytes of file content. */
  bytes: z.number(),
  entries: z.number(),
  flattened: z.number(),
  lostAttributes: z.number(),
  /** Device nodes that an ordinary user cannot make, and the like. */
  left: z.array(z.object({ path: z.string(), code: z.string(), reason: z.string() })),
});
export type LayerRecord = z.infer<typeof LayerRecord>;

export interface LayerOptions {
  /** What is being unpacked, for messages. */
  readonly name: string;
  readonly signal?: AbortSignal | undefined;
  /** Rejects when what was read is not to be believed, although it ended as it should. Asked also when reading failed: it knows the reason better. */
  readonly confirm?: () => Promise<void>;
}

/** Runs `work` with the store locked and the layer held for this process, so that no collector takes it. */
export type Protect = <T>(digest: string, work: () => Promise<T>) => Promise<T>;

export class LayerStore {
  readonly #directory: string;
  readonly #protect: Protect;

  /** `directory` is private to the user: it holds set-id programs of images. */
  constructor(directory: string, options: { readonly protect: Protect }) {
    this.#directory = directory;
    this.#protect = options.protect;
  }

  async prepare(): Promise<void> {
    for (const name of ["layers", "tmp", "locks"]) await mkdir(join(this.#directory, name), { recursive: true, mode: 0o700 });
  }

  /** The directory to mount. */
  path(digest: string): string {
    return join(this.#directory, "layers", hexOf(digest), "fs");
  }

  async find(digest: string): Promise<LayerRecord | null> {
    const file = join(this.#directory, "layers", hexOf(digest), "layer.json");
    const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return null;
      throw error;
    });
    if (text === null) return null;
    const record = LayerRecord.safeParse(parseJson(text));
    if (!record.success) throw new MwError("corrupt", `the layer record ${file} is damaged`, { fix: `remove ${join(this.#directory, "layers", hexOf(digest))} and make the image again` });
    return record.data;
  }

  /**
   * Unpacks a layer archive. `open` gives its bytes, compressed or not, and is called only when the layer is not here yet. `diffId` is the digest of the uncompressed archive that it
   * must have; `digest` that of the bytes as they come. Null: not known beforehand.
   */
  async unpack(open: () => Promise<Readable>, expected: { readonly diffId: string | null; readonly digest: string | null; readonly whiteouts: boolean }, options: LayerOptions): Promise<LayerRecord> {
    const { diffId } = expected;
    const make = (): Promise<LayerRecord> =>
      this.#make(async (directory) => {
        const source = await open();
        const compressed = new DigestStream(LIMITS.imageLayerBytes);
        const plain = new DigestStream(LIMITS.imageLayerBytes);
        const streams = [source, compressed, plain];
        // The reader at the end of the chain reports; the others only pass on.
        for (const stream of streams) stream.on("error", () => undefined);
        source.on("error", (error) => compressed.destroy(error));
        const onAbort = (): void => streams.forEach((stream) => stream.destroy(abortError(options.signal)));
        options.signal?.addEventListener("abort", onAbort, { once: true });
        try {
          const inner = await decompressed(source.pipe(compressed), options.name);
          inner.on("error", (error) => plain.destroy(error));
          const written = await this.#write(directory, (refused) => readTar(inner.pipe(plain), { name: options.name, whiteouts: expected.whiteouts, onRefused: (refusal) => refused.push(refusal) }), options).catch(
            async (error: unknown) => {
              // A source that is still writing must not wait for a reader that is gone.
              source.destroy();
              await options.confirm?.();
              throw error;
            },
          );
          // The decoder stops at the end of its data; what follows it still belongs to the digest.
          compressed.resume();
          await ended(compressed);
          await options.confirm?.();
          const digest = plain.digest();
          mustBe(expected.digest, compressed.digest(), options.name, "digest");
          mustBe(diffId, digest, options.name, "uncompressed digest (diff id)");
          return { ...written, digest };
        } finally {
          options.signal?.removeEventListener("abort", onAbort);
          for (const stream of streams) stream.destroy();
        }
      });
    if (diffId === null) return make();
    const existing = (): Promise<LayerRecord | null> => this.#protect(diffId, () => this.find(diffId));
    return (await existing()) ?? withLock(join(this.#directory, "locks", `layer-${hexOf(diffId)}`), async () => (await existing()) ?? make(), { signal: options.signal });
  }

  /** Makes a layer from tree events; its digest is that of the canonical archive. */
  async build(events: () => AsyncIterable<TreeEvent>, options: LayerOptions): Promise<LayerRecord> {
    return this.#make(async (directory) => {
      const tar = new CanonicalDigest();
      const written = await this.#write(directory, async function* () {
        for await (const event of events()) {
          tar.add(event);
          yield event;
        }
      }, options);
      return { ...written, digest: tar.digest() };
    });
  }

  /** Takes a whole directory as a layer by renaming it; it must lie on this file system and belong to the caller alone. Null when it lies elsewhere. */
  async adopt(directory: string, events: AsyncIterable<TreeEvent>): Promise<LayerRecord | null> {
    if ((await stat(directory)).dev !== (await stat(this.#directory)).dev) return null;
    const tar = new CanonicalDigest();
    let entries = 0;
    let bytes = 0;
    for await (const event of events) {
      tar.add(event);
      if (event.type === "entry") entries++;
      else bytes += event.bytes.length;
    }
    const record: LayerRecord = { version: 1, digest: tar.digest(), bytes, entries, flattened: 0, lostAttributes: 0, left: [] };
    const temporary = await this.temporary();
    await rename(directory, join(temporary, "fs"));
    return this.#place(temporary, record);
  }

  /** An empty directory that vanishes with the process, for work on the way to a layer. */
  async temporary(): Promise<string> {
    const path = join(this.#directory, "tmp", ownName());
    await mkdir(path, { mode: 0o700 });
    return path;
  }

  /** Removes what dead processes left. */
  async sweep(): Promise<void> {
    for (const parent of ["tmp", "locks"]) {
      for (const name of await readdir(join(this.#directory, parent))) {
        // Locks themselves stay: they are empty directories with other names.
        if (/^\d+-/.test(name) && !holderLives(name)) await removeTree(join(this.#directory, parent, name));
      }
    }
  }

  /** Takes every layer that `keep` does not hold out of the store, in one step each; `dispose` then deletes them at leisure. */
  async withdraw(keep: ReadonlySet<string>): Promise<{ readonly digests: readonly string[]; dispose(): Promise<number> }> {
    const withdrawn: { readonly path: string; readonly bytes: number }[] = [];
    const digests: string[] = [];
    for (const hex of await readdir(join(this.#directory, "layers"))) {
      const digest = `sha256:${hex}`;
      if (keep.has(digest)) continue;
      const record = await this.find(digest).catch(() => null);
      const path = join(this.#directory, "tmp", ownName());
      await rename(join(this.#directory, "layers", hex), path);
      withdrawn.push({ path, bytes: record?.bytes ?? 0 });
      digests.push(digest);
    }
    return {
      digests,
      dispose: async () => {
        for (const { path } of withdrawn) await removeTree(path);
        return withdrawn.reduce((sum, { bytes }) => sum + bytes, 0);
      },
    };
  }

  async #write(directory: string, events: (refused: Refusal[]) => AsyncIterable<TreeEvent>, options: LayerOptions): Promise<LayerRecord> {
    const fs = join(directory, "fs");
    await mkdir(fs, { mode: 0o755 });
    const refused: Refusal[] = [];
    const writer = new TreeWriter(fs);
    let report: WriteReport;
    try {
      for await (const event of events(refused)) {
        options.signal?.throwIfAborted();
        await writer.push(event);
      }
      report = await writer.finish();
    } catch (error) {
      await writer.abort();
      throw error;
    }
    refused.push(...report.refused);
    // Nobody but root makes device nodes; a machine has its own /dev, so an image without them is whole all the same.
    const left = refused.filter(({ code, reason }) => code === "EPERM" && reason.startsWith("device"));
    const bad = refused.filter((refusal) => !left.includes(refusal));
    if (bad.length > 0) throw refusedError(options.name, bad);
    return { version: 1, digest: "", bytes: report.bytes, entries: report.entries, flattened: report.flattened, lostAttributes: report.lostAttributes, left };
  }

  async #make(fill: (directory: string) => Promise<LayerRecord>): Promise<LayerRecord> {
    const temporary = await this.temporary();
    let record: LayerRecord;
    try {
      record = await fill(temporary);
    } catch (error) {
      await removeTree(temporary);
      throw error;
    }
    return this.#place(temporary, record);
  }

  async #place(temporary: string, record: LayerRecord): Promise<LayerRecord> {
    await writeFile(join(temporary, "layer.json"), `${JSON.stringify(record)}\n`);
    const placed = await this.#protect(record.digest, async () => {
      try {
        await rename(temporary, join(this.#directory, "layers", hexOf(record.digest)));
        return record;
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        // Somebody else made the same layer meanwhile, or it was there.
        const existing = code === "ENOTEMPTY" || code === "EEXIST" ? await this.find(record.digest) : null;
        if (existing === null) throw error;
        return existing;
      }
    });
    if (placed !== record) await removeTree(temporary);
    return placed;
  }
}

/** The digest of a tree: that of its canonical archive. */
class CanonicalDigest {
  readonly #hash = createHash("sha256");
  readonly #tar = new TarEncoder();

  add(event: TreeEvent): void {
    for (const part of this.#tar.encode(event)) this.#hash.update(part);
  }

  digest(): string {
    for (const part of this.#tar.end()) this.#hash.update(part);
    return `sha256:${this.#hash.digest("hex")}`;
  }
}

export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function mustBe(expected: string | null, actual: string, name: string, what: string): void {
  if (expected === null || expected === actual) return;
  throw new MwError("invalid_image", `${name} has the ${what} ${actual}, expected ${expected}: it was damaged or replaced`, {
    fix: "fetch it again; if it stays so, the source is wrong",
    facts: { expected, actual },
  });
}

function refusedError(name: string, refused: readonly Refusal[]): MwError {
  const unmarked = refused.find(({ code, reason }) => code === "ENOTSUP" && reason.startsWith("opaque mark"));
  if (unmarked !== undefined) {
    return new MwError("environment", `${name} cannot be kept on the file system of the data directory: it holds no extended attributes, which layers need (${JSON.stringify(unmarked.path)}, ${unmarked.reason})`, {
      fix: "name a data directory on ext4, xfs or btrfs (MW_HOME), or on a tmpfs (as an ordinary user: of Linux 6.6 or later)",
    });
  }
  const some = refused.slice(0, 8).map(({ path, reason }) => `${JSON.stringify(path)} (${reason})`);
  const more = refused.length > some.length ? ` and ${refused.length - some.length} more` : "";
  return new MwError("invalid_image", `${name} holds entries that no image may have: ${some.join(", ")}${more}`, {
    fix: "make the archive from a plain root directory; nothing was kept of this one",
    facts: { refused: refused.length, first: refused[0]?.path ?? "" },
  });
}

function abortError(signal: AbortSignal | undefined): Error {
  const reason: unknown = signal?.reason;
  return reason instanceof Error ? reason : new MwError("cancelled", "unpacking was cancelled");
}

function ended(stream: Readable): Promise<void> {
  return new Promise((resolve, reject) => {
    if (stream.readableEnded) resolve();
    else stream.once("end", resolve).once("error", reject).once("close", () => reject(new Error("closed before its end")));
  });
}

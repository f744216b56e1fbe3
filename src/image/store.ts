/**
 * The image store of one data directory, shared by every process that uses it.
 *
 *   images/layers/    unpacked layers            images/images/  image records        images/names/  names -> image
 *   images/leases/    what living processes use  images/locks/   locks                images/tmp/    work in progress, by process
 *
 * Nothing is registered before it is whole; everything that is registered or leased is whole until the collector, under the store's lock, finds it neither.
 */
import { mkdir, lstat } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { systemRuntime, type Runtime } from "../core/runtime.ts";
import type { RootFilesystem } from "../sandbox/sandbox.ts";
import { AliasTable } from "./aliases.ts";
import { digestOf } from "./digest.ts";
import type { Image, ImageConfig, ImageProgress, ImageReference, ImageStore } from "./image.ts";
import { LayerStore, type LayerRecord } from "./layers.ts";
import { Leases } from "./leases.ts";
import { withLock } from "./lock.ts";
import { imageDigest, imageRecords, nameRecords, type RecordDirectory, type StoredImage, type StoredName } from "./records.ts";
import { fullName, parseImageReference, shortName, type ParsedReference } from "./reference.ts";
import { SharedWork } from "./shared-work.ts";
import { sourceOf } from "./sources.ts";
import { type Source } from "./source.ts";
import { readTree, removeTree } from "./unpacker.ts";

export interface ImageStoreOptions {
  /** Process id of whom the machines end with, where they outlive this process; null: nobody else. */
  readonly keeper?: () => number | null;
  /** The data directory (`MW_HOME`). */
  readonly home: string;
  /** Names mapped to references by the user's configuration; they win over the data directory's table and the shipped one. */
  readonly aliases?: Readonly<Record<string, string>>;
  /** What relative paths in references are relative to. */
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly runtime?: Runtime;
}

export interface ResolveOptions {
  readonly progress?: ImageProgress;
  readonly signal?: AbortSignal;
  /** Asks the source again, even when the image is here: a tag may have moved, a suite been updated. */
  readonly refresh?: boolean;
}

const MAX_ALIAS_HOPS = 8;

export async function openImageStore(options: ImageStoreOptions): Promise<LocalImageStore> {
  const store = new LocalImageStore(options);
  await store.prepare();
  return store;
}

export class LocalImageStore implements ImageStore {
  readonly aliases: AliasTable;
  readonly layers: LayerStore;
  readonly #directory: string;
  readonly #home: string;
  readonly #cwd: string;
  readonly #env: Readonly<Record<string, string | undefined>>;
  readonly #runtime: Runtime;
  readonly #images: RecordDirectory<StoredImage>;
  readonly #names: RecordDirectory<StoredName>;
  readonly #leases: Leases;
  readonly #work = new SharedWork<StoredImage>();

  constructor(options: ImageStoreOptions) {
    this.#home = options.home;
    this.#directory = join(options.home, "images");
    this.#cwd = options.cwd ?? process.cwd();
    this.#env = options.env ?? process.env;
    this.#runtime = options.runtime ?? systemRuntime;
    this.aliases = new AliasTable(join(options.home, "aliases.toml"), options.aliases ?? {});
    this.#images = imageRecords(join(this.#directory, "images"));
    this.#names = nameRecords(join(this.#directory, "names"));
    this.#leases = new Leases(join(this.#directory, "leases"), options.keeper);
    this.layers = new LayerStore(this.#directory, { protect: (digest, work) => this.#locked(async () => (await this.#leases.add([digest]), work())) });
  }

  async prepare(): Promise<void> {
    await mkdir(this.#home, { recursive: true });
    // Set-id programs of images must not be reachable for other users of the host.
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    for (const part of [this.layers, this.#images, this.#names, this.#leases]) await part.prepare();
  }

  async resolve(reference: ImageReference, options: ResolveOptions = {}): Promise<StoredImage> {
    const target = await this.#follow(reference);
    if (target.kind === "digest") {
      const image = await this.#images.get(target.digest);
      if (image === null) throw new MwError("not_found", `there is no image ${target.digest} here`, { fix: "mw image ls lists the images" });
      return this.#hold(image);
    }
    if (target.kind === "name" && options.refresh !== true) {
      const local = await this.#named(fullName(target.name));
      if (local !== null) return this.#hold(local);
    }
    const source = sourceOf(target, { reference, home: this.#home, env: this.#env, layers: this.layers, runtime: this.#runtime });
    const key = options.refresh === true ? `refresh ${source.name}` : source.name;
    return this.#work.run(key, (signal) => this.#load(source, signal, options), options.signal);
  }

  async find(reference: ImageReference): Promise<StoredImage | null> {
    const target = await this.#follow(reference);
    if (target.kind === "digest") return this.#images.get(target.digest);
    if (target.kind === "name") return this.#named(fullName(target.name));
    const source = sourceOf(target, { reference, home: this.#home, env: this.#env, layers: this.layers, runtime: this.#runtime });
    const image = await this.#named(source.name);
    return image !== null && (await this.#isFresh(source, image)) ? image : null;
  }

  async rootFilesystem(image: Image): Promise<RootFilesystem> {
    const stored = await this.#hold(await this.#stored(image));
    const layers = stored.layers.map(({ digest }) => this.layers.path(digest)).toReversed();
    const parts = await Promise.all(stored.hostParts.map(async (target) => ({ target, layers: [...(await directoriesAt(layers, target)), target] })));
    return {
      digest: stored.digest,
      layers,
      parts,
      env: stored.config.env,
      workdir: stored.config.workdir,
      user: stored.config.user,
      entrypoint: stored.config.entrypoint,
      cmd: stored.config.cmd,
    };
  }

  /** Makes an image from a source that is no reference of users, under the source's own name: once, whoever asks for it. */
  provide(source: Source, options: ResolveOptions = {}): Promise<StoredImage> {
    return this.#work.run(source.name, (signal) => this.#load(source, signal, options), options.signal);
  }

  /** What `provide` would find here already; null when it would make it. */
  async provided(source: Source): Promise<StoredImage | null> {
    const image = await this.#named(source.name);
    return image !== null && (await this.#isFresh(source, image)) ? image : null;
  }

  async tag(image: Image, name: string): Promise<void> {
    const parsed = parseImageReference(name, this.#cwd);
    if (parsed.kind !== "name" || parsed.name.digest !== null) {
      throw new MwError("invalid_image", `${JSON.stringify(name)} cannot be the name of an image`, { fix: "write a name such as mine:latest" });
    }
    const stored = await this.#stored(image);
    await this.#locked(() => this.#names.put({ version: 1, name: fullName(parsed.name), digest: stored.digest, fingerprint: null }));
  }

  async list(): Promise<readonly { readonly name: string | null; readonly image: StoredImage; readonly bytes: number }[]> {
    const [images, names] = await Promise.all([this.#images.list(), this.#names.list()]);
    return images.flatMap((image) => {
      const bytes = image.layers.reduce((sum, layer) => sum + layer.bytes, 0);
      const own: readonly (string | null)[] = names.filter(({ digest }) => digest === image.digest).map(({ name }) => displayName(name));
      return (own.length === 0 ? [null] : own).map((name) => ({ name, image, bytes }));
    });
  }

  async remove(nameOrDigest: string): Promise<void> {
    const parsed = parseImageReference(nameOrDigest, this.#cwd);
    await this.#locked(async () => {
      if (parsed.kind === "digest") {
        if ((await this.#images.get(parsed.digest)) === null) throw noSuch(nameOrDigest);
        for (const { name, digest } of await this.#names.list()) if (digest === parsed.digest) await this.#names.delete(name);
        await this.#images.delete(parsed.digest);
        return;
      }
      const name = parsed.kind === "name" ? fullName(parsed.name) : sourceName(parsed);
      if ((await this.#names.get(name)) === null) throw noSuch(nameOrDigest);
      await this.#names.delete(name);
    });
  }

  async collect(): Promise<number> {
    const withdrawn = await this.#locked(async () => {
      const [leased, names, images] = await Promise.all([this.#leases.all(), this.#names.list(), this.#images.list()]);
      const named = new Set(names.map(({ digest }) => digest));
      const keep = new Set(leased);
      for (const image of images) {
        if (named.has(image.digest) || leased.has(image.digest)) for (const { digest } of image.layers) keep.add(digest);
        else await this.#images.delete(image.digest);
      }
      return this.layers.withdraw(keep);
    });
    // Out of the store already: deleting takes long, and nobody needs to wait for it.
    const freed = await withdrawn.dispose();
    await this.layers.sweep();
    return freed;
  }

  async commit(base: Image | null, layerDirectory: string | null, config: ImageConfig, source: string): Promise<StoredImage> {
    const under = base === null ? null : await this.#hold(await this.#stored(base));
    let layer: LayerRecord | null = null;
    if (layerDirectory !== null) {
      layer = (await this.layers.adopt(layerDirectory, readTree(layerDirectory))) ?? (await this.layers.build(() => readTree(layerDirectory), { name: source }));
      await removeTree(layerDirectory);
    }
    const layers = [...(under?.layers ?? []), ...(layer === null ? [] : [{ digest: layer.digest, bytes: layer.bytes }])];
    return this.#register({
      layers,
      config,
      hostParts: under?.hostParts ?? [],
      source,
      ownersFlattened: (under?.ownersFlattened ?? false) || (layer?.flattened ?? 0) > 0,
      digest: null,
    });
  }

  /** Follows aliases. A name that the store has is never looked up in a table. */
  async #follow(reference: ImageReference): Promise<ParsedReference> {
    let text = reference;
    for (let hop = 0; hop <= MAX_ALIAS_HOPS; hop++) {
      const parsed = parseImageReference(text, this.#cwd);
      if (parsed.kind !== "name" || (await this.#names.get(fullName(parsed.name))) !== null) return parsed;
      const next = await this.aliases.lookup(parsed.name);
      if (next === null) return parsed;
      text = next;
    }
    throw new MwError("invalid_image", `the aliases of ${JSON.stringify(reference)} lead in a circle`, { fix: "mw image alias shows the table" });
  }

  async #load(source: Source, signal: AbortSignal, { progress = () => undefined, refresh = false }: ResolveOptions): Promise<StoredImage> {
    const here = async (): Promise<StoredImage | null> => {
      const known = refresh ? null : await this.#named(source.name);
      return known !== null && (await this.#isFresh(source, known)) ? this.#hold(known) : null;
    };
    const known = await here();
    if (known !== null) return known;
    const lock = join(this.#directory, "locks", `image-${digestOf(source.name).slice(7, 47)}`);
    return withLock(
      lock,
      async () => {
        const made = await here();
        if (made !== null) return made;
        const fingerprint = await source.fingerprint();
        const loaded = await source.load({ progress, signal });
        if (loaded.layers.length > LIMITS.imageLayers) {
          throw new MwError("limit_exceeded", `${source.name} has ${loaded.layers.length} layers, more than ${LIMITS.imageLayers}`, { fix: "squash it" });
        }
        const image = await this.#register({
          layers: loaded.layers.map(({ digest, bytes }) => ({ digest, bytes })),
          config: loaded.config,
          hostParts: loaded.hostParts ?? [],
          source: source.label,
          ownersFlattened: loaded.layers.some((layer) => layer.flattened > 0),
          digest: loaded.digest ?? null,
        });
        const { left, lost } = { left: loaded.layers.flatMap((layer) => layer.left), lost: loaded.layers.reduce((sum, layer) => sum + layer.lostAttributes, 0) };
        if (left.length > 0) progress(`${source.label}: ${left.length} device nodes were left out, because only root can make them`);
        if (lost > 0) progress(`${source.label}: ${lost} extended attributes could not be kept here`);
        await this.#locked(() => this.#names.put({ version: 1, name: source.name, digest: image.digest, fingerprint }));
        return image;
      },
      { signal, onWait: (pid) => progress(`waiting for process ${pid}, which is making ${source.label}`) },
    );
  }

  async #isFresh(source: Source, image: StoredImage): Promise<boolean> {
    const record = await this.#names.get(source.name);
    if (record === null || record.digest !== image.digest) return false;
    const found = await Promise.all(image.layers.map(({ digest }) => this.layers.find(digest)));
    return found.every((layer) => layer !== null) && (record.fingerprint === null || record.fingerprint === (await source.fingerprint()));
  }

  async #named(name: string): Promise<StoredImage | null> {
    const record = await this.#names.get(name);
    return record === null ? null : this.#images.get(record.digest);
  }

  async #stored(image: Image): Promise<StoredImage> {
    const stored = await this.#images.get(image.digest);
    if (stored === null) throw new MwError("not_found", `the image ${image.digest} (${image.source}) is no longer here`, { fix: "resolve it again" });
    return stored;
  }

  async #register(of: Omit<StoredImage, "version" | "digest" | "createdAt"> & { readonly digest: ((content: string) => string) | null }): Promise<StoredImage> {
    const content = imageDigest(of.layers, of.config, of.hostParts);
    const digest = of.digest === null ? content : of.digest(content);
    const image: StoredImage = { ...of, version: 1, digest, createdAt: this.#runtime.now() };
    return this.#locked(async () => {
      await this.#leases.add([digest, ...of.layers.map((layer) => layer.digest)]);
      const existing = await this.#images.get(digest);
      if (existing !== null) return existing;
      await this.#images.put(image);
      return image;
    });
  }

  /** Keeps the collector away from the image until this process ends. Cheap after the first time. */
  async #hold(image: StoredImage): Promise<StoredImage> {
    if (this.#leases.holds(image.digest)) return image;
    return this.#locked(async () => {
      const found = await Promise.all(image.layers.map(({ digest }) => this.layers.find(digest)));
      const missing = found.findIndex((layer) => layer === null);
      if (missing >= 0 || (await this.#images.get(image.digest)) === null) {
        throw new MwError("not_found", `the image ${image.digest} (${image.source}) was removed`, { fix: "resolve it again" });
      }
      await this.#leases.add([image.digest, ...image.layers.map(({ digest }) => digest)]);
      return image;
    });
  }

  #locked<T>(work: () => Promise<T>): Promise<T> {
    return withLock(join(this.#directory, "locks", "store"), work);
  }
}

/** What of the layers lies below `target`, topmost first. A link on the way leads out of the layer and ends the search in it. */
async function directoriesAt(layers: readonly string[], target: string): Promise<readonly string[]> {
  const found: string[] = [];
  for (const layer of layers) {
    let path = layer;
    let directory = true;
    for (const part of target.split("/").filter((name) => name !== "")) {
      path = join(path, part);
      directory &&= await lstat(path).then((stats) => stats.isDirectory(), () => false);
    }
    if (directory) found.push(path);
  }
  return found;
}

function displayName(name: string): string {
  const parsed = parseImageReference(name);
  return parsed.kind === "name" ? shortName(parsed.name) : name;
}

function sourceName(parsed: Exclude<ParsedReference, { kind: "name" } | { kind: "digest" }>): string {
  return sourceOf(parsed, null).name;
}

function noSuch(name: string): MwError {
  return new MwError("not_found", `there is no image ${JSON.stringify(name)} here`, { fix: "mw image ls lists the images" });
}

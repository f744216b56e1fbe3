/** What the image store writes down, one small JSON file per thing, replaced by renaming. */
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rename, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { ownName } from "./holder.ts";
import type { Image, ImageConfig } from "./image.ts";
import { parseJson } from "./layers.ts";

export const EMPTY_CONFIG: ImageConfig = { env: {}, workdir: "/", user: "", entrypoint: [], cmd: [], labels: {} };

const StoredImage = z.object({
  version: z.literal(1),
  digest: z.string(),
  layers: z.array(z.object({ digest: z.string(), bytes: z.number() })),
  config: z.object({
    env: z.record(z.string(), z.string()),
    workdir: z.string(),
    user: z.string(),
    entrypoint: z.array(z.string()),
    cmd: z.array(z.string()),
    labels: z.record(z.string(), z.string()),
  }),
  source: z.string(),
  createdAt: z.number(),
  ownersFlattened: z.boolean(),
  /** Directories of the host that show through at the same paths, read-only: of the host image and what was built on it. */
  hostParts: z.array(z.string()),
});
/** An image as it is written down. What `ImageStore` hands out is always one of these. */
export interface StoredImage extends Image {
  readonly version: 1;
  readonly hostParts: readonly string[];
}

const StoredName = z.object({
  version: z.literal(1),
  name: z.string(),
  digest: z.string(),
  /** Equal as long as the source (directory, archive, host) was not changed; null when it cannot change. */
  fingerprint: z.string().nullable(),
});
export type StoredName = z.infer<typeof StoredName>;

/** One kind of record in one directory. */
export class RecordDirectory<T extends object> {
  readonly #directory: string;
  readonly #schema: z.ZodType<T>;
  readonly #key: (record: T) => string;

  constructor(directory: string, schema: z.ZodType<T>, key: (record: T) => string) {
    this.#directory = directory;
    this.#schema = schema;
    this.#key = key;
  }

  async prepare(): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
  }

  async get(key: string): Promise<T | null> {
    return this.#read(this.#file(key));
  }

  async put(record: T): Promise<void> {
    const temporary = join(this.#directory, `.${ownName()}`);
    await writeFile(temporary, `${JSON.stringify(record)}\n`);
    await rename(temporary, this.#file(this.#key(record)));
  }

  async delete(key: string): Promise<void> {
    await unlink(this.#file(key)).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
    });
  }

  async list(): Promise<readonly T[]> {
    const names = (await readdir(this.#directory)).filter((name) => name.endsWith(".json")).sort();
    const records = await Promise.all(names.map((name) => this.#read(join(this.#directory, name))));
    return records.filter((record) => record !== null);
  }

  async #read(file: string): Promise<T | null> {
    const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return null;
      throw error;
    });
    if (text === null) return null;
    const parsed = this.#schema.safeParse(parseJson(text));
    if (!parsed.success) throw new MwError("corrupt", `the record ${file} is damaged`, { fix: `remove ${file}; the image is then made again when it is needed` });
    return parsed.data;
  }

  /** Keys hold slashes and colons; a digest of them does not. */
  #file(key: string): string {
    return join(this.#directory, `${createHash("sha256").update(key).digest("hex").slice(0, 40)}.json`);
  }
}

export function imageRecords(directory: string): RecordDirectory<StoredImage> {
  return new RecordDirectory<StoredImage>(directory, StoredImage, (image) => image.digest);
}

export function nameRecords(directory: string): RecordDirectory<StoredName> {
  return new RecordDirectory<StoredName>(directory, StoredName, (name) => name.name);
}

/** Text that is the same for the same image, whatever order its maps were filled in. */
export function imageDigest(layers: readonly { readonly digest: string }[], config: ImageConfig, hostParts: readonly string[]): string {
  const text = JSON.stringify([
    layers.map(({ digest }) => digest),
    sorted(config.env),
    config.workdir,
    config.user,
    config.entrypoint,
    config.cmd,
    sorted(config.labels),
    ...(hostParts.length > 0 ? [hostParts] : []),
  ]);
  return `sha256:${createHash("sha256").update(text).digest("hex")}`;
}

function sorted(map: Readonly<Record<string, string>>): unknown {
  return Object.entries(map).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
}

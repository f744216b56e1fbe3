/**
 * What living processes use. Each process has one file, `leases/<token>.json`, listing the digests of images and layers that must not be collected; it counts
 * as long as the process lives. Changes are made under the store's lock, so that the collector never misses one.
 */
import { mkdir, readdir, readFile, rename, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { holderLives, ownName } from "./holder.ts";
import { parseJson } from "./layers.ts";

export class Leases {
  readonly #directory: string;
  readonly #held = new Set<string>();
  readonly #file = `${ownName()}.json`;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async prepare(): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
  }

  holds(digest: string): boolean {
    return this.#held.has(digest);
  }

  /** Holds the digests until this process ends. The caller has the store's lock. */
  async add(digests: readonly string[]): Promise<void> {
    if (digests.every((digest) => this.#held.has(digest))) return;
    for (const digest of digests) this.#held.add(digest);
    const temporary = join(this.#directory, `.${ownName()}`);
    await writeFile(temporary, `${JSON.stringify([...this.#held])}\n`);
    await rename(temporary, join(this.#directory, this.#file));
  }

  /** Everything that a living process holds. Files of dead ones are removed. The caller has the store's lock. */
  async all(): Promise<ReadonlySet<string>> {
    const digests = new Set<string>();
    for (const name of await readdir(this.#directory)) {
      const path = join(this.#directory, name);
      if (!holderLives(name.replace(/^\./, ""))) {
        await unlink(path).catch(() => undefined);
        continue;
      }
      if (!name.endsWith(".json")) continue;
      const held = parseJson(await readFile(path, "utf8"));
      if (Array.isArray(held)) for (const digest of held) digests.add(String(digest));
    }
    return digests;
  }
}

/**
 * What living processes use. Each process has one file, `leases/<token>.json`, listing the digests of images and layers that must not be collected; it counts
 * as long as the process lives. Where machines outlive the process, the one that they end with has such a file too. Changes are made under the store's lock, so that the collector never misses one.
 */
import { mkdir, readdir, readFile, rename, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { holderLives, ownName, tokenOf } from "./holder.ts";
import { parseJson } from "./layers.ts";

export class Leases {
  readonly #directory: string;
  readonly #held = new Set<string>();
  readonly #file = `${ownName()}.json`;

  readonly #keeper: () => number | null;
  /** The keeper's file that holds everything; empty: none. */
  #kept = "";

  /** `keeper`: process id of whom the machines end with, where that is not this process. */
  constructor(directory: string, keeper: () => number | null = () => null) {
    this.#directory = directory;
    this.#keeper = keeper;
  }

  async prepare(): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
  }

  holds(digest: string): boolean {
    return this.#held.has(digest) && this.#kept === this.#keeperFile();
  }

  /** Holds the digests until this process ends, and its keeper. The caller has the store's lock. */
  async add(digests: readonly string[]): Promise<void> {
    const kept = this.#keeperFile();
    if (kept === this.#kept && digests.every((digest) => this.#held.has(digest))) return;
    for (const digest of digests) this.#held.add(digest);
    await this.#write(this.#file, this.#held);
    // What an earlier controller's machines use lasts as long as they can.
    if (kept !== "") await this.#write(kept, new Set([...(await this.#read(kept)), ...this.#held]));
    this.#kept = kept;
  }

  #keeperFile(): string {
    const pid = this.#keeper();
    const token = pid === null ? null : tokenOf(pid, "00000000");
    return token === null ? "" : `${token}.json`;
  }

  async #write(name: string, digests: ReadonlySet<string>): Promise<void> {
    const temporary = join(this.#directory, `.${ownName()}`);
    await writeFile(temporary, `${JSON.stringify([...digests])}\n`);
    await rename(temporary, join(this.#directory, name));
  }

  async #read(name: string): Promise<readonly string[]> {
    const held = parseJson(await readFile(join(this.#directory, name), "utf8").catch(() => "[]"));
    return Array.isArray(held) ? held.map(String) : [];
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
      for (const digest of await this.#read(name)) digests.add(digest);
    }
    return digests;
  }
}

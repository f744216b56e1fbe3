/** The runs of each owner, apart from those of all others: `HOME/delivery/OWNER/`. */
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../../core/errors.ts";
import { DeliveryRegistry, type RegistryOptions } from "../../delivery/registry.ts";

export class OwnersRegistries {
  readonly #options: Omit<RegistryOptions, "directory"> & { readonly home: string };
  readonly #registries = new Map<string, Promise<DeliveryRegistry>>();

  constructor(options: Omit<RegistryOptions, "directory"> & { readonly home: string }) {
    this.#options = options;
  }

  /** Opens what an earlier process left: what ran then runs on. */
  async open(): Promise<void> {
    const root = join(this.#options.home, "delivery");
    await mkdir(root, { recursive: true });
    for (const owner of await readdir(root)) await this.of(owner).catch((error: unknown) => this.#options.note(`the runs of ${owner} cannot be opened: ${messageOf(error)}`));
  }

  /** `owner`: one of the server's, whose names are names of files. */
  of(owner: string): Promise<DeliveryRegistry> {
    const known = this.#registries.get(owner);
    if (known !== undefined) return known;
    const opened = DeliveryRegistry.open({ ...this.#options, directory: join(this.#options.home, "delivery", owner) });
    this.#registries.set(owner, opened);
    opened.catch(() => this.#registries.delete(owner));
    return opened;
  }

  async close(): Promise<void> {
    await Promise.allSettled([...this.#registries.values()].map(async (registry) => (await registry).close()));
  }
}

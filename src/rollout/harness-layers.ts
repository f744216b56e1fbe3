/** What the machines of harnesses have over the task's image: each is made once, however many rollouts wait for it. */
import type { Harness, LayerOptions } from "../harness/harness.ts";
import type { LocalImageStore } from "../image/store.ts";
import type { LayerMount } from "../sandbox/sandbox.ts";

export class HarnessLayers {
  readonly #images: LocalImageStore;
  readonly #options: LayerOptions;
  readonly #known = new Map<string, Promise<readonly LayerMount[]>>();

  constructor(images: LocalImageStore, options: LayerOptions) {
    this.#images = images;
    this.#options = options;
  }

  /** A failure is not remembered: what was missing may be there the next time. */
  of(harness: Harness): Promise<readonly LayerMount[]> {
    const known = this.#known.get(harness.name);
    if (known !== undefined) return known;
    const making = harness.layers === undefined ? Promise.resolve([]) : harness.layers(this.#images, this.#options);
    this.#known.set(harness.name, making);
    making.catch(() => this.#known.delete(harness.name));
    return making;
  }
}

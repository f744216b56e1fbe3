/** `@jax-js/jax` on its WebAssembly backend, also on Node 20. */
import type * as Jax from "@jax-js/jax";

let loaded: Promise<typeof Jax> | null = null;

export function loadJax(): Promise<typeof Jax> {
  loaded ??= load();
  return loaded;
}

async function load(): Promise<typeof Jax> {
  addIteratorHelpers();
  const jax = await import("@jax-js/jax");
  // Without a name it looks for a browser.
  await jax.init("wasm");
  jax.defaultDevice("wasm");
  return jax;
}

/** The library uses methods of iterators that Node has from version 22 on. They are added only where this module is loaded: in the learner's own thread, and in tests. */
function addIteratorHelpers(): void {
  // The common prototype of all iterators has no name of its own before Node 22.
  const prototype = Object.getPrototypeOf(Object.getPrototypeOf([][Symbol.iterator]())) as object;
  const helpers = {
    *map(this: Iterable<unknown>, change: (item: unknown, index: number) => unknown) {
      let index = 0;
      for (const item of this) yield change(item, index++);
    },
    *filter(this: Iterable<unknown>, keep: (item: unknown, index: number) => boolean) {
      let index = 0;
      for (const item of this) if (keep(item, index++)) yield item;
    },
    toArray(this: Iterable<unknown>) {
      return [...this];
    },
    every(this: Iterable<unknown>, holds: (item: unknown) => boolean) {
      for (const item of this) if (!holds(item)) return false;
      return true;
    },
    some(this: Iterable<unknown>, holds: (item: unknown) => boolean) {
      for (const item of this) if (holds(item)) return true;
      return false;
    },
  };
  for (const [name, value] of Object.entries(helpers)) if (!(name in prototype)) Object.defineProperty(prototype, name, { value, writable: true, configurable: true });
}

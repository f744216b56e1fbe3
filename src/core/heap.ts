/** A binary heap: the least element first, by the given order. Adding and taking cost the logarithm of its size. */
export class Heap<T> {
  readonly #items: T[] = [];
  readonly #before: (a: T, b: T) => boolean;

  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before;
  }

  get size(): number {
    return this.#items.length;
  }

  peek(): T | undefined {
    return this.#items[0];
  }

  push(item: T): void {
    const items = this.#items;
    let at = items.length;
    items.push(item);
    while (at > 0) {
      const above = (at - 1) >> 1;
      // Both indices are within the array.
      if (!this.#before(item, items[above] as T)) break;
      items[at] = items[above] as T;
      at = above;
    }
    items[at] = item;
  }

  pop(): T | undefined {
    const items = this.#items;
    const top = items[0];
    const last = items.pop();
    if (last !== undefined && items.length > 0) this.#sink(last);
    return top;
  }

  /** Puts an element into the hole at the top and moves it down to its place. */
  #sink(item: T): void {
    const items = this.#items;
    const half = items.length >> 1;
    let at = 0;
    while (at < half) {
      let below = 2 * at + 1;
      if (below + 1 < items.length && this.#before(items[below + 1] as T, items[below] as T)) below++;
      if (!this.#before(items[below] as T, item)) break;
      items[at] = items[below] as T;
      at = below;
    }
    items[at] = item;
  }
}

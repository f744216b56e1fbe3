/** Which task each group is of: all tasks once, in an order drawn from the seed, then all again in another. The same seed and tasks give the same draw, whatever happens in between. */
import { seededRandom } from "../core/runtime.ts";

export class TaskDraw {
  readonly #tasks: readonly string[];
  readonly #seed: string;
  #epoch = -1;
  #order: readonly string[] = [];

  constructor(tasks: readonly string[], seed: string) {
    if (tasks.length === 0) throw new RangeError("there is nothing to draw from");
    this.#tasks = tasks;
    this.#seed = seed;
  }

  /** Of the group with this number, from 0. */
  task(group: number): string {
    const epoch = Math.floor(group / this.#tasks.length);
    if (epoch !== this.#epoch) {
      this.#order = shuffled(this.#tasks, seededRandom(`${this.#seed}/tasks/${epoch}`));
      this.#epoch = epoch;
    }
    // The order has as many as there are tasks.
    return this.#order[group % this.#tasks.length] as string;
  }
}

function shuffled<Item>(items: readonly Item[], random: () => number): readonly Item[] {
  const order = [...items];
  for (let last = order.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    // Both are within the list.
    [order[last], order[other]] = [order[other] as Item, order[last] as Item];
  }
  return order;
}

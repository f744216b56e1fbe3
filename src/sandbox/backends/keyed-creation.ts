/** One machine a key while it lives: who asks with the key of one that is being made, or lives, gets that. */
import type { Sandbox } from "../sandbox.ts";

export class KeyedCreation<T extends Sandbox> {
  readonly #byKey = new Map<string, Promise<T>>();

  /** One that another controller made with the key. */
  know(key: string | undefined, machine: T): void {
    if (key !== undefined) void this.of(key, async () => machine);
  }

  async of(key: string | undefined, make: () => Promise<T>): Promise<T> {
    if (key === undefined) return make();
    const known = this.#byKey.get(key);
    if (known !== undefined) return known;
    const making = make();
    this.#byKey.set(key, making);
    const forget = (): void => {
      if (this.#byKey.get(key) === making) this.#byKey.delete(key);
    };
    making.then((machine) => machine.ended.then(forget), forget);
    return making;
  }
}

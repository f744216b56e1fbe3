/** How long a machine lives on without a word, and whose word that is. */
import type { Runtime } from "../../core/runtime.ts";

export class Lease {
  /** What its backend renews it by, milliseconds. */
  ms: number;
  /** Then its backend does not. */
  ownerRenews = false;
  readonly #runtime: Runtime;
  #endsAt = 0;

  constructor(runtime: Runtime, ms: number) {
    this.#runtime = runtime;
    this.ms = ms;
  }

  /** It lasts so long from now on. */
  begin(ms: number = this.ms): void {
    this.#endsAt = this.#runtime.now() + ms;
  }

  /** Milliseconds; negative when it has ended. */
  get leftMs(): number {
    return this.#endsAt - this.#runtime.now();
  }
}

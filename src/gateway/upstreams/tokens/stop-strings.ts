/** Finds a stop string in text that comes in pieces, wherever tokens were cut. */
export class StopStrings {
  readonly #strings: readonly string[];
  #held = "";

  constructor(strings: readonly string[]) {
    this.#strings = strings.filter((string) => string !== "");
  }

  /** The text that is certain not to belong to a stop string, and the stop string that was met: then nothing comes after. */
  push(text: string): { readonly text: string; readonly met: string | null } {
    if (this.#strings.length === 0) return { text, met: null };
    const all = this.#held + text;
    let first: { readonly at: number; readonly string: string } | null = null;
    for (const string of this.#strings) {
      const at = all.indexOf(string);
      if (at >= 0 && (first === null || at < first.at)) first = { at, string };
    }
    if (first !== null) return { text: all.slice(0, first.at), met: first.string };
    let held = 0;
    for (const string of this.#strings) {
      for (let length = Math.min(string.length - 1, all.length); length > held; length--) if (all.endsWith(string.slice(0, length))) held = length;
    }
    this.#held = all.slice(all.length - held);
    return { text: all.slice(0, all.length - held), met: null };
  }

  /** What was held back and is no stop string after all. */
  end(): string {
    const rest = this.#held;
    this.#held = "";
    return rest;
  }
}

/** Which paths are the agent's to change: those that the task declares, and those that its instruction spells out. */
export class MentionedPaths {
  readonly #declared: readonly string[];
  readonly #instruction: string;

  constructor(declared: readonly string[], instruction: string) {
    this.#declared = declared;
    this.#instruction = instruction;
  }

  declared(path: string): boolean {
    return this.#declared.some((pattern) => {
      if (pattern.endsWith("/**")) return path === pattern.slice(0, -3) || path.startsWith(pattern.slice(0, -2));
      return path === pattern;
    });
  }

  /** True when the instruction has the whole path, or `~/` and the rest of it, not as the beginning of a longer one. */
  named(path: string): boolean {
    const home = /^\/(?:root|home\/[^/]+)(\/.+)$/.exec(path)?.[1];
    return this.#has(path) || (home !== undefined && (this.#has(`~${home}`) || this.#has(`$HOME${home}`)));
  }

  #has(text: string): boolean {
    for (let at = this.#instruction.indexOf(text); at >= 0; at = this.#instruction.indexOf(text, at + 1)) {
      const before = this.#instruction.charAt(at - 1);
      const after = this.#instruction.slice(at + text.length, at + text.length + 2);
      if (!/[\w.~/-]/.test(before) && !/^(?:[\w/~-]|\.\w)/.test(after)) return true;
    }
    return false;
  }
}

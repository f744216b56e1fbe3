/** Puts the pieces of a streamed answer together again, and takes an answer apart into pieces. */
import type { AnswerBlock, Delta } from "../conversation.ts";

type Writable<T> = { -readonly [Key in keyof T]: T[Key] };

/** The blocks that the pieces make, as far as they came. */
export class AnswerSoFar {
  readonly #blocks: Writable<AnswerBlock>[] = [];
  /** Pieces, which are tokens as a rule. */
  #pieces = 0;
  #chars = 0;
  #restarts = 0;
  /** A reasoning block that its signature has closed. */
  #sealed = false;

  get blocks(): readonly AnswerBlock[] {
    return this.#blocks;
  }

  get pieces(): number {
    return this.#pieces;
  }

  get chars(): number {
    return this.#chars;
  }

  /** How often it began anew. */
  get restarts(): number {
    return this.#restarts;
  }

  /** Forgets what came: an attempt that failed. */
  clear(): void {
    this.#restarts++;
    this.#blocks.length = 0;
    this.#pieces = 0;
    this.#chars = 0;
    this.#sealed = false;
  }

  add(delta: Delta): void {
    this.#pieces++;
    const open = this.#blocks.at(-1);
    switch (delta.type) {
      case "text":
      case "reasoning":
      case "refusal":
        this.#chars += delta.text.length;
        if (open?.type === delta.type && !this.#sealed) open.text += delta.text;
        else this.#open(delta.type === "reasoning" ? { type: "reasoning", text: delta.text, signature: null } : { type: delta.type, text: delta.text });
        break;
      case "signature": {
        const { signature, redacted } = delta;
        const block: Writable<AnswerBlock> = open?.type === "reasoning" && !this.#sealed ? open : this.#open({ type: "reasoning", text: "", signature: null });
        Object.assign(block, { signature, ...(redacted === undefined ? {} : { redacted }) });
        this.#sealed = true;
        break;
      }
      case "tool_call":
        this.#open({ ...delta, arguments: "" });
        break;
      case "arguments":
        this.#chars += delta.text.length;
        if (open?.type === "tool_call") open.arguments += delta.text;
        break;
    }
  }

  #open(block: Writable<AnswerBlock>): Writable<AnswerBlock> {
    this.#sealed = false;
    this.#blocks.push(block);
    return block;
  }
}

/** The same blocks as few pieces. */
export function deltasOf(blocks: readonly AnswerBlock[]): readonly Delta[] {
  return blocks.flatMap((block): readonly Delta[] => {
    switch (block.type) {
      case "text":
      case "refusal":
        return block.text === "" ? [] : [{ type: block.type, text: block.text }];
      case "reasoning": {
        const { text, signature, redacted } = block;
        return [...(text === "" ? [] : [{ type: "reasoning", text } as const]), ...(signature === null ? [] : [{ type: "signature", signature, ...(redacted === undefined ? {} : { redacted }) } as const])];
      }
      case "tool_call": {
        const { arguments: text, ...call } = block;
        return [call, ...(text === "" ? [] : [{ type: "arguments", text } as const])];
      }
    }
  });
}

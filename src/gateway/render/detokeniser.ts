/** Text from tokens as they come: bytes of a character that is not complete yet wait for the rest of it. */
import { TextDecoder } from "node:util";
import type { Tokenizer } from "./tokenizer.ts";

export class Detokeniser {
  readonly #tokenizer: Tokenizer;
  /** Special tokens that are spelled out because the reader of the text knows them as marks; the others are no text. */
  readonly #marks: ReadonlySet<number>;
  /** Tokens that end an answer, special or not. */
  readonly #ends: ReadonlySet<number>;
  #decoder = newDecoder();

  constructor(tokenizer: Tokenizer, marks: ReadonlySet<number>, ends: ReadonlySet<number>) {
    this.#tokenizer = tokenizer;
    this.#marks = marks;
    this.#ends = ends;
  }

  /** The characters that `id` completes. */
  push(id: number): string {
    if (!this.#tokenizer.isSpecial(id) && !this.#ends.has(id)) return this.#decoder.decode(this.#tokenizer.bytesOf(id), { stream: true });
    return this.end() + (this.#marks.has(id) ? this.#tokenizer.textOf(id) : "");
  }

  /** What is left of a character whose end never came, as U+FFFD. */
  end(): string {
    const rest = this.#decoder.decode();
    this.#decoder = newDecoder();
    return rest;
  }
}

function newDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

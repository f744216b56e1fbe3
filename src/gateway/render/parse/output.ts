/** The pieces of an answer as a parser finds them: those of one block follow each other. */
export type Piece =
  | { readonly type: "text" | "reasoning"; readonly text: string }
  /** `id`: the model's own; null where it gives none. */
  | { readonly type: "tool_call"; readonly id: string | null; readonly name: string }
  | { readonly type: "arguments"; readonly text: string };

export class Output {
  #calls = 0;
  #pieces: Piece[] = [];
  /** White space that is text if text or the end follows, and framing if a call does. */
  #held = "";
  #hasText = false;

  text(text: string): void {
    const afterCall = this.#calls > 0 && !this.#hasText;
    const all = afterCall ? (this.#held + text).trimStart() : this.#held + text;
    const body = all.trimEnd();
    this.#held = all.slice(body.length);
    if (body === "") return;
    this.#hasText = true;
    this.#add("text", body);
  }

  reasoning(text: string): void {
    if (text !== "") this.#add("reasoning", text);
  }

  call(name: string, id: string | null): void {
    this.#held = "";
    this.#pieces.push({ type: "tool_call", id, name });
    this.#calls += 1;
    this.#hasText = false;
  }

  arguments(text: string): void {
    if (text === "") return;
    const last = this.#pieces.at(-1);
    if (last?.type === "arguments") this.#pieces[this.#pieces.length - 1] = { type: "arguments", text: last.text + text };
    else this.#pieces.push({ type: "arguments", text });
  }

  /** Text that ends the answer keeps its white space. */
  end(): void {
    if (this.#held !== "") this.#add("text", this.#held);
    this.#held = "";
  }

  take(): Piece[] {
    const pieces = this.#pieces;
    this.#pieces = [];
    return pieces;
  }

  #add(type: "text" | "reasoning", text: string): void {
    const last = this.#pieces.at(-1);
    if (last?.type === type) this.#pieces[this.#pieces.length - 1] = { type, text: last.text + text };
    else this.#pieces.push({ type, text });
  }
}

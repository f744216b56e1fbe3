/**
 * The text of an answer while it is still being sampled, for parsers that are written as if all of it were there.
 *
 * A parser is a generator that asks for what it needs and is suspended until the text has come; so the cuts between pieces can make no difference. Text is handed on as soon as no
 * continuation could make it something else.
 */

/** Suspends until more text has come or the end is known. */
export type Step<Result = void> = Generator<void, Result, void>;

export class Input {
  #buffer = "";
  #at = 0;
  #ended = false;
  #record: string | null = null;

  /** Called by whoever drives the parser. */
  feed(text: string): void {
    this.#buffer = this.#buffer.slice(this.#at) + text;
    this.#at = 0;
  }

  finish(): void {
    this.#ended = true;
  }

  /** Remembers what is taken from here on, and `before` with it, until `recorded`. */
  record(before: string): void {
    this.#record = before;
  }

  /** What was taken since `record`; "" when nothing is being remembered. Ends the remembering. */
  recorded(): string {
    const text = this.#record ?? "";
    this.#record = null;
    return text;
  }

  #take(count: number): string {
    const text = this.#buffer.slice(this.#at, this.#at + count);
    this.#at += count;
    if (this.#record !== null) this.#record += text;
    return text;
  }

  /** The next characters, as many as there are up to `count`: fewer only at the end. */
  *peek(count: number): Step<string> {
    while (this.#buffer.length - this.#at < count && !this.#ended) yield;
    return this.#buffer.slice(this.#at, this.#at + count);
  }

  /** Whether nothing more comes. */
  *atEnd(): Step<boolean> {
    return (yield* this.peek(1)) === "";
  }

  /** Takes `text` if it comes next. */
  *accept(text: string): Step<boolean> {
    for (let length = 1; length <= text.length; length++) {
      if ((yield* this.peek(length)) !== text.slice(0, length)) return false;
    }
    this.#take(text.length);
    return true;
  }

  /** Takes one of `texts`, the first that matches; null when none comes next. */
  *acceptOne<Text extends string>(texts: readonly Text[]): Step<Text | null> {
    for (const text of texts) if (yield* this.accept(text)) return text;
    return null;
  }

  *take(count: number): Step<string> {
    return this.#take((yield* this.peek(count)).length);
  }

  /** Takes white space, at most `limit` characters. */
  *space(limit = Number.POSITIVE_INFINITY): Step<string> {
    let taken = "";
    while (taken.length < limit && /^\s$/.test(yield* this.peek(1))) taken += yield* this.take(1);
    return taken;
  }

  /** Hands text on until one of `marks` comes, which is taken; null at the end of the answer. Of two marks at one place the longer one counts. */
  *until<Mark extends string>(marks: readonly Mark[], emit: (text: string) => void): Step<Mark | null> {
    for (;;) {
      const rest = this.#buffer.slice(this.#at);
      const found = earliest(rest, marks);
      const held = this.#ended ? 0 : beginnings(rest, marks);
      if (found !== null && (found.at + found.mark.length < rest.length || this.#ended || !marks.some((mark) => mark !== found.mark && mark.startsWith(found.mark)))) {
        emit(this.#take(found.at));
        this.#take(found.mark.length);
        return found.mark;
      }
      const safe = found === null ? rest.length - held : Math.min(found.at, rest.length - held);
      if (safe > 0) emit(this.#take(safe));
      if (this.#ended && found === null) return null;
      yield;
    }
  }
}

function earliest<Mark extends string>(text: string, marks: readonly Mark[]): { readonly at: number; readonly mark: Mark } | null {
  let best: { readonly at: number; readonly mark: Mark } | null = null;
  for (const mark of marks) {
    const at = text.indexOf(mark);
    if (at >= 0 && (best === null || at < best.at || (at === best.at && mark.length > best.mark.length))) best = { at, mark };
  }
  return best;
}

/** How many characters at the end of `text` may be the beginning of a mark. */
function beginnings(text: string, marks: readonly string[]): number {
  let held = 0;
  for (const mark of marks) {
    for (let length = Math.min(mark.length - 1, text.length); length > held; length--) {
      if (text.endsWith(mark.slice(0, length))) {
        held = length;
        break;
      }
    }
  }
  return held;
}

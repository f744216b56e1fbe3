/** JSON inside an answer, read as it comes. */
import type { Input, Step } from "./input.ts";

/** `whole`: the value ended; `broken`: what comes next cannot continue it (nothing of that is taken); `cut`: the answer ended within it. */
export type JsonEnd = "whole" | "broken" | "cut";

const MAX_DEPTH = 200;

/** Takes one JSON value and hands its text on as it was sampled. */
export function* readValue(input: Input, emit: (text: string) => void, depth = 0): Step<JsonEnd> {
  const first = yield* input.peek(1);
  if (first === "") return "cut";
  if (first === '"') return yield* readString(input, emit);
  if ((first === "{" || first === "[") && depth < MAX_DEPTH) return yield* readContainer(input, emit, first, depth);
  return yield* readScalar(input, emit);
}

function* readContainer(input: Input, emit: (text: string) => void, open: "{" | "[", depth: number): Step<JsonEnd> {
  const close = open === "{" ? "}" : "]";
  emit(yield* input.take(1));
  emit(yield* input.space());
  if (yield* input.accept(close)) {
    emit(close);
    return "whole";
  }
  for (;;) {
    if (open === "{") {
      if ((yield* input.peek(1)) !== '"') return (yield* input.atEnd()) ? "cut" : "broken";
      const key = yield* readString(input, emit);
      if (key !== "whole") return key;
      emit(yield* input.space());
      if (!(yield* input.accept(":"))) return (yield* input.atEnd()) ? "cut" : "broken";
      emit(":");
      emit(yield* input.space());
    }
    const value = yield* readValue(input, emit, depth + 1);
    if (value !== "whole") return value;
    emit(yield* input.space());
    const next = yield* input.acceptOne([",", close]);
    if (next === null) return (yield* input.atEnd()) ? "cut" : "broken";
    emit(next);
    if (next === close) return "whole";
    emit(yield* input.space());
  }
}

/** Raw control characters within are let pass, as models write them. */
export function* readString(input: Input, emit: (text: string) => void): Step<JsonEnd> {
  emit(yield* input.take(1));
  for (;;) {
    const mark = yield* input.until(['"', "\\"], emit);
    if (mark === null) return "cut";
    emit(mark);
    if (mark === '"') return "whole";
    const escaped = yield* input.take(1);
    if (escaped === "") return "cut";
    emit(escaped);
  }
}

function* readScalar(input: Input, emit: (text: string) => void): Step<JsonEnd> {
  let text = "";
  while (/^[-+.\w]$/.test(yield* input.peek(1))) text += yield* input.take(1);
  emit(text);
  if (/^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/.test(text)) return "whole";
  return (yield* input.atEnd()) ? "cut" : "broken";
}

/** The string that `text` spells; null where it spells none. */
export function stringOf(text: string): string | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "string" ? value : null;
  } catch {
    return null;
  }
}

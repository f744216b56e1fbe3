/** Llama 3.1 to 3.3: the whole answer is `{"name": "f", "parameters": {...}}`, at times after `<|python_tag|>`; several are parted by semicolons. */
import type { CallContext, ToolSyntax } from "../parse/answer.ts";
import type { Step } from "../parse/input.ts";
import { readCallObject } from "../parse/json-call.ts";

const TAG = "<|python_tag|>";

export const LLAMA: ToolSyntax = {
  marks: [TAG],
  read: readCalls,
  *leading(context) {
    yield* context.input.space();
    yield* context.input.accept(TAG);
    return yield* readCalls(context);
  },
};

function* readCalls(context: CallContext): Step<boolean> {
  const { input, output } = context;
  let isCall = false;
  for (;;) {
    yield* input.space();
    const end = yield* readCallObject(context);
    if (end === "none") {
      // What follows a call and is none is text.
      if (isCall) output.text(input.recorded());
      return isCall;
    }
    isCall = true;
    if (end === "broken") yield* input.until([], (text) => output.arguments(text));
    yield* input.space();
    if (!(yield* input.accept(";"))) return true;
    input.record(";");
  }
}

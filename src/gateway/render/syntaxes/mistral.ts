/** Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`; from tokenizer v11 on `[TOOL_CALLS]f[ARGS]{...}` for each call, at times with `[CALL_ID]id`. */
import { announce, TOOL_NAME, type CallContext, type ToolSyntax } from "../parse/answer.ts";
import type { Step } from "../parse/input.ts";
import { readValue } from "../parse/json.ts";
import { readCallObject } from "../parse/json-call.ts";

export const MISTRAL: ToolSyntax = {
  marks: ["[TOOL_CALLS]"],
  *read(context) {
    const { input, output } = context;
    yield* input.space();
    if (yield* input.accept("[")) return yield* readList(context);
    let name = "";
    let id = "";
    let next = yield* input.until(["[ARGS]", "[CALL_ID]"], (text) => (name += text));
    if (next === "[CALL_ID]") next = yield* input.until(["[ARGS]"], (text) => (id += text));
    if (next === null || !TOOL_NAME.test(name.trim())) return false;
    announce(context, name.trim(), id.trim() === "" ? null : id.trim());
    yield* input.space();
    if ((yield* readValue(input, (text) => output.arguments(text))) === "broken") yield* input.until([], (text) => output.arguments(text));
    return true;
  },
};

function* readList(context: CallContext): Step<boolean> {
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
    if ((yield* input.acceptOne([",", "]"])) !== ",") return true;
    input.record(",");
  }
}

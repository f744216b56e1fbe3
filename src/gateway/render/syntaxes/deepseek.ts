/**
 * DeepSeek V3 and R1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>`;
 * V3.1: the name stands where `function` stood, and the arguments follow the separator bare.
 */
import { announce, TOOL_NAME, type CallContext, type ToolSyntax } from "../parse/answer.ts";
import type { Step } from "../parse/input.ts";
import { readValue } from "../parse/json.ts";

const CALL = "<｜tool▁call▁begin｜>";
const CALL_END = "<｜tool▁call▁end｜>";
const END = "<｜tool▁calls▁end｜>";
const SEPARATOR = "<｜tool▁sep｜>";

export const DEEPSEEK: ToolSyntax = {
  marks: ["<｜tool▁calls▁begin｜>", CALL],
  *read(context, mark) {
    const { input } = context;
    if (mark === CALL) return yield* readCall(context);
    yield* input.space();
    if (!(yield* input.accept(CALL)) || !(yield* readCall(context))) return false;
    yield* input.space();
    yield* input.accept(END);
    return true;
  },
};

/** Further calls of a section are met by their own mark. */
function* readCall(context: CallContext): Step<boolean> {
  const { input, output } = context;
  let head = "";
  if ((yield* input.until([SEPARATOR, CALL_END], (text) => (head += text))) !== SEPARATOR) return false;
  yield* input.space();
  if ((yield* input.peek(1)) !== "{") {
    head = "";
    if ((yield* input.until(["\n", CALL_END], (text) => (head += text))) !== "\n") return false;
    yield* input.space();
    yield* input.accept("```json");
    yield* input.space();
  }
  if (!TOOL_NAME.test(head.trim())) return false;
  announce(context, head.trim());
  yield* readValue(input, (text) => output.arguments(text));
  yield* input.space();
  yield* input.accept("```");
  yield* input.space();
  if (!(yield* input.accept(CALL_END))) yield* input.until([CALL_END, END], (text) => output.arguments(text));
  yield* input.space();
  yield* input.accept(END);
  return true;
}

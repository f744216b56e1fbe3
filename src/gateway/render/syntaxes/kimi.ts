/** Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|><|tool_calls_section_end|>`. The id is the model's own. */
import { announce, TOOL_NAME, type ToolSyntax } from "../parse/answer.ts";
import { readValue } from "../parse/json.ts";

const SECTION = "<|tool_calls_section_begin|>";
const CALL = "<|tool_call_begin|>";
const CALL_END = "<|tool_call_end|>";
const END = "<|tool_calls_section_end|>";
const ARGUMENTS = "<|tool_call_argument_begin|>";

export const KIMI: ToolSyntax = {
  marks: [SECTION, CALL],
  *read(context, mark) {
    const { input, output } = context;
    if (mark === SECTION) {
      yield* input.space();
      if (!(yield* input.accept(CALL))) return false;
    }
    let id = "";
    if ((yield* input.until([ARGUMENTS, CALL_END], (text) => (id += text))) !== ARGUMENTS) return false;
    id = id.trim();
    const name = /^(?:functions\.)?(.+?)(?::\d+)?$/.exec(id)?.[1] ?? "";
    if (!TOOL_NAME.test(name)) return false;
    announce(context, name, id);
    yield* input.space();
    yield* readValue(input, (text) => output.arguments(text));
    yield* input.space();
    if (!(yield* input.accept(CALL_END))) yield* input.until([CALL_END, END], (text) => output.arguments(text));
    yield* input.space();
    yield* input.accept(END);
    return true;
  },
};

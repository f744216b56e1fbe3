/** Qwen3-Coder, Qwen 3.5: `<tool_call>\n<function=f>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>`, the outer tag at times forgotten. */
import { announce, TOOL_NAME, type CallContext, type ToolSyntax } from "../parse/answer.ts";
import { ArgumentsWriter } from "../parse/arguments-writer.ts";
import type { Step } from "../parse/input.ts";

const OUTER = "<tool_call>";
const OUTER_END = "</tool_call>";
const FUNCTION = "<function=";

export const QWEN_XML: ToolSyntax = {
  marks: [OUTER, FUNCTION],
  *read(context, mark) {
    const { input, output } = context;
    if (mark === OUTER) {
      yield* input.space();
      if (!(yield* input.accept(FUNCTION))) return false;
    }
    if (!(yield* readFunction(context))) return false;
    for (;;) {
      yield* input.space();
      if (yield* input.accept(OUTER_END)) return true;
      if (mark !== OUTER || (yield* input.atEnd())) return true;
      if ((yield* input.accept(FUNCTION)) && (yield* readFunction(context))) continue;
      yield* input.until([OUTER_END], (text) => output.arguments(text));
      return true;
    }
  },
};

function* readFunction(context: CallContext): Step<boolean> {
  const { input, output, schema } = context;
  const name = yield* readTagValue(context);
  if (name === null || !TOOL_NAME.test(name)) return false;
  announce(context, name);
  const writer = new ArgumentsWriter(output, schema(name));
  for (;;) {
    yield* input.space();
    const next = yield* input.acceptOne(["<parameter=", "</function>"]);
    if (next === "</function>") {
      writer.end();
      return true;
    }
    const key = next === null ? null : yield* readTagValue(context);
    if (key === null) return true;
    yield* input.accept("\n");
    if (!(yield* writer.value(input, key, ["\n</parameter>", "</parameter>"]))) return true;
  }
}

/** `value>`; null where it does not end on its line. */
function* readTagValue({ input }: CallContext): Step<string | null> {
  let value = "";
  return (yield* input.until([">", "\n"], (text) => (value += text))) === ">" ? value.trim() : null;
}

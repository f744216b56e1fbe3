/** Qwen 2.5 and 3, QwQ, Hermes: `<tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>`. */
import type { ToolSyntax } from "../parse/answer.ts";
import { readCallObject } from "../parse/json-call.ts";

const CLOSE = "</tool_call>";

export const HERMES: ToolSyntax = {
  marks: ["<tool_call>"],
  *read(context) {
    const { input, output } = context;
    yield* input.space();
    const end = yield* readCallObject(context);
    if (end === "none") return false;
    yield* input.space();
    if (!(yield* input.accept(CLOSE))) yield* input.until([CLOSE], (text) => output.arguments(text));
    return true;
  },
};

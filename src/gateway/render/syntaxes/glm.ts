/** GLM 4.5 and later: `<tool_call>f\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`, from 4.7 on without the line breaks. */
import { announce, TOOL_NAME, type ToolSyntax } from "../parse/answer.ts";
import { ArgumentsWriter } from "../parse/arguments-writer.ts";

const CLOSE = "</tool_call>";

export const GLM: ToolSyntax = {
  marks: ["<tool_call>"],
  *read(context) {
    const { input, output, schema } = context;
    yield* input.space();
    let name = "";
    let next: string | null = yield* input.until(["\n", "<arg_key>", CLOSE], (text) => (name += text));
    name = name.trim();
    if (next === null || !TOOL_NAME.test(name)) return false;
    announce(context, name);
    const writer = new ArgumentsWriter(output, schema(name));
    for (;;) {
      if (next !== "<arg_key>" && next !== CLOSE) {
        yield* input.space();
        next = yield* input.acceptOne(["<arg_key>", CLOSE]);
      }
      if (next === CLOSE) {
        writer.end();
        return true;
      }
      let key = "";
      const isPair = next !== null && (yield* input.until(["</arg_key>"], (text) => (key += text))) !== null;
      if (isPair) yield* input.space();
      if (!isPair || !(yield* input.accept("<arg_value>"))) break;
      if (!(yield* writer.value(input, key.trim(), ["</arg_value>"]))) return true;
      next = null;
    }
    yield* input.until([CLOSE], (text) => output.arguments(text));
    return true;
  },
};

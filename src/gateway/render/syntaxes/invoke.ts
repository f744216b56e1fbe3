/**
 * Calls as tags of the same shape in two families. MiniMax M2: `<minimax:tool_call>\n<invoke name="f">\n<parameter name="p">value</parameter>\n</invoke>\n</minimax:tool_call>`.
 * DeepSeek V3.2 and V4: the same with `｜DSML｜` in each tag, in `function_calls` or `tool_calls`, and `string="true"` or `"false"` on each parameter, which says how to read it.
 */
import { announce, TOOL_NAME, type CallContext, type ToolSyntax } from "../parse/answer.ts";
import { ArgumentsWriter } from "../parse/arguments-writer.ts";
import type { Step } from "../parse/input.ts";

export const MINIMAX: ToolSyntax = invokeSyntax("", ["minimax:tool_call"]);
export const DSML: ToolSyntax = invokeSyntax("｜DSML｜", ["｜DSML｜function_calls", "｜DSML｜tool_calls"]);

function invokeSyntax(prefix: string, sections: readonly string[]): ToolSyntax {
  const invoke = `<${prefix}invoke name="`;
  const ends = sections.map((section) => `</${section}>`);
  return {
    marks: sections.map((section) => `<${section}>`),
    *read(context) {
      const { input, output } = context;
      yield* input.space();
      if (!(yield* input.accept(invoke)) || !(yield* readInvoke(context, prefix))) return false;
      for (;;) {
        yield* input.space();
        if ((yield* input.acceptOne(ends)) !== null || (yield* input.atEnd())) return true;
        if ((yield* input.accept(invoke)) && (yield* readInvoke(context, prefix))) continue;
        yield* input.until(ends, (text) => output.arguments(text));
        return true;
      }
    },
  };
}

/** Behind `name="`. */
function* readInvoke(context: CallContext, prefix: string): Step<boolean> {
  const { input, output, schema } = context;
  const name = yield* readQuoted(context);
  if (name === null || !TOOL_NAME.test(name) || !(yield* input.accept(">"))) return false;
  announce(context, name);
  const writer = new ArgumentsWriter(output, schema(name));
  const [parameter, end] = [`<${prefix}parameter name="`, `</${prefix}invoke>`];
  for (;;) {
    yield* input.space();
    const next = yield* input.acceptOne([parameter, end]);
    if (next === end) {
      writer.end();
      return true;
    }
    const key = next === null ? null : yield* readQuoted(context);
    if (key === null) return true;
    let attributes = "";
    if ((yield* input.until([">"], (text) => (attributes += text))) === null) return true;
    const isString = /string="(true|false)"/.exec(attributes)?.[1];
    const types = isString === undefined ? undefined : isString === "true" ? ["string"] : ["json"];
    if (!(yield* writer.value(input, key, [`</${prefix}parameter>`], types))) return true;
  }
}

/** `value"`; null where it does not end on its line. */
function* readQuoted({ input }: CallContext): Step<string | null> {
  let value = "";
  return (yield* input.until(['"', "\n"], (text) => (value += text))) === '"' ? value : null;
}

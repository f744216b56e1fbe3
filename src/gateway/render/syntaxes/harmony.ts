/**
 * gpt-oss: an answer is a row of messages, `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. Analysis is reasoning; a message that is
 * addressed `to=functions.f` is a call, whose arguments are its content; the rest is text. The prompt ends with `<|start|>assistant`.
 */
import type { AnswerParser } from "../parse/answer.ts";
import { TOOL_NAME } from "../parse/answer.ts";

const MESSAGE = "<|message|>";
const ENDS = ["<|end|>", "<|return|>", "<|call|>", "<|start|>"];

/** Without tools nothing is a call: it goes out as text. */
export const parseHarmony =
  (hasTools: boolean): AnswerParser =>
  function* parse({ input, output }) {
    for (;;) {
      let head = "";
      const isMessage = (yield* input.until([MESSAGE], (text) => (head += text))) !== null;
      if (!isMessage) {
        output.text(head);
        break;
      }
      const tool = /\bto=functions\.([^\s<]+)/.exec(head)?.[1] ?? null;
      const channel = /<\|channel\|>\s*(\w+)/.exec(head)?.[1] ?? null;
      // A head that names neither channel nor recipient is none: nothing of it is lost.
      if (tool === null && channel === null) output.text(head + MESSAGE);
      if (tool !== null && hasTools && TOOL_NAME.test(tool)) {
        output.call(tool, null);
        yield* input.until(ENDS, (text) => output.arguments(text));
      } else yield* input.until(ENDS, (text) => (channel === "analysis" ? output.reasoning(text) : output.text(text)));
      if (yield* input.atEnd()) break;
    }
    output.end();
  };

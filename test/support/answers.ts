/** Answers as models sample them, with what is hard about each. */
import type { Answer, AnswerBlock } from "../../src/gateway/conversation.ts";

export function answerOf(blocks: readonly AnswerBlock[], more: Partial<Answer> = {}): Answer {
  const called = blocks.some((block) => block.type === "tool_call");
  return { blocks, finish: called ? "tool_calls" : "stop", stopSequence: null, usage: { promptTokens: 20, completionTokens: 12, cachedTokens: 8, reasoningTokens: 3 }, logprobs: null, ...more };
}

export const call = (id: string, name: string, text: string): AnswerBlock => ({ type: "tool_call", id, name, arguments: text });

/** Each by what it shows. */
export const ANSWERS: Readonly<Record<string, Answer>> = {
  text: answerOf([{ type: "text", text: "北京 😀 \"quotes\" \\ and\nlines " }]),
  nothing: answerOf([]),
  "reasoning only": answerOf([{ type: "reasoning", text: "  thinking\n", signature: null }]),
  "reasoning, text and calls": answerOf([
    { type: "reasoning", text: "I need both.", signature: null },
    { type: "text", text: "Looking." },
    call("call_a", "bash", '{"command": "ls \\u00e9", "timeout": 1.0}'),
    call("call_b", "bash", '{ "command" : "pwd" }'),
    call("call_c", "now", ""),
    call("call_d", "now", " \n"),
    call("call_e", "now", "{}"),
  ]),
  "arguments that are no object": answerOf([call("call_a", "bash", '{"command": "echo'), call("call_b", "bash", "[1]"), call("call_c", "bash", "ls -la"), call("call_d", "bash", " null")]),
  refusal: answerOf([{ type: "refusal", text: "No." }], { finish: "refusal" }),
  "cut off by length": answerOf([{ type: "text", text: "Once upon" }], { finish: "length" }),
  "cut off in a call": answerOf([call("call_a", "write", '{"path": "a", "content": "xx')], { finish: "length" }),
  "window full": answerOf([{ type: "text", text: "Once" }], { finish: "context" }),
  filtered: answerOf([{ type: "text", text: "On" }], { finish: "content_filter" }),
  "stopped by a sequence": answerOf([{ type: "text", text: "one two" }], { finish: "stop_sequence", stopSequence: "three" }),
  "not counted": answerOf([{ type: "text", text: "x" }], { usage: null }),
};

/** Answers drawn by fast-check. */
import * as fc from "fast-check";
import type { AnswerBlock } from "../../src/gateway/conversation.ts";

const text = fc.oneof(
  fc.string({ unit: "grapheme", minLength: 1, maxLength: 20 }),
  fc.constantFrom("data: x\n\n", "\r\n", "北京😀", "\u2028", '{"a":1}', " ", "<think>", "mw1.", "\u0000", "event: error\n"),
);
const json = fc.jsonValue({ maxDepth: 3 });
const spacing = fc.constantFrom(0, 1, 2);
const args = fc.oneof(
  fc.tuple(fc.dictionary(fc.string({ maxLength: 6 }), json, { maxKeys: 4 }), spacing).map(([value, indent]) => JSON.stringify(value, null, indent)),
  fc.constantFrom("{}", '{"a": 1.0}', '{"n":12345678901234567890}', '{"a":"\\u0065"}', '{"command":"ls', "[1]", "null", "not json", '{"__proto__":1}', '{"a":1,"a":2}'),
  text,
);
const name = fc.constantFrom("exec_command", "read-file", "a.b");

export interface BlockKinds {
  readonly refusal: boolean;
  readonly custom: boolean;
  readonly signature: boolean;
}

/** Blocks as engines make them: none is empty, and no two texts of a kind are neighbours. */
export function blocksArbitrary(kinds: BlockKinds): fc.Arbitrary<readonly AnswerBlock[]> {
  const one: fc.Arbitrary<AnswerBlock>[] = [
    text.map((value) => ({ type: "text", text: value })),
    text.map((value) => ({ type: "reasoning", text: value, signature: null })),
    fc.tuple(name, args).map(([called, value]) => ({ type: "tool_call", id: "", name: called, arguments: value })),
  ];
  if (kinds.refusal) one.push(text.map((value) => ({ type: "refusal", text: value })));
  if (kinds.custom) one.push(fc.tuple(name, text).map(([called, value]) => ({ type: "tool_call", id: "", name: called, arguments: value, kind: "custom", namespace: "functions" })));
  if (kinds.signature) one.push(fc.tuple(text, text).map(([value, signature]) => ({ type: "reasoning", text: value, signature })));
  return fc.array(fc.oneof(...one), { maxLength: 7 }).map((blocks) =>
    blocks
      .filter((block, index) => {
        const before = blocks[index - 1];
        return block.type === "tool_call" || before?.type !== block.type;
      })
      .map((block, index) => (block.type === "tool_call" ? withId(block, `call_${index}`) : block)),
  );
}

function withId(block: AnswerBlock & { readonly type: "tool_call" }, id: string): AnswerBlock {
  return { ...block, id };
}

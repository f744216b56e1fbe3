/** Whole answers as the pieces of a stream. */
import type { AnswerBlock, Delta } from "../conversation.ts";

/** One piece for each text, two for each tool call; joined they are `blocks`. */
export function deltasOf(blocks: readonly AnswerBlock[]): readonly Delta[] {
  return blocks.flatMap((block): readonly Delta[] => {
    switch (block.type) {
      case "text":
      case "refusal":
        return [{ type: block.type, text: block.text }];
      case "reasoning": {
        const { text, signature, redacted } = block;
        if (signature === null) return [{ type: "reasoning", text }];
        return [{ type: "reasoning", text }, { type: "signature", signature, ...(redacted === true ? { redacted } : {}) }];
      }
      case "tool_call": {
        const { arguments: text, ...opening } = block;
        return [opening, { type: "arguments", text }];
      }
    }
  });
}

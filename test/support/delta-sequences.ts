/** Pieces in any order, also in orders that no engine has: what encoders of streams must stand. */
import * as fc from "fast-check";
import type { Delta } from "../../src/gateway/conversation.ts";

const text = fc.oneof({ weight: 4, arbitrary: fc.string({ unit: "grapheme", maxLength: 8 }) }, { weight: 1, arbitrary: fc.constantFrom("", " ", "\n\n", "data: {}", "{}", '{"a":', "1}") });

export const deltaSequences: fc.Arbitrary<readonly Delta[]> = fc
  .array(
    fc.oneof(
      { weight: 4, arbitrary: fc.tuple(fc.constantFrom("text" as const, "reasoning" as const, "refusal" as const), text).map(([type, value]): Delta => ({ type, text: value })) },
      { weight: 3, arbitrary: text.map((value): Delta => ({ type: "arguments", text: value })) },
      { weight: 2, arbitrary: fc.constantFrom<Delta>({ type: "tool_call", id: "", name: "f" }, { type: "tool_call", id: "", name: "f", kind: "custom", namespace: "functions" }) },
      { weight: 1, arbitrary: fc.tuple(text, fc.boolean()).map(([signature, redacted]): Delta => (redacted ? { type: "signature", signature, redacted } : { type: "signature", signature })) },
    ),
    { maxLength: 25 },
  )
  .map((deltas) => deltas.map((delta, index) => (delta.type === "tool_call" ? withId(delta, `call_${index}`) : delta)));

function withId(delta: Delta & { readonly type: "tool_call" }, id: string): Delta {
  return { ...delta, id };
}

import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AnswerBlock } from "../conversation.ts";
import { AnswerSoFar, deltasOf } from "./answer-so-far.ts";
import { requestDigest } from "./request-digest.ts";

const text = fc.string({ minLength: 1, maxLength: 12 });
const block = fc.oneof(
  fc.record({ type: fc.constantFrom("text" as const, "refusal" as const), text }),
  fc.record({ type: fc.constant("reasoning" as const), text, signature: fc.option(text) }),
  fc.record({ type: fc.constant("reasoning" as const), text: fc.constant(""), signature: text, redacted: fc.constant(true) }),
  fc.record({ type: fc.constant("tool_call" as const), id: text, name: text, arguments: fc.string() }),
);
/** Neighbours of one kind are one block, unless a signature has closed the first. */
const blocks = fc.array(block, { maxLength: 6 }).map((all): readonly AnswerBlock[] => all.filter((one, at) => one.type === "tool_call" || all[at - 1]?.type !== one.type));

describe("AnswerSoFar", () => {
  it("makes the same blocks of their pieces, however texts are cut", () => {
    fc.assert(
      fc.property(blocks, fc.nat({ max: 5 }), (expected, cut) => {
        const soFar = new AnswerSoFar();
        for (const delta of deltasOf(expected)) {
          if (!("text" in delta) || cut === 0) soFar.add(delta);
          else for (let at = 0; at < delta.text.length; at += cut) soFar.add({ ...delta, text: delta.text.slice(at, at + cut) });
        }
        expect(soFar.blocks).toEqual(expected);
      }),
    );
  });
});

describe("requestDigest", () => {
  const route = { model: null, stream: null };

  it("does not depend on the order of keys, nor on whether the answer is streamed", () => {
    const digest = requestDigest("openai-responses", route, { input: [{ a: 1, b: { c: 2, d: 3 } }], stream: true });
    expect(requestDigest("openai-responses", { ...route, stream: true }, { stream: false, input: [{ b: { d: 3, c: 2 }, a: 1 }] })).toBe(digest);
  });

  it("depends on everything else", () => {
    const bodies = [{ input: [1, 2] }, { input: [2, 1] }, { input: [1, 2], x: null }, { input: "1,2" }, [1, 2], null, "null", 0];
    const digests = bodies.map((body) => requestDigest("openai-chat", route, body));
    expect(new Set([...digests, requestDigest("anthropic", route, bodies[0]), requestDigest("openai-chat", { ...route, model: "m" }, bodies[0])]).size).toBe(bodies.length + 2);
  });
});

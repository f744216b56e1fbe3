import * as fc from "fast-check";
import { expect, it } from "vitest";
import { answerOf } from "../../../../test/support/answers.ts";
import { deltaSequences } from "../../../../test/support/delta-sequences.ts";
import type { AnswerBlock } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { AnswerSoFar } from "../../session/answer-so-far.ts";
import { gemini } from "./codec.ts";

const ROUTE = { model: "m", stream: true };
const context = { callId: "c", createdAt: 1_700_000_000_000, request: gemini.decode({ contents: [{ parts: [{ text: "hi" }] }] }, ROUTE) };

interface Piece {
  readonly candidates: readonly { readonly content: { readonly parts: readonly object[] }; readonly finishReason?: string }[];
  readonly usageMetadata?: object;
}

const read = (written: string): readonly Piece[] => {
  expect(written).toMatch(/^(data: .+\n\n)*$/);
  return written.split("\n\n").slice(0, -1).map((block) => JSON.parse(block.slice("data: ".length)) as Piece);
};

/** What the parts are when they come back. */
function sentBack(parts: readonly object[]): readonly AnswerBlock[] {
  const [, message] = gemini.decode({ contents: [{ parts: [{ text: "hi" }] }, { role: "model", parts }] }, ROUTE).messages;
  return message?.role === "assistant" ? message.content : [];
}

it("makes pieces of pieces in any order: each has a part, the last alone an end, and they come back as the answer", () => {
  fc.assert(
    fc.property(deltaSequences, (deltas) => {
      const stream = gemini.stream(context);
      const answer = new AnswerSoFar();
      let written = stream.start(null);
      for (const delta of deltas) {
        answer.add(delta);
        written += stream.delta(delta);
      }
      const pieces = read(written + stream.end(answerOf(answer.blocks)));
      for (const [index, { candidates, usageMetadata }] of pieces.entries()) {
        const last = index === pieces.length - 1;
        expect(candidates).toHaveLength(1);
        expect(candidates[0]?.content.parts).toHaveLength(1);
        expect([candidates[0]?.finishReason, usageMetadata !== undefined]).toEqual(last ? ["STOP", true] : [undefined, false]);
      }
      const whole = gemini.encode(answerOf(answer.blocks), context) as Piece;
      const streamed = pieces.flatMap(({ candidates }) => candidates[0]?.content.parts ?? []);
      expect(sentBack(streamed)).toEqual(sentBack(whole.candidates[0]?.content.parts ?? []));
    }),
    { numRuns: 300 },
  );
});

it("fails in both framings in a form that is no answer", () => {
  const failure = new GatewayFailure("truncated", "gone");
  for (const before of [[], [{ type: "text" as const, text: "half" }]]) {
    const events = gemini.stream(context);
    const written = before.map((delta) => events.delta(delta)).join("") + events.fail(failure);
    expect(JSON.parse(written.split("\n\n").at(-1) ?? "")).toMatchObject({ error: { code: 502, status: "UNAVAILABLE" } });
    const array = gemini.streamJson?.(context);
    const list = JSON.parse(before.map((delta) => array?.delta(delta)).join("") + (array?.fail(failure) ?? "")) as readonly object[];
    expect(list.length).toBe(before.length + 1);
    expect(list.at(-1)).toHaveProperty("error");
  }
});

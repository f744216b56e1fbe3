import * as fc from "fast-check";
import { expect, it } from "vitest";
import { deltaSequences } from "../../../../test/support/delta-sequences.ts";
import { answerOf } from "../../../../test/support/answers.ts";
import type { Delta, FinishReason } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { AnswerSoFar } from "../../session/answer-so-far.ts";
import { openaiResponses } from "./codec.ts";

const context = { callId: "c", createdAt: 1_700_000_000_000, request: openaiResponses.decode({ model: "m", input: "hi", stream: true, tools: [{ type: "function", name: "f" }] }, { model: null, stream: null }) };

interface Event {
  readonly type: string;
  readonly sequence_number: number;
  readonly output_index?: number;
  readonly item_id?: string;
  readonly item?: Readonly<Record<string, unknown>>;
  readonly part?: { readonly type: string; readonly text?: string; readonly refusal?: string };
  readonly delta?: string;
  readonly text?: string;
  readonly refusal?: string;
  readonly arguments?: string;
  readonly input?: string;
  readonly response?: { readonly status: string; readonly output: readonly unknown[] };
}

function read(written: string): readonly Event[] {
  expect(written.endsWith("\n\n")).toBe(true);
  return written.slice(0, -2).split("\n\n").map((block) => {
    const [name, data, ...others] = block.split("\n");
    expect(others).toEqual([]);
    const event = JSON.parse(data?.replace(/^data: /, "") ?? "") as Event;
    expect(name).toBe(`event: ${event.type}`);
    return event;
  });
}

/** Follows the events as a strict client does, and returns the items that were done. */
function follow(events: readonly Event[]): readonly unknown[] {
  const done: unknown[] = [];
  let open: { readonly id: unknown; joined: string; part: boolean; summed: boolean } | null = null;
  for (const [index, event] of events.entries()) {
    expect(event.sequence_number).toBe(index);
    if (event.type.startsWith("response.output_item.")) {
      expect(event.output_index).toBe(done.length);
      if (event.type.endsWith("added")) {
        expect(open).toBeNull();
        expect(event.item?.["status"]).toBe("in_progress");
        open = { id: event.item?.["id"], joined: "", part: false, summed: false };
      } else {
        expect(event.item?.["id"]).toBe(open?.id);
        expect(open?.part).toBe(false);
        // A block without content has nothing to sum up.
        expect(open?.summed === true || open?.joined === "").toBe(true);
        done.push(event.item);
        open = null;
      }
    } else if (event.item_id !== undefined) {
      if (open === null) throw new Error(`${event.type} outside an item`);
      expect([event.item_id, event.output_index]).toEqual([open.id, done.length]);
      if (event.type === "response.content_part.added") open.part = true;
      else if (event.type.endsWith(".delta")) open.joined += event.delta ?? "";
      else {
        expect(event.text ?? event.refusal ?? event.arguments ?? event.input ?? event.part?.text ?? event.part?.refusal).toBe(open.joined);
        if (event.type === "response.content_part.done") open.part = false;
        else open.summed = true;
      }
    }
  }
  expect(open).toBeNull();
  return done;
}

function play(deltas: readonly Delta[]): { readonly stream: ReturnType<typeof openaiResponses.stream>; readonly written: string; readonly answer: AnswerSoFar } {
  const stream = openaiResponses.stream(context);
  const answer = new AnswerSoFar();
  let written = stream.start(null);
  for (const delta of deltas) {
    answer.add(delta);
    written += stream.delta(delta);
  }
  return { stream, written, answer };
}

it("makes well-formed events of pieces in any order, whose items are those of the whole answer", () => {
  fc.assert(
    fc.property(deltaSequences, fc.constantFrom<FinishReason>("stop", "length", "content_filter"), (deltas, finish) => {
      const { stream, written, answer } = play(deltas);
      const whole = answerOf(answer.blocks, { finish });
      const events = read(written + stream.end(whole));
      const done = follow(events);
      expect(events.slice(0, 2).map(({ type }) => type)).toEqual(["response.created", "response.in_progress"]);
      const last = events.at(-1);
      expect(last?.type).toBe(finish === "stop" ? "response.completed" : "response.incomplete");
      expect(last?.response?.output).toEqual(done);
      expect(last?.response).toEqual(JSON.parse(JSON.stringify(openaiResponses.encode(whole, context))));
    }),
    { numRuns: 300 },
  );
});

it("ends them well when it fails after any of them", () => {
  fc.assert(
    fc.property(deltaSequences, (deltas) => {
      const { stream, written } = play(deltas);
      const events = read(written + stream.fail(new GatewayFailure("truncated", "gone")));
      const last = events.at(-1);
      expect(last).toMatchObject({ type: "response.failed", response: { status: "failed", error: { code: "server_error" } } });
      expect(last?.response?.output).toEqual(follow(events));
    }),
  );
});

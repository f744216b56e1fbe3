/** Who looks on while a model answers: sees it grow, whether or not the harness streams, and changes nothing of what the harness gets and the log holds. */
import * as fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { takeCalls, type LiveCall } from "../../../dashboard/src/lib/live-calls.ts";
import { CallBoard, type CallInFlight } from "../../../src/gateway/call-board.ts";
import type { Delta } from "../../../src/gateway/conversation.ts";
import { Renderer } from "../../../src/gateway/render/renderer.ts";
import { AnswerSoFar } from "../../../src/gateway/session/answer-so-far.ts";
import { openUpstream } from "../../../src/gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../../../src/gateway/upstreams/spec.ts";
import { LiveCalls } from "../../../src/server/runs/live-calls.ts";
import { startEngine } from "../../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../../support/engine/tokenizer.ts";
import { openBench } from "../../support/gateway.ts";
import { turn } from "../../support/turns.ts";

const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
const WORDS = Array.from({ length: 60 }, (_, n) => `word${n}`).join(" ");
const renderer = await Renderer.load(MODEL_DIRECTORY);

describe("a call that is watched", () => {
  for (const { kind, rendered } of [{ kind: "vllm", rendered: false }, { kind: "vllm", rendered: true }, { kind: "sglang", rendered: true }] as const) {
    for (const stream of [true, false]) {
      it(`of a harness that ${stream ? "streams" : "does not stream"}, at ${kind}${rendered ? " with prompts rendered here" : ""}, grows on the board and is recorded as any other`, async () => {
        const engine = await startEngine(({ body }) => ({ content: WORDS, ...(body["stream"] === true ? { trickleMs: 5 } : {}) }), { flavour: kind });
        const upstream = openUpstream(parseUpstreamSpec(`${kind}=${engine.root}`, "test"), { apiKey: null, ...(rendered ? { renderer } : {}) });
        const board = new CallBoard();
        const bench = await openBench({ board });
        closers.push(() => engine.close(), () => upstream.close(), () => bench.close());
        const { session, calls } = await bench.open(() => Promise.reject(new Error("the engine answers")), { label: "ro-1", upstream, model: "test-model" });
        const request = { ...turn({ messages: [{ role: "user", content: [{ type: "text", text: "Speak." }] }] }), stream };
        const ask = async (): Promise<string> => {
          let heard = "";
          await session.complete(request, { onDelta: (delta) => void (heard += delta.type === "text" ? delta.text : ""), signal: new AbortController().signal });
          return heard;
        };

        const unseen = await ask();
        const watch = board.watch("ro-1");
        const other = board.watch("ro-2");
        const live = new LiveCalls(watch);
        let shown: readonly LiveCall[] = [];
        const states: string[] = [];
        let over = false;
        const asked = ask().finally(() => (over = true));
        for (let last = false; !last; ) {
          last = over;
          const news = live.news();
          if (news !== null) shown = takeCalls(shown, news);
          states.push(shown.map(({ call, ended, blocks }) => `${call}${ended ? "!" : ""} ${blocks.map(({ text }) => text).join("")}`).join());
          expect(other.calls()).toEqual([]);
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
        expect(await asked).toBe(unseen);
        const grown = [...new Set(states)].filter((state) => state.startsWith("2 "));
        expect(grown.length).toBeGreaterThan(3);
        for (const [at, state] of grown.entries()) expect(state.startsWith(grown[at - 1] ?? "2 ")).toBe(true);
        expect(states.at(-1)).toBe(`2! ${WORDS}`);
        expect(watch.calls()).toEqual([]);
        watch.close();
        other.close();
        expect(board.isWatched("ro-1")).toBe(false);
        const [first, second] = await calls();
        expect(second?.answer).toEqual(first?.answer);
        expect([second?.status, second?.notes, second?.tokens?.completionIds, second?.firstDeltaMs === null]).toEqual([first?.status, first?.notes, first?.tokens?.completionIds, first?.firstDeltaMs === null]);
        expect(unseen).toBe(stream ? WORDS : "");
      });
    }
  }

  it("is shown as it is, however its pieces come, whoever looks when, and whatever attempt fails", () => {
    const text = fc.string({ unit: "binary", maxLength: 8 });
    const delta: fc.Arbitrary<Delta> = fc.oneof(
      fc.record({ type: fc.constantFrom("text", "reasoning", "refusal"), text }),
      fc.record({ type: fc.constant("arguments" as const), text }),
      text.map((name) => ({ type: "tool_call", id: "1", name }) as Delta),
      fc.constant<Delta>({ type: "signature", signature: "s" }),
    );
    const step = fc.oneof({ weight: 8, arbitrary: fc.record({ call: fc.nat(2), delta }) }, { weight: 4, arbitrary: fc.constant("look" as const) }, { weight: 1, arbitrary: fc.record({ call: fc.nat(2), end: fc.constantFrom("fails", "ends") }) });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
        const board = new CallBoard();
        const live = new LiveCalls(board.watch("ro"));
        let shown: readonly LiveCall[] = [];
        const calls = new Map<number, { readonly answer: AnswerSoFar; readonly call: CallInFlight; readonly takeOff: () => void }>();
        const of = (number: number): AnswerSoFar => {
          const known = calls.get(number);
          if (known !== undefined) return known.answer;
          const answer = new AnswerSoFar();
          const call = { number, createdAt: number, answer };
          calls.set(number, { answer, call, takeOff: board.add("ro", call) });
          return answer;
        };
        const look = (): void => {
          const news = live.news();
          if (news !== null) shown = takeCalls(shown, news);
          const open = shown.filter(({ ended }) => !ended).toSorted((a, b) => a.call - b.call);
          const real = [...calls].toSorted(([a], [b]) => a - b).map(([number, { answer }]) => [number, answer.blocks.map((block) => [block.type, block.type === "tool_call" ? block.arguments : block.text])]);
          expect(open.map(({ call, blocks }) => [call, blocks.map(({ type, text: all }) => [type, all])])).toEqual(real);
        };
        for (const one of steps) {
          if (one === "look") look();
          else if ("delta" in one) of(one.call).add(one.delta);
          else if (one.end === "fails") of(one.call).clear();
          else {
            calls.get(one.call)?.takeOff();
            calls.delete(one.call);
          }
        }
        look();
      }),
    );
  });
});

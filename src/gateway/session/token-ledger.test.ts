import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message } from "../conversation.ts";
import { conversationFacts } from "../trace/message-key.ts";
import { SentHistory } from "./sent-history.ts";
import { TokenLedger } from "./token-ledger.ts";

const ids = fc.array(fc.nat({ max: 2 }), { maxLength: 20 });
const tokensOf = (promptIds: readonly number[], completionIds: readonly number[]): Parameters<TokenLedger["add"]>[1] => ({ promptIds, completionIds, logprobs: null, versions: [] });

describe("TokenLedger", () => {
  it("gives every call's ids back, and never claims that a prompt shares more than it does, whatever came before", () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(ids, ids, fc.nat(), fc.boolean()), { maxLength: 30 }), (calls) => {
        const ledger = new TokenLedger();
        const whole: number[][] = [];
        for (const [tail, completion, pick, extend] of calls) {
          // As harnesses do: some go on from an earlier call, perhaps from its middle, others begin anew.
          const base = extend ? (whole[pick % Math.max(1, whole.length)] ?? []) : [];
          const prompt = [...base.slice(0, pick % 3 === 0 ? pick % (base.length + 1) : base.length), ...tail];
          const reference = ledger.add(whole.length, tokensOf(prompt, completion));
          if (reference !== null) {
            expect(reference.kept).toBeGreaterThan(0);
            expect(prompt.slice(0, reference.kept)).toEqual(whole[reference.call]?.slice(0, reference.kept));
          }
          whole.push([...prompt, ...completion]);
        }
        whole.forEach((expected, call) => expect(ledger.ids(call)).toEqual(expected));
      }),
      { numRuns: 300 },
    );
  });

  it("finds all that a prompt shares with the call that it goes on from", () => {
    const ledger = new TokenLedger();
    ledger.add(1, tokensOf([1, 2, 3], [4, 5]));
    expect(ledger.add(2, tokensOf([1, 2, 3, 4, 5, 6], [7]))).toEqual({ call: 1, kept: 5 });
    expect(ledger.add(3, tokensOf([1, 2, 3, 4, 5, 6, 7, 8], []))).toEqual({ call: 2, kept: 7 });
    expect(ledger.add(4, tokensOf([9], []))).toBeNull();
    expect(ledger.ids(3)).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  });
});

describe("SentHistory", () => {
  const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
  const called = (text: string, id = "a"): Message => ({ role: "assistant", content: [{ type: "tool_call", id, name: "bash", arguments: text }] });
  const result: Message = { role: "tool", callId: "a", name: null, content: [{ type: "text", text: "ok" }], isError: false };
  const answer = (text: string) => ({ blocks: [{ type: "tool_call", id: "a", name: "bash", arguments: text }], finish: "tool_calls", stopSequence: null, usage: null, logprobs: null }) as const;
  const tools = [{ name: "bash", description: null, parameters: {} }];
  const facts = (messages: readonly Message[], own = tools) => conversationFacts({ messages, tools: own, responseFormat: null });

  it("finds the longest beginning that a call ended with, also when the harness has written its arguments anew", () => {
    const history = new SentHistory();
    expect(history.longestPrefix([user("x")], tools)).toBeNull();
    history.add(1, facts([user("go")]), answer('{"command": "l\\u0073"}'), tokensOf([1, 2], [3]));
    const second = [user("go"), called('{"command":"ls"}', "other"), result];
    expect(history.longestPrefix(second, tools)).toEqual({ messages: 2, ids: [1, 2, 3] });
    history.add(2, facts(second), answer("{}"), tokensOf([1, 2, 3, 4], [5]));
    expect(history.longestPrefix([...second, called("{}"), result], tools)).toEqual({ messages: 4, ids: [1, 2, 3, 4, 5] });
  });

  it("finds nothing under other tools, other words, or without an answer of ours", () => {
    const history = new SentHistory();
    history.add(1, facts([user("go")]), answer("{}"), tokensOf([1], [2]));
    expect(history.longestPrefix([user("go"), called("{}")], [])).toBeNull();
    expect(history.longestPrefix([user("Go"), called("{}")], tools)).toBeNull();
    expect(history.longestPrefix([user("go")], tools)).toBeNull();
    expect(history.longestPrefix([user("go"), called('{"command":"rm"}')], tools)).toBeNull();
  });
});

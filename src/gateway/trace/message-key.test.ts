import { describe, expect, it } from "vitest";
import type { AnswerBlock, Message } from "../conversation.ts";
import { answerKey, chainKeys, messageKey, nextKey, toolsKey } from "./message-key.ts";

const call = (id: string, text: string): AnswerBlock => ({ type: "tool_call", id, name: "bash", arguments: text });
const assistant = (...content: AnswerBlock[]): Message => ({ role: "assistant", content });

describe("messageKey", () => {
  it("is the same for what harnesses change without changing the meaning", () => {
    const sampled = assistant({ type: "reasoning", text: "hm", signature: null }, { type: "text", text: "" }, call("call_000001", '{"command": "\\u0065cho", "b": {"y":1, "x":2}}'));
    const returned = assistant(call("call000001", '{"b":{"x":2,"y":1},"command":"echo"}'));
    expect(messageKey(returned)).toBe(messageKey(sampled));
    expect(messageKey(assistant(call("a", "")))).toBe(messageKey(assistant(call("b", " {} "))));
    expect(messageKey({ role: "system", name: "developer", content: [{ type: "text", text: "x" }] })).toBe(messageKey({ role: "system", name: "system", content: [{ type: "text", text: "x" }] }));
    expect(answerKey({ blocks: [call("z", '{"command":"ls"}')] })).toBe(messageKey(assistant(call("q", '{ "command": "ls" }'))));
  });

  it("differs when what was said differs", () => {
    const keys = [
      assistant({ type: "text", text: "a" }),
      assistant({ type: "text", text: "a " }),
      assistant(call("1", '{"command":"ls"}')),
      assistant(call("1", '{"command":"ls')),
      assistant(call("1", '{"command":"ls"}'), call("2", '{"command":"ls"}')),
      { role: "user", content: [{ type: "text", text: "a" }] } as const,
      { role: "user", content: [{ type: "image", source: { kind: "url", url: "a" } }] } as const,
      { role: "system", name: "system", content: [{ type: "text", text: "a" }] } as const,
      { role: "tool", callId: "1", name: null, content: [{ type: "text", text: "a" }], isError: false } as const,
      { role: "tool", callId: "1", name: null, content: [{ type: "text", text: "a" }], isError: true } as const,
    ].map((message) => messageKey(message));
    expect(new Set(keys).size).toBe(keys.length);
  });

  it("chains: equal exactly when all messages and the seed are", () => {
    const messages: Message[] = [{ role: "user", content: [{ type: "text", text: "a" }] }, assistant({ type: "text", text: "b" })];
    const chain = chainKeys(messages, "");
    expect(chain[1]).toBe(nextKey(nextKey("", messageKey(messages[0] as Message)), messageKey(messages[1] as Message)));
    expect(chainKeys(messages, toolsKey([{ name: "x", description: null, parameters: { b: 1, a: 2 } }]))[1]).toBe(chainKeys(messages, toolsKey([{ name: "x", description: null, parameters: { a: 2, b: 1 } }]))[1]);
    expect(chainKeys(messages, toolsKey([]))[1]).not.toBe(chain[1]);
  });
});

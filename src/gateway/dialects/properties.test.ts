/** What holds of every answer in chat completions and Anthropic Messages, drawn at random. */
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { cutDeltas } from "../../../test/support/codec-server.ts";
import type { Answer, AnswerBlock, FinishReason } from "../conversation.ts";
import { anthropic } from "./anthropic/codec.ts";
import type { DialectCodec, EncodeContext } from "./dialect.ts";
import { openaiChat } from "./openai-chat/codec.ts";

const ROUTE = { model: null, stream: null };
const text = fc.string({ unit: "binary", minLength: 1, maxLength: 30 });
const json = fc.dictionary(fc.string({ maxLength: 5 }), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 3 });
/** Objects as models write them, and what is none. */
const callArguments = fc.oneof(json.map((value) => JSON.stringify(value)), json.map((value) => JSON.stringify(value, null, 1)), text, fc.constantFrom("", " ", "null", "[]", '{"a', "{}", '{"INVALID_JSON":"{}"}', '{"INVALID_JSON":""}', `${"[".repeat(9000)}${"]".repeat(9000)}`));

const reasoning = fc.record({ type: fc.constant("reasoning" as const), text, signature: fc.constant(null) });
const said = fc.record({ type: fc.constant("text" as const), text });
const calls = fc.array(fc.tuple(fc.constantFrom("bash", "read"), callArguments), { maxLength: 4 }).map((drawn) => drawn.map(([name, value], index): AnswerBlock => ({ type: "tool_call", id: `call_${index}`, name, arguments: value })));
const finish = fc.constantFrom<FinishReason>("stop", "stop_sequence", "tool_calls", "length", "context", "content_filter", "refusal");

/** In the order that a flat message can hold: reasoning, text, calls. */
const flatBlocks = fc.tuple(fc.array(reasoning, { maxLength: 1 }), fc.array(said, { maxLength: 1 }), calls).map((parts): readonly AnswerBlock[] => parts.flat());

function answerFrom(blocks: readonly AnswerBlock[], reason: FinishReason): Answer {
  return { blocks, finish: reason, stopSequence: reason === "stop_sequence" ? "END" : null, usage: { promptTokens: 9, completionTokens: 4, cachedTokens: 2, reasoningTokens: 1 }, logprobs: null };
}

const answers = fc.tuple(flatBlocks, finish).map(([blocks, reason]) => answerFrom(blocks, reason));

const SMALL: Readonly<Record<string, object>> = {
  "openai-chat": { model: "m", messages: [{ role: "user", content: "hi" }], stream: true, stream_options: { include_usage: true } },
  anthropic: { model: "m", max_tokens: 9, messages: [{ role: "user", content: "hi" }], stream: true },
};

function contextOf(codec: DialectCodec): EncodeContext {
  return { callId: "c", createdAt: 1_700_000_000_000, request: codec.decode(SMALL[codec.dialect], ROUTE) };
}

/** As it travels. */
function wire(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value));
}

function events(codec: DialectCodec, answer: Answer, length: number): readonly { readonly event: string | null; readonly data: string }[] {
  const stream = codec.stream(contextOf(codec));
  const written = stream.start(null) + cutDeltas(answer.blocks, length).map((delta) => stream.delta(delta)).join("") + stream.end(answer);
  expect(written.endsWith("\n\n")).toBe(true);
  return written
    .slice(0, -2)
    .split("\n\n")
    .map((block) => {
      const found = /^(?:event: (.+)\n)?data: (.+)$/.exec(block);
      if (found?.[2] === undefined) throw new Error(`no event: ${block}`);
      return { event: found[1] ?? null, data: found[2] };
    });
}

/** Arguments as they come back: none is `{}`, and a dialect that carries objects loses their spacing. */
function returned(blocks: readonly AnswerBlock[], spell: (text: string) => string): readonly AnswerBlock[] {
  return blocks.map((block) => (block.type === "tool_call" ? { ...block, arguments: /^[ \t\r\n]*$/.test(block.arguments) ? "{}" : spell(block.arguments) } : block));
}

function respelled(argumentsText: string): string {
  try {
    const value: unknown = JSON.parse(argumentsText);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? JSON.stringify(value) : argumentsText;
  } catch {
    return argumentsText;
  }
}

test("chat completions: an answer that is sent back is what was answered, to the byte", () => {
  fc.assert(
    fc.property(answers, (answer) => {
      const { choices } = wire(openaiChat.encode(answer, contextOf(openaiChat))) as { choices: { message: object }[] };
      const { messages } = openaiChat.decode({ ...SMALL["openai-chat"], messages: [choices[0]?.message] }, ROUTE);
      expect(messages).toEqual([{ role: "assistant", content: returned(answer.blocks, (same) => same) }]);
    }),
  );
});

test("Anthropic Messages: an answer that is sent back is what was answered, but for the spacing of arguments", () => {
  const blocks = fc.array(fc.oneof(reasoning, said, fc.record({ type: fc.constant("reasoning" as const), text, signature: text.map((signed) => `s${signed}`) })), { maxLength: 4 });
  fc.assert(
    fc.property(fc.tuple(blocks, calls), finish, (parts, reason) => {
      const answer = answerFrom(parts.flat(), reason);
      const { content } = wire(anthropic.encode(answer, contextOf(anthropic))) as { content: unknown };
      const { messages } = anthropic.decode({ model: "m", messages: [{ role: "assistant", content }] }, ROUTE);
      expect(messages).toEqual([{ role: "assistant", content: returned(answer.blocks, respelled) }]);
    }),
  );
});

test("chat completions: the chunks of a stream add up to the whole answer, and end with [DONE]", () => {
  fc.assert(
    fc.property(answers, fc.integer({ min: 1, max: 9 }), (answer, length) => {
      const all = events(openaiChat, answer, length);
      expect(all.at(-1)?.data).toBe("[DONE]");
      const whole = wire(openaiChat.encode(answer, contextOf(openaiChat))) as { choices: { message: Record<string, unknown>; finish_reason: string }[]; usage: unknown };
      const message: Record<string, unknown> = { role: "assistant", content: null, refusal: null };
      const toolCalls: { id: string; type: string; function: { name: string; arguments: string } }[] = [];
      let end: { finish_reason: string | null; usage: unknown } = { finish_reason: null, usage: null };
      for (const { data } of all.slice(0, -1)) {
        const chunk = JSON.parse(data) as { choices: { delta: Record<string, unknown>; finish_reason: string | null }[]; usage: unknown };
        const { delta, finish_reason } = chunk.choices[0] ?? { delta: {}, finish_reason: null };
        expect(end.finish_reason === null || chunk.choices.length === 0).toBe(true);
        for (const field of ["content", "reasoning_content"]) if (typeof delta[field] === "string") message[field] = `${(message[field] as string | null | undefined) ?? ""}${delta[field]}`;
        for (const piece of (delta["tool_calls"] as { index: number; id?: string; type?: string; function: { name?: string; arguments: string } }[] | undefined) ?? []) {
          const open = toolCalls[piece.index];
          if (open === undefined) toolCalls[piece.index] = { id: piece.id ?? "", type: piece.type ?? "", function: { name: piece.function.name ?? "", arguments: piece.function.arguments } };
          else open.function.arguments += piece.function.arguments;
        }
        end = { finish_reason: end.finish_reason ?? finish_reason, usage: chunk.usage };
      }
      expect({ ...message, ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}) }).toEqual(whole.choices[0]?.message);
      expect(end).toEqual({ finish_reason: whole.choices[0]?.finish_reason, usage: whole.usage });
    }),
  );
});

test("Anthropic Messages: every stream is well formed, and adds up to the whole answer", () => {
  fc.assert(
    fc.property(answers, fc.integer({ min: 1, max: 9 }), (answer, length) => {
      const content: Record<string, unknown>[] = [];
      const order: string[] = [];
      let pending = "";
      let end: Record<string, unknown> = {};
      for (const { event, data } of events(anthropic, answer, length)) {
        const said = JSON.parse(data) as { type: string; index: number; content_block: Record<string, unknown>; delta: Record<string, string>; usage: unknown };
        expect(said.type).toBe(event);
        if (said.type === "content_block_start") content.push(said.content_block);
        if (said.type.startsWith("content_block")) expect(said.index).toBe(content.length - 1);
        const open = content.at(-1);
        if (said.type === "content_block_delta") {
          const { type, ...piece } = said.delta;
          expect([open?.["type"], type]).toEqual([open?.["type"], expect.stringMatching({ text: /^text_delta$/, thinking: /^(thinking|signature)_delta$/, tool_use: /^input_json_delta$/ }[open?.["type"] as "text"])]);
          for (const [field, value] of Object.entries(piece)) {
            if (field === "partial_json") pending += value;
            else if (open !== undefined) open[field] = field === "signature" ? value : `${open[field] as string}${value}`;
          }
          continue;
        }
        if (said.type === "content_block_stop" && open?.["type"] === "tool_use") {
          open["input"] = JSON.parse(pending);
          pending = "";
        }
        if (said.type === "message_delta") end = { ...said.delta, usage: said.usage };
        order.push(said.type.replace("content_block_", ""));
      }
      expect(order.join(" ")).toMatch(/^message_start (start stop )*message_delta message_stop$/);
      const whole = wire(anthropic.encode(answer, contextOf(anthropic))) as Record<string, unknown>;
      expect({ content, ...end }).toEqual(Object.fromEntries(["content", "stop_reason", "stop_sequence", "stop_details", "usage"].map((field) => [field, whole[field]])));
    }),
  );
});

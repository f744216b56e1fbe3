/** The conversation of a rollout, or of one of its threads, in the form of the page. */
import { z } from "zod";
import type { AnswerBlock, ContentBlock, Message } from "../../gateway/conversation.ts";
import { transcriptOf } from "../../gateway/trace/transcript.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import type { Trace } from "../../gateway/trace/trace.ts";
import type { MessageView } from "./contract/rollout.ts";
import type { CallHead } from "./rollout-record.ts";

/** A message with its whole text. */
export type SpokenView = Omit<MessageView, "index" | "characters" | "toolCalls"> & { readonly toolCalls: readonly { readonly id: string; readonly name: string; readonly arguments: string }[] };

/** The main line, or `thread`; then what a harness of ours told its model after the last answer. */
export function messagesOf(calls: readonly CallHead[], trace: Trace, transcript: readonly unknown[], thread: number | null = null): readonly SpokenView[] {
  const line = thread === null ? trace.mainLine : trace.nodes.filter((node) => node.thread === thread).map(({ call }) => call);
  const records = transcript.flatMap((record) => fromRecord(record) ?? []);
  if (line.length === 0) return thread === null ? records : [];
  const spoken = transcriptOf(calls, { ...trace, mainLine: line }, turnOf).map(({ at, message, call }) => fromMessage(at, message, call));
  return thread === null ? [...spoken, ...records.slice(records.findLastIndex(({ role }) => role === "assistant") + 1)] : spoken;
}

/** Cut to what a page needs; `characters` says how much there is. */
export function shownMessage(message: SpokenView, index: number, most: number): MessageView {
  return {
    ...message,
    index,
    text: message.text.slice(0, most),
    characters: message.text.length,
    reasoning: message.reasoning?.slice(0, most) ?? null,
    toolCalls: message.toolCalls.map((call) => ({ ...call, arguments: call.arguments.slice(0, most), characters: call.arguments.length })),
  };
}

function fromMessage(at: string, message: Message, call: number): SpokenView {
  const blocks: readonly (AnswerBlock | ContentBlock)[] = message.content;
  const reasoning = blocks.map((block) => (block.type === "reasoning" ? block.text : "")).join("");
  return {
    at,
    role: message.role,
    text: blocks.map((block) => (block.type === "text" || block.type === "refusal" ? block.text : "")).join(""),
    reasoning: reasoning === "" ? null : reasoning,
    toolCalls: blocks.flatMap((block) => (block.type === "tool_call" ? [{ id: block.id, name: block.name, arguments: block.arguments }] : [])),
    toolCallId: message.role === "tool" ? message.callId : null,
    isError: message.role === "tool" && message.isError,
    images: blocks.filter(({ type }) => type === "image").length,
    call,
  };
}

const recordSchema = z.looseObject({
  at: z.string().default(""),
  role: z.enum(["system", "user", "assistant", "tool"]),
  content: z.unknown(),
  toolCalls: z.array(z.looseObject({ id: z.string().default(""), function: z.looseObject({ name: z.string(), arguments: z.string() }) })).optional(),
  toolCallId: z.string().optional(),
});

/** As the white-box harnesses keep messages. */
function fromRecord(record: unknown): SpokenView | null {
  const parsed = recordSchema.safeParse(record);
  if (!parsed.success) return null;
  const { at, role, content, toolCalls = [], toolCallId = null } = parsed.data;
  return {
    at,
    role,
    text: typeof content === "string" ? content : content === null || content === undefined ? "" : JSON.stringify(content, null, 2),
    reasoning: null,
    toolCalls: toolCalls.map(({ id, function: { name, arguments: given } }) => ({ id, name, arguments: given })),
    toolCallId,
    isError: false,
    images: 0,
    call: null,
  };
}

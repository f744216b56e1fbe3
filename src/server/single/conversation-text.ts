/** Conversations as the plain messages that trainers' records hold. */
import type { AnswerBlock, ContentBlock, Message } from "../../gateway/conversation.ts";

/** Of a message or tool result: its texts; images are named, never carried. */
export function textOf(blocks: readonly (ContentBlock | AnswerBlock)[]): string {
  return blocks.map((block) => (block.type === "text" || block.type === "refusal" ? block.text : block.type === "image" ? "[image]" : "")).join("");
}

export function reasoningOf(blocks: readonly AnswerBlock[]): string | null {
  const text = blocks.map((block) => (block.type === "reasoning" ? block.text : "")).join("");
  return text === "" ? null : text;
}

/** Messages that come after the last thing the model said: what is new with a call. */
export function newMessages(messages: readonly Message[]): readonly Message[] {
  return messages.slice(messages.findLastIndex(({ role }) => role === "assistant") + 1);
}

/** Messages of the loop: their text, their form in the transcript, and what chat templates can render. */
import type { AnswerBlock, ImageBlock, Message } from "../../gateway/conversation.ts";
import type { MessageRecord } from "../harness.ts";

/** For the transcript, in the form of chat completions. */
export function recordOf(message: Message): Omit<MessageRecord, "at"> {
  const text = textOf(message.content);
  if (message.role === "tool") return { role: "tool", content: text, toolCallId: message.callId };
  if (message.role !== "assistant") return { role: message.role, content: text };
  const calls = message.content.flatMap((block) => (block.type === "tool_call" ? [{ id: block.id, type: "function", function: { name: block.name, arguments: block.arguments } }] : []));
  return { role: "assistant", content: text === "" && calls.length > 0 ? null : text, ...(calls.length === 0 ? {} : { toolCalls: calls }) };
}

export function textOf(content: readonly (AnswerBlock | ImageBlock)[]): string {
  return content.map((block) => (block.type === "text" || block.type === "refusal" ? block.text : "")).join("");
}

/** Chat templates parse the arguments of past tool calls as a JSON object, and servers fail the whole request when one is not. */
export function renderable(block: AnswerBlock): AnswerBlock {
  return block.type === "tool_call" ? { ...block, arguments: asObject(block.arguments) } : block;
}

function asObject(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return text;
  } catch {
    // Falls through to the wrapped form.
  }
  return JSON.stringify({ invalid_arguments: text });
}

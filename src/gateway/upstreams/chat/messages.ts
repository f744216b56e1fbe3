/**
 * The conversation as chat completions know it. What the form cannot hold is said in words, never left out:
 *
 * - Tool messages take text alone, so the images of a run of tool results follow in one user message that names the calls.
 * - Chat has no mark for failed tools: their text begins with `Error: `, unless it says so itself.
 * - `developer` goes out as `system`, which every server and template knows.
 */
import type { ContentBlock, ImageBlock, Message } from "../../conversation.ts";
import { wireCall } from "../tool-names.ts";

export type ChatPart = { readonly type: "text"; readonly text: string } | { readonly type: "image_url"; readonly image_url: { readonly url: string; readonly detail?: string } };

export type ChatMessage =
  | { readonly role: "system" | "user"; readonly content: string | readonly ChatPart[] }
  | { readonly role: "tool"; readonly tool_call_id: string; readonly content: string }
  | ({
      readonly role: "assistant";
      readonly content: string | null;
      readonly tool_calls?: readonly { readonly id: string; readonly type: "function"; readonly function: { readonly name: string; readonly arguments: string } }[];
    } & { readonly [reasoning in ReasoningField]?: string });

/** Under which name a server gives reasoning, and wants it back. */
export type ReasoningField = "reasoning" | "reasoning_content";

export function chatMessages(messages: readonly Message[], reasoningField: ReasoningField): readonly ChatMessage[] {
  const result: ChatMessage[] = [];
  let images: ChatPart[] = [];
  messages.forEach((message, index) => {
    if (message.role !== "tool") {
      result.push(message.role === "assistant" ? assistantMessage(message, reasoningField) : { role: message.role, content: contentOf(message.content) });
      return;
    }
    const pictures = message.content.filter((block): block is ImageBlock => block.type === "image");
    const text = joined(message.content);
    result.push({ role: "tool", tool_call_id: message.callId, content: toolText(text, message.isError, pictures.length > 0) });
    if (pictures.length > 0) images.push({ type: "text", text: `What the tool call ${message.callId} returned as images:` }, ...pictures.map(imagePart));
    if (images.length > 0 && messages[index + 1]?.role !== "tool") {
      result.push({ role: "user", content: images });
      images = [];
    }
  });
  return result;
}

/** What a template or server is to read of a tool's result, whose dialect may mark failures. */
export function toolText(text: string, isError: boolean, hasImages: boolean): string {
  const shown = text === "" && hasImages ? "(images, in the next user message)" : text;
  return isError && !/^\s*error/i.test(shown) ? `Error: ${shown}` : shown;
}

function assistantMessage({ content }: Extract<Message, { role: "assistant" }>, reasoningField: ReasoningField): ChatMessage {
  let text = "";
  let reasoning = "";
  const calls: { readonly id: string; readonly type: "function"; readonly function: { readonly name: string; readonly arguments: string } }[] = [];
  for (const block of content) {
    if (block.type === "tool_call") calls.push({ id: block.id, type: "function", function: wireCall(block) });
    else if (block.type === "reasoning") reasoning += block.text;
    else text += block.text;
  }
  return {
    role: "assistant",
    content: text === "" && calls.length > 0 ? null : text,
    ...(reasoning === "" ? {} : { [reasoningField]: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

function contentOf(content: readonly ContentBlock[]): string | readonly ChatPart[] {
  const [only] = content;
  if (content.length === 0) return "";
  if (content.length === 1 && only?.type === "text") return only.text;
  return content.map((block) => (block.type === "text" ? { type: "text", text: block.text } : imagePart(block)));
}

function joined(content: readonly ContentBlock[]): string {
  return content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

function imagePart({ source, detail }: ImageBlock): ChatPart {
  const url = source.kind === "url" ? source.url : `data:${source.mediaType};base64,${source.data}`;
  return { type: "image_url", image_url: detail === undefined ? { url } : { url, detail } };
}

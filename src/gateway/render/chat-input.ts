/** A turn in the form in which chat templates take it: messages and tools as OpenAI's chat dialect has them, with arguments as objects. */
import type { AnswerBlock, ContentBlock, Message, ToolCallBlock, TurnRequest } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";
import { toolText } from "../upstreams/chat/messages.ts";
import { wireCall, wireTools, type WireTool } from "../upstreams/tool-names.ts";
import type { Family } from "./family.ts";
import { readJson } from "./jinja/json.ts";

export type ChatMessage = Readonly<Record<string, unknown>> & { readonly role: string };

export interface ChatForm {
  readonly family: Family;
  /** The template adds arguments to its text as they are: they must be text. */
  readonly argumentsAsText: boolean;
  /** The template knows the role `developer`. */
  readonly hasDeveloper: boolean;
}

/** Throws `invalid_request` for what a text model cannot be told. */
export function chatMessages(messages: readonly Message[], form: ChatForm, notes: string[]): readonly ChatMessage[] {
  return messages.map((message) => {
    switch (message.role) {
      case "system":
        return { role: form.hasDeveloper ? message.name : "system", content: textOf(message.content) };
      case "user":
        return { role: "user", content: textOf(message.content) };
      case "tool":
        return { role: "tool", content: toolText(textOf(message.content), message.isError, false), tool_call_id: shortId(message.callId, form), ...(message.name === null ? {} : { name: message.name }) };
      case "assistant":
        return assistantMessage(message.content, form, notes);
    }
  });
}

/** Null where no tools are offered. */
export function chatTools(request: TurnRequest): readonly WireTool[] | null {
  return request.tools.length === 0 || request.toolChoice?.type === "none" ? null : wireTools(request.tools);
}

function textOf(content: readonly ContentBlock[]): string {
  return content
    .map((block) => {
      if (block.type === "text") return block.text;
      throw new GatewayFailure("invalid_request", "This model is given tokens of text; it takes no images.", { field: "messages" });
    })
    .join("\n");
}

function assistantMessage(blocks: readonly AnswerBlock[], form: ChatForm, notes: string[]): ChatMessage {
  const text = blocks.map((block) => (block.type === "text" || block.type === "refusal" ? block.text : "")).join("");
  const reasoning = blocks.map((block) => (block.type === "reasoning" ? block.text : "")).join("");
  const calls = blocks.flatMap((block) => (block.type === "tool_call" ? [block] : []));
  return {
    role: "assistant",
    content: text === "" && calls.length > 0 ? form.family.emptyContent : text,
    ...(reasoning === "" ? {} : { [form.family.reasoningField]: reasoning }),
    ...(calls.length === 0
      ? {}
      : { tool_calls: calls.map((call) => ({ id: shortId(call.id, form), type: "function", function: functionOf(call, form, notes) })) }),
  };
}

function functionOf(call: ToolCallBlock, form: ChatForm, notes: string[]): { readonly name: string; readonly arguments: unknown } {
  const { name, arguments: text } = wireCall(call);
  if (form.argumentsAsText) return { name, arguments: text };
  const parsed = readJson(text);
  if (parsed?.value instanceof Map) return { name, arguments: parsed.value };
  notes.push(`The arguments of the call ${call.id} are no JSON object; the template was given them as the text of one field.`);
  return { name, arguments: new Map([["arguments", text]]) };
}

/** Templates of this family refuse ids of another length. The same id always becomes the same short one. */
function shortId(id: string, form: ChatForm): string {
  if (!form.family.shortIds || /^[A-Za-z0-9]{9}$/.test(id)) return id;
  return id.replaceAll(/[^A-Za-z0-9]/g, "").slice(-9).padStart(9, "0");
}

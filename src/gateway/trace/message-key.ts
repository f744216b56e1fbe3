/**
 * When are two messages the same, although a harness has taken the first apart and put it together again? The key of a message leaves out what harnesses are known to change
 * without changing its meaning: ids of tool calls, spacing and escapes in their arguments, reasoning that is not sent back, empty texts, the older name of a role.
 * Two messages with the same key need not have the same tokens: that is for the token arrays to say.
 */
import { createHash } from "node:crypto";
import type { ConversationFacts } from "../call.ts";
import type { Answer, AnswerBlock, ContentBlock, Message, ToolDefinition, TurnRequest } from "../conversation.ts";

/** 96 bits in base64url: equal for messages that mean the same. */
export type MessageKey = string;

export function messageKey(message: Message): MessageKey {
  return keyOf(canonicalMessage(message));
}

/** The key that an answer has once it comes back as an assistant message. */
export function answerKey(answer: Pick<Answer, "blocks">): MessageKey {
  return messageKey({ role: "assistant", content: answer.blocks });
}

export function toolsKey(tools: readonly ToolDefinition[]): MessageKey {
  return keyOf(tools.map(({ namespace = null, name, kind = "function", description, parameters, format = null }) => [namespace, name, kind, description, canonicalValue(parameters ?? null), canonicalValue(format)]));
}

const ROLE_LETTERS = { system: "s", user: "u", assistant: "a", tool: "t" } as const;

export function conversationFacts(request: Pick<TurnRequest, "messages" | "tools" | "responseFormat">): ConversationFacts {
  return {
    tools: toolsKey(request.tools),
    toolCount: request.tools.length,
    messages: request.messages.map(messageKey),
    roles: request.messages.map(({ role }) => ROLE_LETTERS[role]).join(""),
    structured: request.responseFormat !== null,
  };
}

/** The key of a list: that of everything before, and one message more. `seed` is the key of what comes before the first: of the tools, or "". */
export function chainKeys(messages: readonly Message[], seed: MessageKey): readonly MessageKey[] {
  let before = seed;
  return messages.map((message) => (before = nextKey(before, messageKey(message))));
}

export function nextKey(before: MessageKey, key: MessageKey): MessageKey {
  return hash(`${before}\n${key}`);
}

function canonicalMessage(message: Message): unknown {
  switch (message.role) {
    case "system":
    case "user":
      return [message.role, canonicalContent(message.content)];
    case "tool":
      return ["tool", canonicalContent(message.content), message.isError];
    case "assistant":
      return ["assistant", canonicalAnswer(message.content)];
  }
}

function canonicalContent(content: readonly ContentBlock[]): unknown {
  return content.flatMap((block): unknown[] => (block.type === "image" ? [["image", block.source]] : block.text === "" ? [] : [block.text]));
}

/** Texts first, then calls: dialects disagree on how they may be interleaved. */
function canonicalAnswer(content: readonly AnswerBlock[]): unknown {
  const text = content.map((block) => (block.type === "text" || block.type === "refusal" ? block.text : "")).join("");
  const calls = content.flatMap((block) => (block.type === "tool_call" ? [[block.namespace ?? null, block.name, canonicalArguments(block.arguments)]] : []));
  return [text, calls];
}

function canonicalArguments(text: string): unknown {
  if (text.trim() === "") return {};
  try {
    return canonicalValue(JSON.parse(text) as unknown);
  } catch {
    return ["text", text];
  }
}

/** With the keys of objects in order. */
function canonicalValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(canonicalValue);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, entry]) => [key, canonicalValue(entry)]),
  );
}

function keyOf(value: unknown): MessageKey {
  return hash(JSON.stringify(value));
}

function hash(text: string): MessageKey {
  return createHash("sha256").update(text).digest("base64url").slice(0, 16);
}

/**
 * The model's chat template, twice: `model/chat_template.jinja` for those who render it themselves, and here for speed. A test holds them equal.
 *
 * As in vLLM, the arguments of tool calls are parsed before they are rendered, so what comes back from a harness is spelled anew.
 */
export interface ChatMessage {
  readonly role: string;
  readonly content?: string | null | readonly { readonly type: string; readonly text?: string }[];
  readonly reasoning?: string | null;
  readonly reasoning_content?: string | null;
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: unknown } }[] | null;
}

/** JSON as Python writes it, with a space after each comma and colon. */
export function pythonJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(", ")}]`;
  if (typeof value === "object" && value !== null) {
    return `{${Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${pythonJson(entry)}`).join(", ")}}`;
  }
  return JSON.stringify(value ?? null);
}

/** The text of the prompt, cut before and after each special token. */
export function renderChat(messages: readonly ChatMessage[], tools: readonly unknown[], generate = true): readonly string[] {
  const parts: string[] = [];
  const first = messages[0];
  const system = first?.role === "system" || first?.role === "developer" ? textOf(first.content) : null;
  if (tools.length > 0) {
    const list = tools.map((tool) => `\n${pythonJson(tool)}`).join("");
    parts.push("<|im_start|>", `system\n${system === null ? "" : `${system}\n\n`}# Tools\n\nThese functions can be called:${list}\n\nA call is JSON with name and arguments between the marks of a tool call.`, "<|im_end|>", "\n");
  } else if (system !== null) parts.push("<|im_start|>", `system\n${system}`, "<|im_end|>", "\n");
  messages.forEach((message, index) => {
    const text = textOf(message.content);
    if (message.role === "tool") {
      if (messages[index - 1]?.role !== "tool") parts.push("<|im_start|>", "user");
      parts.push(`\n<tool_response>\n${text}\n</tool_response>`);
      if (messages[index + 1]?.role !== "tool") parts.push("<|im_end|>", "\n");
    } else if (message.role === "assistant") {
      const reasoning = message.reasoning ?? message.reasoning_content ?? "";
      parts.push("<|im_start|>", `assistant\n${reasoning === "" ? "" : `<think>\n${reasoning}\n</think>\n\n`}${text}${renderCalls(message.tool_calls ?? [], text)}`, "<|im_end|>", "\n");
    } else if (index > 0 || system === null) parts.push("<|im_start|>", `${message.role === "developer" ? "system" : message.role}\n${text}`, "<|im_end|>", "\n");
  });
  if (generate) parts.push("<|im_start|>", "assistant\n");
  return parts;
}

function textOf(content: ChatMessage["content"]): string {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => (part.type === "text" ? (part.text ?? "") : "<image>")).join("");
}

function renderCalls(calls: NonNullable<ChatMessage["tool_calls"]>, text: string): string {
  return calls.map(({ function: { name, arguments: given } }, index) => `${text !== "" || index > 0 ? "\n" : ""}${renderCall(name, pythonJson(parsed(given)))}`).join("");
}

export function renderCall(name: string, argumentsText: string): string {
  return `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${argumentsText}}\n</tool_call>`;
}

function parsed(given: unknown): unknown {
  if (typeof given !== "string") return given;
  try {
    return JSON.parse(given) as unknown;
  } catch {
    return given;
  }
}

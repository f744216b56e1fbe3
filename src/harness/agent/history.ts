/** A history with the older outputs left out. */
import type { Message } from "../../gateway/conversation.ts";

/** Outputs of so many of the last answers stay. */
const KEPT_TURNS = 3;
const LEFT_OUT = "[output left out]";

/** Null when nothing is left to leave out. What the model said itself stays. */
export function trimmed(messages: readonly Message[]): readonly Message[] | null {
  const answers = messages.flatMap(({ role }, at) => (role === "assistant" ? [at] : []));
  const from = answers.at(-KEPT_TURNS) ?? 0;
  let changed = false;
  const shorter = messages.map((message, at): Message => {
    if (at >= from || message.role !== "tool" || message.content.every((block) => block.type === "text" && block.text.length <= LEFT_OUT.length)) return message;
    changed = true;
    return { ...message, content: [{ type: "text", text: LEFT_OUT }] };
  });
  return changed ? shorter : null;
}

/**
 * How reasoning travels. Harnesses send a reasoning item back as they got it, but some (Codex) leave its `content` out and keep `encrypted_content`. So the whole block rides
 * in there, plainly encoded; data of another vendor is taken for a signature.
 */
import type { ReasoningBlock } from "../../conversation.ts";

const PREFIX = "mw1.";

export function sealReasoning({ text, signature, redacted }: ReasoningBlock): string {
  return PREFIX + Buffer.from(JSON.stringify([text, signature, ...(redacted === true ? [true] : [])])).toString("base64url");
}

/** The block that `sealReasoning` put in; null for anything else. */
export function unsealReasoning(sealed: string): ReasoningBlock | null {
  if (!sealed.startsWith(PREFIX)) return null;
  try {
    const [text, signature, redacted] = JSON.parse(Buffer.from(sealed.slice(PREFIX.length), "base64url").toString()) as readonly unknown[];
    if (typeof text !== "string" || (signature !== null && typeof signature !== "string")) return null;
    return { type: "reasoning", text, signature, ...(redacted === true ? { redacted: true } : {}) };
  } catch {
    return null;
  }
}

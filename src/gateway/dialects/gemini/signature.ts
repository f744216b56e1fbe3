/**
 * What travels in a part's `thoughtSignature`. Gemini's clients keep that field and send it back, but leave out thoughts and parse arguments. So the part after the thoughts
 * carries them, and a call carries its arguments as they were sampled, where parsing loses their form. Data of another vendor is taken for a signature of its own.
 */
import type { ReasoningBlock } from "../../conversation.ts";

export interface Rider {
  /** The reasoning right before the part. */
  readonly thoughts?: readonly ReasoningBlock[];
  /** The arguments of the call, where `JSON.stringify` would spell them otherwise. */
  readonly arguments?: string;
  /** The text is a refusal. */
  readonly refusal?: true;
  /** Another vendor's signature. */
  readonly signature?: string;
}

/** Of the JSON inside, which makes it recognisable in any base64. */
const PREFIX = '{"mw":1,';
/** What clients put where a server wants a signature and they have none; Google documents both. */
const PLACEHOLDERS = new Set(["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"]);

/** Standard base64, which clients check; undefined where there is nothing to say. */
export function sealRider(rider: Rider): string | undefined {
  const text = JSON.stringify(rider);
  return text === "{}" ? undefined : Buffer.from(PREFIX + text.slice(1)).toString("base64");
}

export function unsealRider(sealed: string): Rider {
  if (PLACEHOLDERS.has(sealed)) return {};
  const text = Buffer.from(sealed, "base64").toString();
  if (!text.startsWith(PREFIX)) return { signature: sealed };
  try {
    const rider = JSON.parse(text) as Readonly<Record<string, unknown>>;
    const { thoughts, arguments: raw, signature } = rider;
    return {
      ...(Array.isArray(thoughts) ? { thoughts: thoughts.filter(isReasoning) } : {}),
      ...(typeof raw === "string" ? { arguments: raw } : {}),
      ...(rider["refusal"] === true ? { refusal: true } : {}),
      ...(typeof signature === "string" ? { signature } : {}),
    };
  } catch {
    return { signature: sealed };
  }
}

function isReasoning(value: unknown): value is ReasoningBlock {
  if (typeof value !== "object" || value === null) return false;
  const { type, text, signature } = value as Readonly<Record<string, unknown>>;
  return type === "reasoning" && typeof text === "string" && (signature === null || typeof signature === "string");
}

/**
 * What makes two requests the same: dialect, model in the path, and the body as JSON, whatever the order of its keys (Codex sends some in any order). Whether the answer
 * is to be streamed makes no difference: a client may fall back to a whole answer after a stream broke off.
 */
import { hash } from "node:crypto";
import type { Dialect } from "../conversation.ts";
import type { RouteFacts } from "../dialects/dialect.ts";

export type RequestDigest = string;

export function requestDigest(dialect: Dialect, { model }: RouteFacts, body: unknown): RequestDigest {
  const text = JSON.stringify([dialect, model, typeof body === "object" && body !== null && !Array.isArray(body) ? { ...body, stream: undefined, stream_options: undefined } : body], inOrder);
  return hash("sha256", text, "base64url").slice(0, 22);
}

/** Objects with their keys in order. */
function inOrder(_key: string, value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  const keys = Object.keys(value);
  if (keys.every((key, index) => index === 0 || (keys[index - 1] ?? "") <= key)) return value;
  return Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

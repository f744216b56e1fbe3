/** The token in the place where a vendor's API key would be. */
import type { IncomingHttpHeaders } from "node:http";

/** What `newToken` makes; other text in that place is a placeholder, since most clients insist on some key. */
const TOKEN = /^sk-mw-[0-9a-z]{32}$/;
const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

/** 160 random bits, in a form that clients take for a key. */
export function newToken(random: Uint8Array): string {
  return `sk-mw-${Array.from(random.subarray(0, 32), (byte) => ALPHABET.charAt(byte & 31)).join("")}`;
}

export function isToken(text: string): boolean {
  return TOKEN.test(text);
}

/** All keys that a request brings, each once: bearer, `x-api-key`, `x-goog-api-key`, `?key=`. */
export function keysOf(headers: IncomingHttpHeaders, query: URLSearchParams): readonly string[] {
  const bearer = /^bearer\s+(\S+)\s*$/i.exec(headers.authorization ?? "")?.[1];
  const keys = [bearer, headers["x-api-key"], headers["x-goog-api-key"], query.get("key")].filter((key): key is string => typeof key === "string" && key !== "");
  return [...new Set(keys)];
}

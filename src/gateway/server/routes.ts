/** Which call of which dialect a path names. Harnesses disagree on what belongs to the base URL, so versions may be missing or repeated. */
import type { Dialect } from "../conversation.ts";

export type Route =
  /** `array`: Gemini streams one JSON array instead of events. */
  | { readonly kind: "generate"; readonly dialect: Dialect; readonly model: string | null; readonly stream: boolean | null; readonly array: boolean }
  | { readonly kind: "count"; readonly dialect: Dialect; readonly model: string | null }
  | { readonly kind: "models"; readonly dialect: Dialect }
  /** Asked by clients before they start; says nothing. */
  | { readonly kind: "probe" }
  | { readonly kind: "unknown"; readonly dialect: Dialect; readonly why: string };

export interface Target {
  /** Session id or token after `/s/`; null for paths without. */
  readonly session: string | null;
  readonly route: Route;
  readonly query: URLSearchParams;
}

const POSTS: Readonly<Record<string, Route>> = {
  "/chat/completions": { kind: "generate", dialect: "openai-chat", model: null, stream: null, array: false },
  "/responses": { kind: "generate", dialect: "openai-responses", model: null, stream: null, array: false },
  "/responses/input_tokens": { kind: "count", dialect: "openai-responses", model: null },
  "/messages": { kind: "generate", dialect: "anthropic", model: null, stream: null, array: false },
  "/messages/count_tokens": { kind: "count", dialect: "anthropic", model: null },
};

/** `isAnthropic`: the request has that vendor's version header, which tells its listing of models from OpenAI's. */
export function readTarget(method: string, url: string, isAnthropic: boolean): Target {
  const cut = url.indexOf("?");
  const path = cut < 0 ? url : url.slice(0, cut);
  const query = new URLSearchParams(cut < 0 ? "" : url.slice(cut + 1));
  const match = /^\/s\/([^/]{1,200})(\/.*)?$/.exec(path);
  const rest = match === null ? path : (match[2] ?? "/");
  return { session: match?.[1] ?? null, route: routeOf(method, rest, query, isAnthropic), query };
}

function routeOf(method: string, path: string, query: URLSearchParams, isAnthropic: boolean): Route {
  const versions = /^(?:\/v1(?:beta|alpha)?(?=\/))*/.exec(path)?.[0] ?? "";
  const rest = path.slice(versions.length).replace(/\/+$/, "") || "/";
  const gemini = /^\/models\/([^/]{1,200}):(\w+)$/.exec(rest);
  const dialect: Dialect = gemini !== null || versions.includes("v1beta") || versions.includes("v1alpha") ? "gemini" : rest.startsWith("/messages") || isAnthropic ? "anthropic" : rest.startsWith("/responses") ? "openai-responses" : "openai-chat";
  const unknown = (why: string): Route => ({ kind: "unknown", dialect, why });
  if (method === "GET" || method === "HEAD") {
    if (rest === "/models") return { kind: "models", dialect };
    if (rest === "/" || rest === "/api/hello") return { kind: "probe" };
    return unknown(`There is no ${printable(path)} here.`);
  }
  if (method !== "POST") return unknown(`${printable(method)} is not answered here.`);
  const known = POSTS[rest];
  if (known !== undefined) return known;
  if (gemini === null) return unknown(`There is no ${printable(path)} here.`);
  const model = decode(gemini[1] ?? "");
  if (model === null) return unknown("The model's name in the path is not well encoded.");
  switch (gemini[2]) {
    case "generateContent":
      return { kind: "generate", dialect, model, stream: false, array: false };
    case "streamGenerateContent":
      return { kind: "generate", dialect, model, stream: true, array: query.get("alt") !== "sse" };
    case "countTokens":
      return { kind: "count", dialect, model };
    default:
      return unknown(`There is no method ${printable(gemini[2] ?? "")} here.`);
  }
}

function decode(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

/** A path comes from the sandbox, and goes back in a message. */
function printable(text: string): string {
  return JSON.stringify(text.slice(0, 200)).slice(1, -1);
}

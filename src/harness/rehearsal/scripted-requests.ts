/** What the scripted model reads of a request in each of the four model APIs. */
import type { IncomingHttpHeaders } from "node:http";
import type { Dialect } from "../../gateway/conversation.ts";
import type { ModelRequest } from "./scripted-model.ts";

type Json = Readonly<Record<string, unknown>>;

/** Null for what is no request for an answer. */
export function readRequest(method: string, path: string, headers: IncomingHttpHeaders, text: string): ModelRequest | null {
  const dialect = method === "POST" ? dialectOf(path) : null;
  if (dialect === null) return null;
  const body = JSON.parse(text) as Json;
  const read = READERS[dialect](body);
  return { dialect, path, token: tokenOf(headers), body, turn: read.results.length, ...read };
}

function dialectOf(path: string): Dialect | null {
  if (/\/chat\/completions(?:\?|$)/.test(path)) return "openai-chat";
  if (/\/v1\/responses(?:\?|$)/.test(path)) return "openai-responses";
  if (/\/v1\/messages(?:\?|$)/.test(path)) return "anthropic";
  return /\/v1(?:beta)?\/models\/[^/]+:(?:streamG|g)enerateContent(?:\?|$)/.test(path) ? "gemini" : null;
}

function tokenOf(headers: IncomingHttpHeaders): string | null {
  const key = headers["x-api-key"] ?? headers["x-goog-api-key"];
  return typeof key === "string" ? key : (/^Bearer (.+)$/.exec(headers.authorization ?? "")?.[1] ?? null);
}

interface Read {
  readonly userTexts: readonly string[];
  readonly results: readonly string[];
  readonly tools: readonly string[];
}

const READERS: Readonly<Record<Dialect, (body: Json) => Read>> = {
  "openai-chat": (body) => {
    const messages = list(body["messages"]);
    return {
      userTexts: messages.filter((message) => message["role"] === "user").flatMap((message) => textsOf(message["content"])),
      results: messages.filter((message) => message["role"] === "tool").map((message) => textsOf(message["content"]).join("")),
      tools: list(body["tools"]).map((tool) => text(object(tool["function"])["name"])),
    };
  },
  "openai-responses": (body) => {
    const input = list(body["input"]);
    const tools = [...list(body["tools"]), ...input.flatMap((item) => (item["type"] === "additional_tools" ? list(item["tools"]) : []))];
    return {
      userTexts: input.filter((item) => item["role"] === "user").flatMap((item) => textsOf(item["content"])),
      results: input.filter((item) => text(item["type"]).endsWith("_call_output")).map((item) => textsOf(item["output"]).join("")),
      tools: tools.concat(tools.flatMap((tool) => list(tool["tools"]))).map((tool) => text(tool["name"] ?? tool["type"])),
    };
  },
  anthropic: (body) => {
    const blocks = list(body["messages"]).filter((message) => message["role"] === "user");
    const contents = blocks.flatMap((message) => (typeof message["content"] === "string" ? [{ type: "text", text: message["content"] }] : list(message["content"])));
    return {
      userTexts: contents.filter((block) => block["type"] === "text").map((block) => text(block["text"])),
      results: contents.filter((block) => block["type"] === "tool_result").map((block) => textsOf(block["content"]).join("")),
      tools: list(body["tools"]).map((tool) => text(tool["name"])),
    };
  },
  gemini: (body) => {
    const parts = list(body["contents"]).filter((content) => content["role"] !== "model").flatMap((content) => list(content["parts"]));
    return {
      userTexts: parts.flatMap((part) => (typeof part["text"] === "string" ? [part["text"]] : [])),
      results: parts.filter((part) => part["functionResponse"] !== undefined).map((part) => JSON.stringify(object(part["functionResponse"])["response"])),
      tools: list(body["tools"]).flatMap((tool) => list(tool["functionDeclarations"])).map((tool) => text(tool["name"])),
    };
  },
};

function textsOf(content: unknown): readonly string[] {
  if (typeof content === "string") return [content];
  return list(content).flatMap((part) => (typeof part["text"] === "string" ? [part["text"]] : []));
}

function list(value: unknown): readonly Json[] {
  return Array.isArray(value) ? value.map(object) : [];
}

function object(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

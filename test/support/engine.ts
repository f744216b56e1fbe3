/**
 * An inference server for tests: speaks OpenAI chat completions over real HTTP, answers from a script, and misbehaves in the ways in which real ones do.
 *
 * Its tokeniser is the UTF-8 byte, so token ids and logprobs are exact, and each prompt extends the prompt and answer before it.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

interface EngineToolCall {
  readonly id?: string | null;
  readonly name?: string;
  /** Shorthand for arguments `{"command": ...}`. */
  readonly command?: string;
  /** Raw text of the arguments, valid or not. */
  readonly arguments?: string;
}

export interface Reply {
  /** Milliseconds before the first byte of the response. */
  readonly delayMs?: number;
  readonly content?: string | null;
  readonly reasoning?: string;
  readonly refusal?: string;
  readonly calls?: readonly EngineToolCall[];
  readonly finishReason?: string;
  /** Leave `usage` out. */
  readonly noUsage?: boolean;
  /** An error response, or any raw body. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly raw?: string;
  /** Breaks off: before any header, after the headers, in the middle of the body, or never answers. */
  readonly breakOff?: "connection" | "headers" | "body" | "never";
  /** Trickles one byte of a well-formed body at a time, this far apart, milliseconds. */
  readonly trickleMs?: number;
  /** Sends this many bytes of body, whatever the content. */
  readonly bytes?: number;
}

interface EngineRequest {
  readonly path: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Readonly<Record<string, unknown>>;
  /** Answers of the assistant in the conversation so far. */
  readonly turn: number;
  /** How often this very conversation was sent before. */
  readonly attempt: number;
}

export interface EngineOptions {
  /** How token ids are returned when asked for; `refuse`: HTTP 400 for fields that OpenAI does not know. Default `vllm`. */
  readonly tokens?: "vllm" | "sglang" | "refuse" | "none";
}

export interface Engine {
  /** Base URL up to and including `/v1`. */
  readonly url: string;
  readonly requests: readonly EngineRequest[];
  close(): Promise<void>;
}

/** What is answered to each turn of every conversation; a list within the list answers the tries of one turn, its last entry all later ones. */
export type EngineScript = readonly (Reply | readonly Reply[])[] | ((request: EngineRequest) => Reply);

export async function startEngine(script: EngineScript, options: EngineOptions = {}): Promise<Engine> {
  const requests: EngineRequest[] = [];
  const attempts = new Map<string, number>();
  const server = createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });
  async function answer(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of incoming) parts.push(part as Buffer);
    const body = JSON.parse(Buffer.concat(parts).toString("utf8")) as Record<string, unknown>;
    const messages = Array.isArray(body["messages"]) ? (body["messages"] as readonly Message[]) : [];
    const refused = options.tokens === "refuse" ? Object.keys(body).find((key) => key.startsWith("return_")) : undefined;
    const key = JSON.stringify(messages);
    const attempt = attempts.get(key) ?? 0;
    if (refused === undefined) attempts.set(key, attempt + 1);
    const turn = messages.filter((message) => message.role === "assistant").length;
    const request: EngineRequest = { path: incoming.url ?? "", headers: incoming.headers, body, turn, attempt };
    requests.push(request);
    if (request.path !== "/v1/chat/completions") return send(response, 404, JSON.stringify({ detail: "Not Found" }));
    if (refused !== undefined) return send(response, 400, JSON.stringify({ error: { message: `Unrecognized request argument supplied: ${refused}`, type: "invalid_request_error" } }));
    await carryOut(typeof script === "function" ? script(request) : pick(script, request), request, messages, response, options.tokens ?? "vllm");
  }
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/v1`,
    requests,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

interface Message {
  readonly role: string;
  readonly content: unknown;
  readonly tool_calls?: unknown;
}

function pick(script: readonly (Reply | readonly Reply[])[], { turn, attempt }: EngineRequest): Reply {
  const entry = script[turn] ?? { content: "(the script is over)" };
  if (!isList(entry)) return entry;
  return entry[Math.min(attempt, entry.length - 1)] ?? {};
}

function isList(entry: Reply | readonly Reply[]): entry is readonly Reply[] {
  return Array.isArray(entry);
}

async function carryOut(reply: Reply, request: EngineRequest, messages: readonly Message[], response: ServerResponse, tokens: NonNullable<EngineOptions["tokens"]>): Promise<void> {
  if (reply.delayMs !== undefined) await new Promise((resolve) => setTimeout(resolve, reply.delayMs));
  if (reply.breakOff === "never") return;
  if (reply.breakOff === "connection") return void response.destroy();
  const text = reply.bytes !== undefined ? "x".repeat(reply.bytes) : (reply.raw ?? JSON.stringify(completion(reply, request, messages, tokens)));
  if (reply.breakOff === undefined && reply.trickleMs === undefined) return send(response, reply.status ?? 200, text, reply.headers);
  response.writeHead(reply.status ?? 200, { "content-type": "application/json", "content-length": Buffer.byteLength(text), ...reply.headers });
  if (reply.breakOff === "headers") {
    response.flushHeaders();
    setTimeout(() => response.destroy(), 20);
  } else if (reply.breakOff === "body") {
    response.write(text.slice(0, Math.floor(text.length / 2)));
    setTimeout(() => response.destroy(), 20);
  } else {
    for (const byte of Buffer.from(text)) {
      if (response.destroyed) return;
      response.write(Buffer.of(byte));
      await new Promise((resolve) => setTimeout(resolve, reply.trickleMs));
    }
    response.end();
  }
}

function send(response: ServerResponse, status: number, text: string, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(text);
}

function completion(reply: Reply, request: EngineRequest, messages: readonly Message[], tokens: NonNullable<EngineOptions["tokens"]>): unknown {
  const toolCalls = (reply.calls ?? []).map((call, index) => ({
    id: call.id === null ? undefined : (call.id ?? `call-${request.turn}-${index}`),
    type: "function",
    function: { name: call.name ?? "bash", arguments: call.arguments ?? JSON.stringify({ command: call.command ?? "true" }) },
  }));
  const message = {
    role: "assistant",
    content: reply.content ?? (toolCalls.length > 0 ? null : ""),
    ...(reply.reasoning === undefined ? {} : { reasoning_content: reply.reasoning }),
    ...(reply.refusal === undefined ? {} : { refusal: reply.refusal }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  };
  const prompt = [...Buffer.from(`${messages.map(render).join("")}<assistant>`)];
  const sampled = [...Buffer.from(render(message).slice("<assistant>".length))];
  const { body } = request;
  const logprobs = sampled.map((_, index) => -(index % 7) / 8);
  const wantsLogprobs = tokens !== "none" && body["logprobs"] === true;
  const vllm = tokens === "vllm" && body["return_token_ids"] === true;
  const sglang = tokens === "sglang";
  return {
    id: "chatcmpl-test",
    object: "chat.completion",
    model: body["model"],
    ...(vllm ? { prompt_token_ids: prompt } : {}),
    choices: [
      {
        index: 0,
        message,
        finish_reason: reply.finishReason ?? (toolCalls.length > 0 ? "tool_calls" : "stop"),
        ...(wantsLogprobs ? { logprobs: { content: sampled.map((id, index) => ({ token: String.fromCharCode(id), logprob: logprobs[index], bytes: [id], top_logprobs: [] })) } } : { logprobs: null }),
        ...(vllm ? { token_ids: sampled } : {}),
        ...(sglang && body["return_prompt_token_ids"] === true ? { prompt_token_ids: prompt } : {}),
        ...(sglang && body["return_meta_info"] === true
          ? { meta_info: { id: "test", weight_version: "7", output_token_logprobs: sampled.map((id, index) => [logprobs[index], id, null]) } }
          : {}),
      },
    ],
    ...(reply.noUsage === true ? {} : { usage: { prompt_tokens: prompt.length, completion_tokens: sampled.length, total_tokens: prompt.length + sampled.length } }),
  };
}

function render(message: Message): string {
  const calls = message.tool_calls === undefined ? "" : JSON.stringify(message.tool_calls);
  return `<${message.role}>${typeof message.content === "string" ? message.content : ""}${calls}<end>`;
}

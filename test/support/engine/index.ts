/**
 * An inference server for tests and benches: real HTTP, a real tokenizer, answers from a script, exact records of what it sampled, and faults on demand.
 *
 * It speaks chat completions as vLLM, SGLang or a plain server do, and takes token ids as vLLM and SGLang do. Alone: `node --import tsx test/support/engine/main.ts --port 8000`.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { chatCompletion, chatEvents, type ChatFlavour } from "./chat.ts";
import { sglangAborted, tokenEndpoint, type TokenContext, type TokenEndpoint } from "./generate.ts";
import { sendEvents, sendJson, sendWhole } from "./respond.ts";
import { sample, type Sampled, type SampleLimits } from "./sample.ts";
import { replyTo, type EngineRequest, type EngineScript, type Reply } from "./script.ts";
import { renderChat, type ChatMessage } from "./template.ts";
import { decode, encode } from "./tokenizer.ts";

export type { EngineRequest, EngineScript, Reply } from "./script.ts";

export interface EngineOptions {
  /** What it is: decides how token ids are asked for and returned. Default `vllm`. `openai` refuses fields that OpenAI does not know. */
  readonly flavour?: "vllm" | "sglang" | "openai";
  /** `logprobs`: no ids whatever is asked; `text`: no logprobs either. Default `tokens`. */
  readonly level?: "tokens" | "logprobs" | "text";
  /** Default: as the flavour does. */
  readonly reasoningField?: "reasoning" | "reasoning_content";
  readonly model?: string;
  /** Longest prompt and answer together; beyond it is the flavour's own refusal. Default 131,072. */
  readonly contextTokens?: number;
  /** Share of sampled tokens that are spelled in two parts, so that encoding the text again gives other ids. Default 0. */
  readonly drift?: number;
  /** Decides spelling and logprobs. Default "0". */
  readonly seed?: string;
  /** What counts the turns of a conversation for a list of replies. Default `answers`. */
  readonly turnsBy?: "answers" | "tools";
  /** Requests without this key get 401. */
  readonly apiKey?: string;
  readonly port?: number;
  /** Forget requests and samples: for benches. */
  readonly forgetful?: boolean;
}

/** What was sampled for one request, to be compared bit for bit. */
export interface EngineSample {
  readonly promptIds: readonly number[];
  readonly completionIds: readonly number[];
  readonly logprobs: readonly number[];
}

export interface Engine {
  /** Base URL up to and including `/v1`. */
  readonly url: string;
  /** Without `/v1`. */
  readonly root: string;
  readonly requests: readonly EngineRequest[];
  /** In the order of requests that were answered. */
  readonly samples: readonly EngineSample[];
  /** Streams whose client went away before their end. */
  readonly hungUp: number;
  /** Ids that `/abort_request` named, in order. */
  readonly aborted: readonly string[];
  /** Policy version of what is sampled from now on. */
  version: string;
  close(): Promise<void>;
}

const CONTEXT_TOKENS = 131_072;

export async function startEngine(script: EngineScript, options: EngineOptions = {}): Promise<Engine> {
  const engine = new EngineServer(script, options);
  await engine.listen();
  return engine;
}

class EngineServer implements Engine {
  readonly requests: EngineRequest[] = [];
  readonly samples: EngineSample[] = [];
  readonly aborted: string[] = [];
  hungUp = 0;
  version = "0";
  url = "";
  root = "";
  readonly #script: EngineScript;
  readonly #options: EngineOptions;
  readonly #attempts = new Map<string, number>();
  #answered = 0;
  readonly #server = createServer({ keepAlive: true }, (request, response) => {
    void this.#answer(request, response).catch(() => response.destroy());
  });

  constructor(script: EngineScript, options: EngineOptions) {
    this.#script = script;
    this.#options = options;
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(this.#options.port ?? 0, "127.0.0.1", resolve));
    const { port } = this.#server.address() as AddressInfo;
    this.root = `http://127.0.0.1:${port}`;
    this.url = `${this.root}/v1`;
  }

  close(): Promise<void> {
    return new Promise((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeAllConnections();
    });
  }

  async #answer(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of incoming) parts.push(part as Buffer);
    const path = (incoming.url ?? "").split("?")[0] ?? "";
    const { apiKey, model = "test-model", contextTokens = CONTEXT_TOKENS, flavour = "vllm" } = this.#options;
    if (apiKey !== undefined && incoming.headers.authorization !== `Bearer ${apiKey}`) {
      return sendJson(response, 401, JSON.stringify({ error: { message: `Incorrect API key provided: ${incoming.headers.authorization ?? "none"}`, type: "invalid_request_error", code: "invalid_api_key" } }));
    }
    if (path === "/v1/models") {
      return sendJson(response, 200, JSON.stringify({ object: "list", data: [{ id: model, object: "model", owned_by: flavour, ...(flavour === "openai" ? {} : { max_model_len: contextTokens }) }] }));
    }
    const body = parse(Buffer.concat(parts).toString("utf8"));
    if (body === null) return sendJson(response, 400, JSON.stringify({ error: { message: "The body is no JSON object.", type: "invalid_request_error" } }));
    if (path === "/v1/chat/completions") return this.#chat(path, incoming, body, response);
    const endpoint = tokenEndpoint(path, flavour);
    if (endpoint !== null) return this.#tokensIn(endpoint, path, incoming, body, response);
    if (path === "/abort_request" && flavour === "sglang") {
      this.aborted.push(String(body["rid"]));
      return sendJson(response, 200, "");
    }
    if (path === "/tokenize" && flavour === "vllm") {
      const ids = typeof body["prompt"] === "string" ? encode(body["prompt"]) : promptOf(body);
      return sendJson(response, 200, JSON.stringify({ count: ids.length, max_model_len: contextTokens, tokens: ids }));
    }
    return sendJson(response, 404, JSON.stringify({ detail: "Not Found" }));
  }

  async #chat(path: string, incoming: IncomingMessage, body: Readonly<Record<string, unknown>>, response: ServerResponse): Promise<void> {
    const { flavour = "vllm" } = this.#options;
    const refused = flavour === "openai" ? Object.keys(body).find((key) => key.startsWith("return_") || key === "request_id" || key === "rid") : undefined;
    if (refused !== undefined) return sendJson(response, 400, JSON.stringify({ error: { message: `Unrecognized request argument supplied: ${refused}`, type: "invalid_request_error", param: null, code: null } }));
    const messages = Array.isArray(body["messages"]) ? (body["messages"] as readonly ChatMessage[]) : [];
    let promptIds: readonly number[] | null = null;
    const request: EngineRequest = {
      path,
      headers: incoming.headers,
      body,
      // Only where somebody wants them: a conversation may be long, and its answer need none.
      get promptIds() {
        return (promptIds ??= promptOf(body));
      },
      turn: messages.filter(({ role }) => role === "assistant").length,
      toolTurns: messages.filter(({ role }, index) => role === "tool" && messages[index + 1]?.role !== "tool").length,
      attempt: this.#attempt(JSON.stringify(messages)),
    };
    const reply = await this.#begin(request, response);
    if (reply === null) return;
    const maxTokens = numberOf(body["max_completion_tokens"]) ?? numberOf(body["max_tokens"]);
    const sampled = this.#sample(request, reply, { maxTokens, stop: stopsOf(body["stop"]) }, response);
    if (sampled === null) return;
    const context = { id: `chatcmpl-${this.#answered}`, model: body["model"], body, promptIds: request.promptIds, sampled, reply, flavour: this.#chatFlavour(), version: this.version };
    if ((body["stream"] === true) === (reply.ignoreStream === true)) return sendWhole(reply, response, () => chatCompletion(context));
    if (!(await sendEvents(reply, response, chatEvents(context)))) this.hungUp++;
  }

  async #tokensIn(endpoint: TokenEndpoint, path: string, incoming: IncomingMessage, body: Readonly<Record<string, unknown>>, response: ServerResponse): Promise<void> {
    const given = body["token_ids"] ?? body["input_ids"] ?? body["prompt"] ?? body["text"];
    const promptIds = typeof given === "string" ? encode(given) : isIds(given) ? given : null;
    if (promptIds === null) return sendJson(response, 400, JSON.stringify({ error: { message: "the prompt is neither text nor token ids", type: "invalid_request_error" } }));
    const text = decode(promptIds);
    const request: EngineRequest = {
      path,
      headers: incoming.headers,
      body,
      // The last one is the answer that is asked for.
      turn: Math.max(0, text.split("<|im_start|>assistant").length - 2),
      toolTurns: text.split("<|im_start|>user\n<tool_response>").length - 1,
      attempt: this.#attempt(text),
      promptIds,
    };
    const reply = await this.#begin(request, response);
    if (reply === null) return;
    const params = { ...body, ...(body["sampling_params"] as Record<string, unknown> | undefined) };
    const sampled = this.#sample(request, reply, { maxTokens: numberOf(params["max_tokens"]) ?? numberOf(params["max_new_tokens"]), stop: stopsOf(params["stop"]) }, response);
    if (sampled === null) return;
    const id = typeof body["rid"] === "string" ? body["rid"] : typeof body["request_id"] === "string" ? body["request_id"] : `gen-${this.#answered}`;
    const isAborted = (): boolean => this.aborted.some((rid) => id.startsWith(rid));
    const context: TokenContext = { id, request, sampled, isAborted, version: this.version, logprobs: (this.#options.level ?? "tokens") !== "text" };
    if ((body["stream"] === true) === (reply.ignoreStream === true)) return sendWhole(reply, response, () => (isAborted() ? sglangAborted(context) : endpoint.whole(context)));
    if (!(await sendEvents(reply, response, endpoint.events(context)))) this.hungUp++;
  }

  /** Null: the reply was a failure, and has been sent. */
  async #begin(request: EngineRequest, response: ServerResponse): Promise<Reply | null> {
    if (this.#options.forgetful !== true) this.requests.push(request);
    const reply = replyTo(this.#script, request, this.#options.turnsBy === "tools" ? request.toolTurns : request.turn);
    if (reply.delayMs !== undefined) await new Promise((resolve) => setTimeout(resolve, reply.delayMs));
    await reply.after;
    if (reply.breakOff === "never") return null;
    if (reply.breakOff === "connection") {
      response.destroy();
      return null;
    }
    if (reply.raw !== undefined || reply.bytes !== undefined || reply.status !== undefined) {
      await sendWhole(reply, response, () => ({ error: { message: "scripted failure", type: "server_error" } }));
      return null;
    }
    return reply;
  }

  /** Null: the context is too small, and that has been said. */
  #sample(request: EngineRequest, reply: Reply, limits: SampleLimits, response: ServerResponse): Sampled | null {
    const { contextTokens = CONTEXT_TOKENS, seed = "0", drift = 0, forgetful = false } = this.#options;
    const { promptIds } = request;
    if (promptIds.length + (limits.maxTokens ?? 1) > contextTokens) {
      sendJson(response, 400, JSON.stringify(overflow(this.#options.flavour ?? "vllm", contextTokens, promptIds.length, limits.maxTokens)));
      return null;
    }
    const number = this.#answered++;
    const sampled = sample(reply, `call-${number}`, { ...limits, maxTokens: limits.maxTokens ?? contextTokens - promptIds.length }, `${seed}/${number}`, drift);
    if (!forgetful) this.samples.push({ promptIds, completionIds: sampled.tokens.map(({ id }) => id), logprobs: sampled.tokens.map(({ logprob }) => logprob) });
    return sampled;
  }

  #attempt(conversation: string): number {
    if (this.#options.forgetful === true) return 0;
    const attempt = this.#attempts.get(conversation) ?? 0;
    this.#attempts.set(conversation, attempt + 1);
    return attempt;
  }

  #chatFlavour(): ChatFlavour {
    const { flavour = "vllm", level = "tokens", reasoningField } = this.#options;
    return {
      ids: level !== "tokens" || flavour === "openai" ? "none" : flavour,
      logprobs: level !== "text",
      reasoningField: reasoningField ?? (flavour === "vllm" ? "reasoning" : "reasoning_content"),
    };
  }
}

function parse(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

function promptOf(body: Readonly<Record<string, unknown>>): readonly number[] {
  const messages = Array.isArray(body["messages"]) ? (body["messages"] as readonly ChatMessage[]) : [];
  const tools = Array.isArray(body["tools"]) ? (body["tools"] as readonly unknown[]) : [];
  return renderChat(messages, tools).flatMap((part) => encode(part) as number[]);
}

function stopsOf(stop: unknown): readonly string[] {
  return typeof stop === "string" ? [stop] : Array.isArray(stop) ? (stop as readonly string[]) : [];
}

function isIds(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((id) => Number.isInteger(id));
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

/** In each server's own words. */
function overflow(flavour: "vllm" | "sglang" | "openai", contextTokens: number, promptTokens: number, maxTokens: number | null): unknown {
  const asked = `${promptTokens + (maxTokens ?? 1)} tokens`;
  switch (flavour) {
    case "vllm":
      return { error: { message: `This model's maximum context length is ${contextTokens} tokens. However, your request has ${promptTokens} input tokens. Please reduce the length of the input messages.`, type: "BadRequestError", param: "input_tokens", code: 400 } };
    case "sglang":
      return { object: "error", message: `The input (${promptTokens} tokens) is longer than the model's context length (${contextTokens} tokens).`, type: "BadRequestError", param: null, code: 400 };
    case "openai":
      return { error: { message: `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${asked}. Please reduce the length of the messages.`, type: "invalid_request_error", param: "messages", code: "context_length_exceeded" } };
  }
}

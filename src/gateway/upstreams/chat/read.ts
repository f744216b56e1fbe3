/**
 * Reads chat completions, whole or in chunks, from servers that agree on little but the outline.
 *
 * An answer is complete when the server said why it ended. A stream that closes without that, with or without `[DONE]`, was cut off, and is `truncated`: never an answer.
 */
import type { Answer, Delta, FinishReason, TurnRequest, Usage } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { AnswerBuilder } from "../answer-builder.ts";
import type { AnswerReader } from "../answer-sink.ts";
import type { CallTokens } from "../upstream.ts";
import type { ReasoningField } from "./messages.ts";
import { record, TokenCollector } from "./tokens.ts";

type Json = Readonly<Record<string, unknown>>;

export interface ChatAnswer {
  readonly answer: Answer;
  readonly tokens: CallTokens | null;
  /** The server gave logprobs, whatever became of them. */
  readonly sawLogprobs: boolean;
  readonly upstreamId: string | null;
  readonly notes: readonly string[];
}

export interface ReadOptions {
  readonly request: TurnRequest;
  readonly requestId: string;
  /** The limit that was sent; null: the server's own. */
  readonly maxTokens: number | null;
  /** The server's own limit is the end of the context. */
  readonly unlimited: boolean;
  /** Turns an error object into what to throw. */
  readonly fail: (error: unknown) => GatewayFailure;
}

export class ChatReader implements AnswerReader<ChatAnswer> {
  readonly #builder: AnswerBuilder;
  /** Something of an answer has come. */
  begun = false;
  /** Under which name reasoning came. */
  reasoningField: ReasoningField | null = null;
  readonly #options: ReadOptions;
  readonly #tokens: TokenCollector;
  readonly #notes: string[] = [];
  #finish: string | null = null;
  #stop: unknown = null;
  #usage: Usage | null = null;
  #id: string | null = null;
  readonly #keys = new Map<number, string | number>();
  #lastKey: string | number = 0;
  readonly #idOfKey = new Map<string | number, string>();

  constructor(options: ReadOptions) {
    this.#options = options;
    this.#builder = new AnswerBuilder(options.request, options.requestId);
    this.#tokens = new TokenCollector(options.request.logprobs !== null);
  }

  chunk(body: unknown): void {
    const choice = this.#open(body);
    if (choice === null) return;
    this.#message(record(choice["delta"]), "delta");
    this.#close(choice);
  }

  whole(body: unknown): void {
    const choice = this.#open(body);
    if (choice === null || typeof choice["message"] !== "object" || choice["message"] === null) throw new GatewayFailure("upstream", "The model server answered with JSON that is no chat completion.");
    this.#message(record(choice["message"]), "message");
    this.#close(choice);
    if (this.#finish === null) {
      // The body was whole; only a stream can end too early without anybody noticing.
      this.#finish = "stop";
      this.#notes.push("The model server did not say why its answer ended.");
    }
  }

  take(): readonly Delta[] {
    return this.#builder.take();
  }

  #open(body: unknown): Json | null {
    const fields = record(body);
    if (fields["error"] !== undefined && fields["error"] !== null) throw this.#options.fail(fields["error"]);
    if (fields["object"] === "error") throw this.#options.fail(fields);
    if (typeof fields["id"] === "string") this.#id ??= fields["id"];
    const choices = Array.isArray(fields["choices"]) ? (fields["choices"] as readonly unknown[]) : [];
    const first = choices.find((choice) => (record(choice)["index"] ?? 0) === 0);
    const choice = first === undefined ? null : record(first);
    this.#usage = readUsage(fields["usage"]) ?? this.#usage;
    this.#tokens.add(fields, choice);
    if (choice !== null) this.begun = true;
    return choice;
  }

  #close(choice: Json): void {
    if (typeof choice["finish_reason"] === "string" && choice["finish_reason"] !== "") {
      this.#finish = choice["finish_reason"];
      this.#stop = choice["stop_reason"] ?? choice["matched_stop"] ?? null;
    }
  }

  #message(message: Json, form: "delta" | "message"): void {
    const reasoning = this.#reasoning(message);
    this.#builder.text("reasoning", reasoning);
    this.#builder.text("text", textOf(message["content"]));
    if (typeof message["refusal"] === "string") this.#builder.text("refusal", message["refusal"]);
    const calls = Array.isArray(message["tool_calls"]) ? (message["tool_calls"] as readonly unknown[]) : [];
    calls.forEach((call, at) => this.#toolCall(record(call), form === "message" ? at : null));
    const old = message["function_call"];
    if (typeof old === "object" && old !== null) this.#toolCall({ id: null, function: old }, form === "message" ? 0 : null);
  }

  /** Some servers send it under both names. */
  #reasoning(message: Json): string {
    for (const field of ["reasoning_content", "reasoning"] as const) {
      const text = message[field];
      if (typeof text !== "string" || text === "") continue;
      this.reasoningField ??= field;
      return text;
    }
    return "";
  }

  #toolCall(call: Json, at: number | null): void {
    const { name, arguments: given } = record(call["function"]);
    const id = typeof call["id"] === "string" && call["id"] !== "" ? call["id"] : null;
    const called = typeof name === "string" && name !== "" ? name : null;
    const key = at ?? this.#keyOf(call["index"], id, called);
    this.#builder.toolCall(key, id, called, argumentsText(given));
  }

  /** Which call a piece belongs to: servers number them, or give ids, or neither; some give one number to all. */
  #keyOf(index: unknown, id: string | null, name: string | null): string | number {
    if (typeof index === "number") {
      const key = this.#keys.get(index) ?? index;
      const known = this.#idOfKey.get(key);
      const isNew = id !== null && name !== null && known !== undefined && known !== id;
      this.#lastKey = isNew ? `${index}/${id}` : key;
      this.#keys.set(index, this.#lastKey);
    } else if (id !== null ? this.#idOfKey.get(this.#lastKey) !== id : name !== null) {
      this.#lastKey = `piece/${this.#idOfKey.size}/${id ?? name}`;
    }
    if (id !== null || !this.#idOfKey.has(this.#lastKey)) this.#idOfKey.set(this.#lastKey, id ?? "");
    return this.#lastKey;
  }

  /** Throws `truncated` for an answer that has no end. Deltas that were held back are left in the builder. */
  end(): ChatAnswer {
    if (this.#finish === null) {
      throw new GatewayFailure(this.begun ? "truncated" : "upstream", this.begun ? "The model server's answer broke off before its end." : "The model server's stream ended without an answer.");
    }
    if (["abort", "error", "cancelled"].includes(this.#finish)) throw new GatewayFailure("upstream", `The model server ended the generation by itself (${this.#finish}).`);
    const blocks = this.#builder.end();
    const notes = [...this.#notes, ...this.#builder.notes];
    const counted = this.#usage ?? this.#tokens.usage();
    const tokens = this.#tokens.end(this.#usage, notes);
    const { finish, stopSequence } = this.#finishReason(blocks.some(({ type }) => type === "tool_call"), counted, notes);
    const { shown } = this.#tokens;
    return {
      answer: { blocks, finish, stopSequence, usage: counted, logprobs: this.#options.request.logprobs === null ? null : shown },
      tokens,
      sawLogprobs: this.#tokens.sawLogprobs,
      upstreamId: this.#id,
      notes,
    };
  }

  #finishReason(hasCalls: boolean, usage: Usage | null, notes: string[]): { readonly finish: FinishReason; readonly stopSequence: string | null } {
    const reason = this.#finish ?? "";
    switch (reason) {
      case "stop":
      case "eos":
      case "eos_token":
      case "stop_sequence":
        if (typeof this.#stop === "string") return { finish: "stop_sequence", stopSequence: this.#stop };
        return { finish: hasCalls ? "tool_calls" : "stop", stopSequence: null };
      case "tool_calls":
      case "function_call":
        return { finish: hasCalls ? "tool_calls" : "stop", stopSequence: null };
      case "length":
      case "max_tokens": {
        const { maxTokens, unlimited } = this.#options;
        const atContext = maxTokens === null ? unlimited : usage !== null && usage.completionTokens < maxTokens;
        return { finish: atContext ? "context" : "length", stopSequence: null };
      }
      case "content_filter":
      case "refusal":
        return { finish: reason, stopSequence: null };
      default:
        notes.push(`The model server ended its answer with ${JSON.stringify(reason.slice(0, 100))}, taken for a stop.`);
        return { finish: hasCalls ? "tool_calls" : "stop", stopSequence: null };
    }
  }
}

/** Text, or the text of content parts. */
function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part: unknown) => (typeof record(part)["text"] === "string" ? String(record(part)["text"]) : "")).join("");
}

/** Some servers send the arguments as an object instead of its JSON text. */
function argumentsText(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value);
}

function readUsage(value: unknown): Usage | null {
  const usage = record(value);
  const [prompt, completion] = [count(usage["prompt_tokens"]), count(usage["completion_tokens"])];
  if (prompt === null || completion === null) return null;
  return {
    promptTokens: prompt,
    completionTokens: completion,
    cachedTokens: count(record(usage["prompt_tokens_details"])["cached_tokens"]) ?? 0,
    reasoningTokens: count(record(usage["completion_tokens_details"])["reasoning_tokens"]) ?? count(usage["reasoning_tokens"]) ?? 0,
  };
}

function count(value: unknown): number | null {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : null;
}

/**
 * What is asked of a server beyond what the harness asked, and what it turns out to refuse.
 *
 * No server says which fields it knows. All are asked for at first; a refusal that names some takes those away, any other refusal takes a whole step. What a request went
 * without that was accepted in the end is remembered for the model, and so is what it had: of that, no later refusal can be the fault.
 */
import { hash } from "node:crypto";
import type { TurnRequest } from "../../conversation.ts";
import type { UpstreamKind } from "../spec.ts";

/** Fields that can be given up without changing what the answer means: what is lost is capture, or a hint about thinking. */
const OPTIONAL_FIELDS = [
  "return_token_ids",
  "return_prompt_token_ids",
  "return_meta_info",
  "request_id",
  "rid",
  "logprobs",
  "stream_options",
  "reasoning_effort",
  "chat_template_kwargs",
  "thinking_token_budget",
] as const;
type OptionalField = (typeof OPTIONAL_FIELDS)[number];

export interface ChatAsks {
  readonly fields: ReadonlySet<OptionalField>;
  readonly maxTokensField: "max_tokens" | "max_completion_tokens";
  /** Fields that accepted requests had. */
  readonly proven: ReadonlySet<string>;
}

/** vLLM and SGLang spell the same wishes differently; where nothing is known of a server, both are tried. */
const FIELDS_OF_KIND: Readonly<Record<UpstreamKind, readonly OptionalField[]>> = {
  vllm: OPTIONAL_FIELDS.filter((field) => field !== "return_prompt_token_ids" && field !== "return_meta_info" && field !== "rid"),
  sglang: OPTIONAL_FIELDS.filter((field) => field !== "request_id"),
  openai: OPTIONAL_FIELDS.filter((field) => field !== "request_id" && field !== "rid"),
};

/** Given up together when a refusal names nothing. */
const STEPS: readonly (readonly OptionalField[])[] = [
  ["return_token_ids", "return_prompt_token_ids", "return_meta_info", "request_id", "rid"],
  ["reasoning_effort", "chat_template_kwargs", "thinking_token_budget"],
  ["logprobs", "stream_options"],
];

export function firstAsks(kind: UpstreamKind): ChatAsks {
  return { fields: new Set(FIELDS_OF_KIND[kind]), maxTokensField: "max_tokens", proven: new Set() };
}

/** Their values are the harness's: a refusal may mean the value, which is nobody else's fault, and so it is remembered with that. */
const HARNESS_FIELDS = ["reasoning_effort", "chat_template_kwargs", "thinking_token_budget"] as const satisfies readonly OptionalField[];
const WISHES_REMEMBERED = 64;

/** What was given up of harnesses' wishes about thinking, by what they wished. */
export class UnmetWishes {
  readonly #given = new Map<string, readonly OptionalField[]>();

  /** What to ask for, for a request with these wishes. */
  apply(asks: ChatAsks, request: TurnRequest): ChatAsks {
    const given = this.#given.get(wishOf(request)) ?? [];
    return given.length === 0 ? asks : { ...asks, fields: new Set([...asks.fields].filter((field) => !given.includes(field))) };
  }

  /** After a request was accepted with `asks`, where `before` was asked for at first. */
  note(before: ChatAsks, asks: ChatAsks, request: TurnRequest): void {
    const given = HARNESS_FIELDS.filter((field) => before.fields.has(field) && !asks.fields.has(field));
    if (given.length === 0) return;
    if (this.#given.size >= WISHES_REMEMBERED) this.#given.clear();
    this.#given.set(wishOf(request), given);
  }
}

function wishOf({ reasoning, extra }: TurnRequest): string {
  return hash("sha256", JSON.stringify([reasoning, extra["chat_template_kwargs"] ?? null]), "base64url");
}

/** After `body` was accepted: what is remembered for all who use the model. `before`: what was asked for at first. */
export function provenAsks(asks: ChatAsks, body: Readonly<Record<string, unknown>>, before: ChatAsks): ChatAsks {
  const news = [...OPTIONAL_FIELDS, "max_tokens"].filter((field) => field in body && !asks.proven.has(field));
  const again = HARNESS_FIELDS.filter((field) => before.fields.has(field) && !asks.fields.has(field));
  if (news.length === 0 && again.length === 0) return asks;
  return { ...asks, proven: new Set([...asks.proven, ...news]), fields: new Set([...asks.fields, ...again]) };
}

/** What to try after a refusal of `body`; null when nothing can be given up any more. `given` says what was, for the record. */
export function fewerAsks(asks: ChatAsks, body: Readonly<Record<string, unknown>>, refusal: string): { readonly asks: ChatAsks; readonly given: string } | null {
  if ("max_tokens" in body && !asks.proven.has("max_tokens") && refusal.includes("max_completion_tokens")) {
    return { asks: { ...asks, maxTokensField: "max_completion_tokens" }, given: "max_tokens, for max_completion_tokens" };
  }
  const sent = OPTIONAL_FIELDS.filter((field) => asks.fields.has(field) && field in body && !asks.proven.has(field));
  const named = sent.filter((field) => new RegExp(`\\b${field}\\b`).test(refusal));
  const dropped = named.length > 0 ? named : (STEPS.map((step) => step.filter((field) => sent.includes(field))).find((step) => step.length > 0) ?? []);
  if (dropped.length === 0) return null;
  return { asks: { ...asks, fields: new Set([...asks.fields].filter((field) => !dropped.includes(field))) }, given: dropped.join(", ") };
}

/** A turn as the body of a chat completion. */
import type { TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { wireName, wireTools } from "../tool-names.ts";
import type { ChatAsks } from "./asks.ts";
import { chatMessages, type ReasoningField } from "./messages.ts";

export interface BodyOptions {
  readonly asks: ChatAsks;
  readonly stream: boolean;
  readonly requestId: string;
  readonly reasoningField: ReasoningField;
  /** Instead of the request's own limit; null leaves the limit to the server. */
  readonly maxTokens: number | null;
}

type Body = Record<string, unknown>;

export function chatBody(request: TurnRequest, { asks, stream, requestId, reasoningField, maxTokens }: BodyOptions): Body {
  const body: Body = { ...extraOf(request), model: request.model, messages: chatMessages(request.messages, reasoningField) };
  addTools(body, request);
  addSampling(body, request, maxTokens, asks.maxTokensField);
  addReasoning(body, request, asks);
  if (request.responseFormat !== null) body["response_format"] = responseFormat(request.responseFormat);
  if (stream) {
    body["stream"] = true;
    if (asks.fields.has("stream_options")) body["stream_options"] = { include_usage: true };
  }
  if (request.logprobs !== null) {
    body["logprobs"] = true;
    body["top_logprobs"] = request.logprobs;
  } else if (asks.fields.has("logprobs")) body["logprobs"] = true;
  for (const field of ["return_token_ids", "return_prompt_token_ids", "return_meta_info"] as const) if (asks.fields.has(field)) body[field] = true;
  for (const field of ["request_id", "rid"] as const) if (asks.fields.has(field)) body[field] = requestId;
  return body;
}

/** Fields that only this dialect's servers can know go there as they came; no other dialect's do. */
function extraOf(request: TurnRequest): Body {
  const [field] = Object.keys(request.extra);
  if (field === undefined) return {};
  if (request.dialect !== "openai-chat") throw new GatewayFailure("invalid_request", `The field ${field} cannot be passed on to a chat completions server.`, { field });
  const n = request.extra["n"];
  if (n !== undefined && n !== null && n !== 1) throw new GatewayFailure("invalid_request", "n: one answer a request is recorded; ask several times.", { field: "n" });
  return { ...request.extra };
}

function addTools(body: Body, request: TurnRequest): void {
  if (request.tools.length === 0) return;
  body["tools"] = wireTools(request.tools);
  if (request.parallelToolCalls !== null) body["parallel_tool_calls"] = request.parallelToolCalls;
  const choice = request.toolChoice;
  if (choice === null) return;
  if (choice.type !== "tool") {
    body["tool_choice"] = choice.type;
    return;
  }
  const tool = request.tools.find(({ name }) => name === choice.name);
  if (tool === undefined) throw new GatewayFailure("invalid_request", `tool_choice names ${choice.name}, which is none of the tools.`, { field: "tool_choice" });
  body["tool_choice"] = { type: "function", function: { name: wireName(tool) } };
}

function addSampling(body: Body, { sampling }: TurnRequest, maxTokens: number | null, maxTokensField: ChatAsks["maxTokensField"]): void {
  const set = (field: string, value: number | null): void => {
    if (value !== null) body[field] = value;
  };
  set("temperature", sampling.temperature);
  set("top_p", sampling.topP);
  set("top_k", sampling.topK);
  set("min_p", sampling.minP);
  set(maxTokensField, maxTokens);
  set("seed", sampling.seed);
  set("presence_penalty", sampling.presencePenalty);
  set("frequency_penalty", sampling.frequencyPenalty);
  set("repetition_penalty", sampling.repetitionPenalty);
  if (sampling.stop.length > 0) body["stop"] = sampling.stop;
}

/** Effort is OpenAI's word, the switch is one of the chat template's, the budget vLLM's. Each may be unknown to a server, which then is asked without it. */
function addReasoning(body: Body, { reasoning }: TurnRequest, { fields }: ChatAsks): void {
  if (reasoning === null) return;
  if (reasoning.effort !== null && fields.has("reasoning_effort")) body["reasoning_effort"] = reasoning.effort;
  if (reasoning.enabled !== null && fields.has("chat_template_kwargs")) {
    const given = body["chat_template_kwargs"];
    body["chat_template_kwargs"] = { enable_thinking: reasoning.enabled, ...(typeof given === "object" ? given : {}) };
  }
  if (reasoning.budgetTokens !== null && fields.has("thinking_token_budget")) body["thinking_token_budget"] = reasoning.budgetTokens;
}

function responseFormat(format: NonNullable<TurnRequest["responseFormat"]>): unknown {
  if (format.type === "json_object") return { type: "json_object" };
  const { name, schema, strict } = format;
  return { type: "json_schema", json_schema: { name: name ?? "answer", schema, ...(strict === null ? {} : { strict }) } };
}

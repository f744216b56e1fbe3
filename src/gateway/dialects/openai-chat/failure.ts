/**
 * Failures in OpenAI's words. The official clients try again on 408, 409, 429 and everything from 500; agents on LiteLLM (mini-swe-agent, retry.py) also on 400, ten
 * times, but never on 401: hence the status of a used-up budget.
 */
import type { FailureKind, GatewayFailure } from "../../failure.ts";
import type { ErrorResponse } from "../dialect.ts";
import { failureMessage, mayPass } from "../failure-words.ts";
import { retryHeaders } from "../retry-headers.ts";

const FORMS: Readonly<Record<FailureKind, { readonly status: number; readonly type: string; readonly code: string | null }>> = {
  invalid_request: { status: 400, type: "invalid_request_error", code: null },
  unauthorized: { status: 401, type: "invalid_request_error", code: "invalid_api_key" },
  not_found: { status: 404, type: "invalid_request_error", code: "model_not_found" },
  too_large: { status: 413, type: "invalid_request_error", code: "request_too_large" },
  closed: { status: 410, type: "invalid_request_error", code: "session_closed" },
  budget: { status: 401, type: "invalid_request_error", code: "session_budget_used_up" },
  context_overflow: { status: 400, type: "invalid_request_error", code: "context_length_exceeded" },
  rate_limited: { status: 429, type: "requests", code: "rate_limit_exceeded" },
  overloaded: { status: 503, type: "server_error", code: "overloaded" },
  timeout: { status: 504, type: "server_error", code: "timeout" },
  upstream: { status: 502, type: "server_error", code: "upstream_error" },
  truncated: { status: 502, type: "server_error", code: "upstream_error" },
  // Nobody is there to read it: 499 is what proxies note for a client that hung up.
  cancelled: { status: 499, type: "server_error", code: "cancelled" },
  refused_by_upstream: { status: 400, type: "invalid_request_error", code: null },
  internal: { status: 500, type: "server_error", code: null },
};

export function encodeChatFailure(failure: GatewayFailure): ErrorResponse {
  const { status, code } = FORMS[failure.kind];
  return { status, headers: retryHeaders(failure), body: errorBody(failure, code) };
}

/** In the middle of a stream, where there is no status any more, a number for a code takes its place, as in vLLM's errors: Qwen Code tries again on 429 and 503 (`isRateLimitError`). */
export function streamedFailure(failure: GatewayFailure): unknown {
  const { status, code } = FORMS[failure.kind];
  return errorBody(failure, mayPass(failure.kind) ? status === 429 ? 429 : 503 : code);
}

function errorBody(failure: GatewayFailure, code: string | number | null): unknown {
  return { error: { message: messageOf(failure), type: FORMS[failure.kind].type, param: paramOf(failure), code } };
}

function paramOf(failure: GatewayFailure): string | null {
  return failure.kind === "context_overflow" ? "messages" : (failure.details.field ?? null);
}

/** A context overflow is told in the API's own sentence, by which agents that do not see the code know it. */
export function messageOf(failure: GatewayFailure): string {
  const { promptTokens, contextTokens } = failure.details;
  if (failure.kind !== "context_overflow") return failureMessage(failure);
  if (promptTokens === undefined || contextTokens === undefined) return `This model's maximum context length is exceeded (context_length_exceeded). ${failure.message}`;
  return `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${promptTokens} tokens. Please reduce the length of the messages.`;
}

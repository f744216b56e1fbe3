/**
 * Failures in the words of the Responses API, as its clients act on them (Codex 0.171). Codex ends at once on any 400, on a 429 without `retry-after`, and in a stream on the
 * codes `context_length_exceeded` and `insufficient_quota`; everything else it tries again. A used-up budget is no 429: other agents try every 429 again.
 */
import type { FailureKind, GatewayFailure } from "../../failure.ts";
import type { ErrorResponse } from "../dialect.ts";
import { messageOf } from "../openai-chat/failure.ts";
import { retryHeaders } from "../retry-headers.ts";

const FORMS: Readonly<Record<FailureKind, { readonly status: number; readonly type: string; readonly code: string | null }>> = {
  invalid_request: { status: 400, type: "invalid_request_error", code: null },
  unauthorized: { status: 401, type: "invalid_request_error", code: "invalid_api_key" },
  not_found: { status: 404, type: "invalid_request_error", code: "model_not_found" },
  too_large: { status: 413, type: "invalid_request_error", code: "request_too_large" },
  closed: { status: 410, type: "invalid_request_error", code: "session_closed" },
  budget: { status: 400, type: "insufficient_quota", code: "insufficient_quota" },
  context_overflow: { status: 400, type: "invalid_request_error", code: "context_length_exceeded" },
  rate_limited: { status: 429, type: "requests", code: "rate_limit_exceeded" },
  overloaded: { status: 503, type: "server_error", code: "server_is_overloaded" },
  timeout: { status: 504, type: "server_error", code: "server_error" },
  upstream: { status: 502, type: "server_error", code: "server_error" },
  truncated: { status: 502, type: "server_error", code: "server_error" },
  refused_by_upstream: { status: 400, type: "invalid_request_error", code: null },
  cancelled: { status: 499, type: "invalid_request_error", code: "cancelled" },
  internal: { status: 500, type: "server_error", code: "server_error" },
};

/** Where nobody knows how long: without a time Codex gives up on a 429. */
const RETRY_AFTER_MS = 1000;

export function encodeFailure(failure: GatewayFailure): ErrorResponse {
  const { status, type, code } = FORMS[failure.kind];
  const wait = failure.kind === "rate_limited" && failure.details.retryAfterMs === undefined ? { "retry-after": String(RETRY_AFTER_MS / 1000) } : {};
  return { status, headers: { ...wait, ...retryHeaders(failure) }, body: { error: { message: messageOf(failure), type, param: failure.details.field ?? null, code } } };
}

/** `error` of a failed response. Codex reads the time to wait from the words. */
export function streamError(failure: GatewayFailure): { readonly code: string; readonly message: string } {
  const { code } = FORMS[failure.kind];
  const { retryAfterMs } = failure.details;
  const wait = failure.kind === "rate_limited" ? ` Please try again in ${((retryAfterMs ?? RETRY_AFTER_MS) / 1000).toFixed(3)}s.` : "";
  return { code: failure.kind === "closed" ? "insufficient_quota" : (code ?? "invalid_prompt"), message: messageOf(failure) + wait };
}

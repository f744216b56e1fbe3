/**
 * Failures in the words of the Responses API, as its clients act on them. The official SDK tries 408, 409, 429 and 5xx again unless `x-should-retry` says no; Codex tries a 429
 * again only with `retry-after`, and ends at once on `context_length_exceeded` and `insufficient_quota`.
 */
import type { FailureKind, GatewayFailure } from "../../failure.ts";
import type { ErrorResponse } from "../dialect.ts";

interface Form {
  readonly status: number;
  readonly type: string;
  readonly code: string | null;
  readonly retry: boolean;
}

const FORMS: Readonly<Record<FailureKind, Form>> = {
  invalid_request: { status: 400, type: "invalid_request_error", code: null, retry: false },
  unauthorized: { status: 401, type: "invalid_request_error", code: "invalid_api_key", retry: false },
  not_found: { status: 404, type: "invalid_request_error", code: "model_not_found", retry: false },
  too_large: { status: 413, type: "invalid_request_error", code: "request_too_large", retry: false },
  closed: { status: 410, type: "invalid_request_error", code: "session_closed", retry: false },
  budget: { status: 429, type: "insufficient_quota", code: "insufficient_quota", retry: false },
  context_overflow: { status: 400, type: "invalid_request_error", code: "context_length_exceeded", retry: false },
  rate_limited: { status: 429, type: "requests", code: "rate_limit_exceeded", retry: true },
  overloaded: { status: 503, type: "server_error", code: "server_is_overloaded", retry: true },
  timeout: { status: 504, type: "server_error", code: "server_error", retry: true },
  upstream: { status: 502, type: "server_error", code: "server_error", retry: true },
  truncated: { status: 502, type: "server_error", code: "server_error", retry: true },
  refused_by_upstream: { status: 400, type: "invalid_request_error", code: null, retry: false },
  cancelled: { status: 499, type: "invalid_request_error", code: "cancelled", retry: false },
  internal: { status: 500, type: "server_error", code: "server_error", retry: true },
};

/** Where nobody knows how long: without a time Codex gives up on a 429. */
const RETRY_AFTER_MS = 1000;

export function encodeFailure(failure: GatewayFailure): ErrorResponse {
  const { status, type, code, retry } = FORMS[failure.kind];
  const afterMs = failure.details.retryAfterMs ?? (failure.kind === "rate_limited" || failure.kind === "overloaded" ? RETRY_AFTER_MS : null);
  return {
    status,
    headers: {
      ...(retry ? {} : { "x-should-retry": "false" }),
      ...(retry && afterMs !== null ? { "retry-after": String(Math.max(1, Math.ceil(afterMs / 1000))), "retry-after-ms": String(Math.max(0, Math.round(afterMs))) } : {}),
    },
    body: { error: { message: failure.message, type, param: failure.details.field ?? null, code } },
  };
}

/** `error` of a failed response. Codex reads the time to wait from the words. */
export function streamError(failure: GatewayFailure): { readonly code: string; readonly message: string } {
  const { code } = FORMS[failure.kind];
  const { retryAfterMs } = failure.details;
  const wait = failure.kind === "rate_limited" ? ` Please try again in ${((retryAfterMs ?? RETRY_AFTER_MS) / 1000).toFixed(3)}s.` : "";
  return { code: failure.kind === "closed" ? "insufficient_quota" : (code ?? "invalid_prompt"), message: failure.message + wait };
}

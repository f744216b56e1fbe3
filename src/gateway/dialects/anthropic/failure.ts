/**
 * Failures in Anthropic's words. The official client and Claude Code obey `x-should-retry`; Claude Code (2.1.332) sends a request six more times after a 400 or 422, with
 * fewer features each time, and gives up at once on 402: hence the statuses of a used-up budget and of an upstream that said no.
 */
import type { FailureKind, GatewayFailure } from "../../failure.ts";
import type { ErrorResponse } from "../dialect.ts";
import { failureMessage } from "../failure-words.ts";
import { retryHeaders } from "../retry-headers.ts";

const FORMS: Readonly<Record<FailureKind, { readonly status: number; readonly type: string }>> = {
  invalid_request: { status: 400, type: "invalid_request_error" },
  unauthorized: { status: 401, type: "authentication_error" },
  not_found: { status: 404, type: "not_found_error" },
  too_large: { status: 413, type: "request_too_large" },
  closed: { status: 410, type: "invalid_request_error" },
  budget: { status: 402, type: "billing_error" },
  context_overflow: { status: 400, type: "invalid_request_error" },
  rate_limited: { status: 429, type: "rate_limit_error" },
  overloaded: { status: 529, type: "overloaded_error" },
  timeout: { status: 504, type: "timeout_error" },
  upstream: { status: 502, type: "api_error" },
  truncated: { status: 502, type: "api_error" },
  // Nobody is there to read it: 499 is what proxies note for a client that hung up.
  cancelled: { status: 499, type: "api_error" },
  refused_by_upstream: { status: 403, type: "permission_error" },
  internal: { status: 500, type: "api_error" },
};

export function encodeMessagesFailure(failure: GatewayFailure): ErrorResponse {
  const { status, type } = FORMS[failure.kind];
  return { status, headers: retryHeaders(failure), body: { type: "error", error: { type, message: messageOf(failure) } } };
}

/** A context overflow is told in the API's own words: by them Claude Code knows it, and compacts. */
function messageOf(failure: GatewayFailure): string {
  const { promptTokens, contextTokens } = failure.details;
  if (failure.kind === "too_large") return `Request exceeds the maximum size. ${failure.message}`;
  if (failure.kind !== "context_overflow") return failureMessage(failure);
  if (promptTokens === undefined || contextTokens === undefined) return `prompt is too long: ${failure.message}`;
  return `prompt is too long: ${promptTokens} tokens > ${contextTokens} maximum`;
}

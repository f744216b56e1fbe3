import { expect, it } from "vitest";
import { GatewayFailure, type FailureDetails, type FailureKind } from "../../failure.ts";
import { encodeFailure, streamError } from "./failure.ts";

const KINDS: readonly FailureKind[] = ["invalid_request", "unauthorized", "not_found", "too_large", "closed", "budget", "context_overflow", "rate_limited", "overloaded", "timeout", "upstream", "truncated", "refused_by_upstream", "cancelled", "internal"];
const failure = (kind: FailureKind, details: FailureDetails = {}): GatewayFailure => new GatewayFailure(kind, "why", details);

it("has its status and code, before a stream and in it", () => {
  const forms = KINDS.map((kind) => {
    const { status, body } = encodeFailure(failure(kind));
    const { code } = (body as { readonly error: { readonly code: string | null } }).error;
    return `${kind} ${status} ${code} ${streamError(failure(kind)).code}`;
  });
  expect(forms).toEqual([
    "invalid_request 400 null invalid_prompt",
    "unauthorized 401 invalid_api_key invalid_api_key",
    "not_found 404 model_not_found model_not_found",
    "too_large 413 request_too_large request_too_large",
    "closed 410 session_closed insufficient_quota",
    "budget 400 insufficient_quota insufficient_quota",
    "context_overflow 400 context_length_exceeded context_length_exceeded",
    "rate_limited 429 rate_limit_exceeded rate_limit_exceeded",
    "overloaded 503 server_is_overloaded server_is_overloaded",
    "timeout 504 server_error server_error",
    "upstream 502 server_error server_error",
    "truncated 502 server_error server_error",
    "refused_by_upstream 400 null invalid_prompt",
    "cancelled 499 cancelled cancelled",
    "internal 500 server_error server_error",
  ]);
});

it("tells Codex how long to wait: in a header, and in a stream by the words that it reads", () => {
  expect(encodeFailure(failure("rate_limited")).headers).toEqual({ "retry-after": "1" });
  expect(encodeFailure(failure("rate_limited", { retryAfterMs: 2500 })).headers).toEqual({ "retry-after": "3", "retry-after-ms": "2500" });
  // The pattern of codex-rs, codex-api/src/sse/responses.rs.
  expect(/try again in\s*(\d+(?:\.\d+)?)\s*(s|ms|seconds?)/i.exec(streamError(failure("rate_limited", { retryAfterMs: 2500 })).message)?.slice(1)).toEqual(["2.500", "s"]);
});

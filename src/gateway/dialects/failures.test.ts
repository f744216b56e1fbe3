import { describe, expect, test } from "vitest";
import { GatewayFailure, type FailureDetails, type FailureKind } from "../failure.ts";
import { encodeMessagesFailure } from "./anthropic/failure.ts";
import { encodeChatFailure, streamedFailure } from "./openai-chat/failure.ts";

const DETAILS: FailureDetails = { retryAfterMs: 1500, field: "messages[0]" };
const KINDS: readonly FailureKind[] = [
  "invalid_request", "unauthorized", "not_found", "too_large", "closed", "budget", "context_overflow", "rate_limited", "overloaded", "timeout", "upstream", "truncated", "refused_by_upstream", "cancelled", "internal",
];
/** What agents take for a reason to try again or to compact. */
const GOES_ON = /[0-9]|overload|rate.?limit|too many|unavailable|error|connection|timed? ?out|retry|terminated|exceed|context|exhausted/i;

const chat = (kind: FailureKind, details = DETAILS) => encodeChatFailure(new GatewayFailure(kind, "why", details));
const messages = (kind: FailureKind, details = DETAILS) => encodeMessagesFailure(new GatewayFailure(kind, "why", details));
const wordsOf = (body: unknown): string => (body as { error: { message: string } }).error.message;

test("status, type and code of each failure in chat completions", () => {
  const forms = KINDS.map((kind) => {
    const { status, body } = chat(kind);
    const { type, code } = (body as { error: { type: string; code: string | null } }).error;
    return `${kind} ${status} ${type} ${code}`;
  });
  expect(forms).toEqual([
    "invalid_request 400 invalid_request_error null",
    "unauthorized 401 invalid_request_error invalid_api_key",
    "not_found 404 invalid_request_error model_not_found",
    "too_large 413 invalid_request_error request_too_large",
    "closed 410 invalid_request_error session_closed",
    "budget 401 invalid_request_error session_budget_used_up",
    "context_overflow 400 invalid_request_error context_length_exceeded",
    "rate_limited 429 requests rate_limit_exceeded",
    "overloaded 503 server_error overloaded",
    "timeout 504 server_error timeout",
    "upstream 502 server_error upstream_error",
    "truncated 502 server_error upstream_error",
    "refused_by_upstream 400 invalid_request_error null",
    "cancelled 499 server_error cancelled",
    "internal 500 server_error null",
  ]);
});

test("status and type of each failure in Anthropic Messages", () => {
  expect(KINDS.map((kind) => `${kind} ${messages(kind).status} ${(messages(kind).body as { error: { type: string } }).error.type}`)).toEqual([
    "invalid_request 400 invalid_request_error",
    "unauthorized 401 authentication_error",
    "not_found 404 not_found_error",
    "too_large 413 request_too_large",
    "closed 410 invalid_request_error",
    "budget 402 billing_error",
    "context_overflow 400 invalid_request_error",
    "rate_limited 429 rate_limit_error",
    "overloaded 529 overloaded_error",
    "timeout 504 timeout_error",
    "upstream 502 api_error",
    "truncated 502 api_error",
    "refused_by_upstream 403 permission_error",
    "cancelled 499 api_error",
    "internal 500 api_error",
  ]);
});

describe.each([["chat completions", chat], ["Anthropic Messages", messages]] as const)("%s", (_, encode) => {
  test("what is over says so in words that nobody takes for a reason to go on", () => {
    for (const kind of ["budget", "closed"] as const) {
      expect(wordsOf(encode(kind).body), kind).not.toMatch(GOES_ON);
      expect(encode(kind).headers, kind).toEqual({ "x-should-retry": "false" });
    }
  });

  test("what may pass is known by its words too, and says when", () => {
    const words = { rate_limited: /rate limit/i, overloaded: /overloaded/i, timeout: /timed out/i, upstream: /connection error/i, truncated: /connection error/i, internal: /server error/i };
    for (const [kind, word] of Object.entries(words) as [FailureKind, RegExp][]) {
      expect(wordsOf(encode(kind).body), kind).toMatch(word);
      expect(encode(kind).headers, kind).toEqual({ "retry-after": "2", "retry-after-ms": "1500" });
      expect(encode(kind, {}).headers, kind).toEqual({});
    }
  });
});

test("a context overflow is known with and without numbers", () => {
  const numbers = { promptTokens: 5000, contextTokens: 4096 };
  expect(wordsOf(chat("context_overflow", numbers).body)).toBe("This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens. Please reduce the length of the messages.");
  expect(wordsOf(chat("context_overflow").body)).toBe("This model's maximum context length is exceeded (context_length_exceeded). why");
  expect(wordsOf(messages("context_overflow", numbers).body)).toBe("prompt is too long: 5000 tokens > 4096 maximum");
  expect(wordsOf(messages("context_overflow").body)).toBe("prompt is too long: why");
});

test("in the middle of a chat stream a number says that another try may do", () => {
  const code = (kind: FailureKind) => (streamedFailure(new GatewayFailure(kind, "why")) as { error: { code: unknown } }).error.code;
  expect([code("rate_limited"), code("truncated"), code("timeout"), code("closed")]).toEqual([429, 503, 503, "session_closed"]);
});

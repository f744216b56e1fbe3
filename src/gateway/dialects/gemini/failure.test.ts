import { expect, it } from "vitest";
import { GatewayFailure, type FailureDetails, type FailureKind } from "../../failure.ts";
import { encodeFailure } from "./failure.ts";

interface Status {
  readonly code: number;
  readonly message: string;
  readonly status: string;
  readonly details?: readonly Readonly<Record<string, unknown>>[];
}

const fail = (kind: FailureKind, details: FailureDetails = {}) => {
  const { status, headers, body } = encodeFailure(new GatewayFailure(kind, "why", details));
  return { status, headers, error: (body as { readonly error: Status }).error };
};

it("has Google's name and the same code in the body for each status", () => {
  const kinds: readonly FailureKind[] = ["invalid_request", "unauthorized", "not_found", "too_large", "closed", "budget", "context_overflow", "rate_limited", "overloaded", "timeout", "upstream", "truncated", "refused_by_upstream", "cancelled", "internal"];
  const forms = kinds.map((kind) => {
    const { status, error } = fail(kind);
    expect(error.code).toBe(status);
    return `${kind} ${status} ${error.status}`;
  });
  expect(forms).toEqual([
    "invalid_request 400 INVALID_ARGUMENT",
    "unauthorized 401 UNAUTHENTICATED",
    "not_found 404 NOT_FOUND",
    "too_large 413 INVALID_ARGUMENT",
    "closed 410 FAILED_PRECONDITION",
    "budget 429 RESOURCE_EXHAUSTED",
    "context_overflow 400 INVALID_ARGUMENT",
    "rate_limited 429 RESOURCE_EXHAUSTED",
    "overloaded 503 UNAVAILABLE",
    "timeout 504 DEADLINE_EXCEEDED",
    "upstream 502 UNAVAILABLE",
    "truncated 502 UNAVAILABLE",
    "refused_by_upstream 400 INVALID_ARGUMENT",
    "cancelled 499 CANCELLED",
    "internal 500 INTERNAL",
  ]);
});

it("says when to try again, which field is at fault, and that a budget is used up for the day", () => {
  expect(fail("rate_limited", { retryAfterMs: 2500 }).error.details).toEqual([{ "@type": "type.googleapis.com/google.rpc.RetryInfo", retryDelay: "2.500s" }]);
  expect(fail("invalid_request", { field: "contents[0].role" }).error.details).toEqual([{ "@type": "type.googleapis.com/google.rpc.BadRequest", fieldViolations: [{ field: "contents[0].role" }] }]);
  expect(fail("budget", { retryAfterMs: 2500 })).toMatchObject({ headers: { "x-should-retry": "false" }, error: { details: [{ violations: [{ quotaId: expect.stringContaining("PerDay") as string }] }] } });
  expect(fail("upstream").error.details).toBeUndefined();
});

it("tells an overflow in the API's words, with numbers or without", () => {
  expect(fail("context_overflow", { promptTokens: 5000, contextTokens: 4096 }).error.message).toBe("The input token count (5000) exceeds the maximum number of tokens allowed (4096).");
  expect(fail("context_overflow", { contextTokens: 4096 }).error.message).toBe("The input token count exceeds the maximum number of tokens allowed.");
});

/**
 * Failures as `google.rpc.Status`, as Gemini's clients act on them: gemini-cli tries 429, 5xx and broken connections again (ten times), waits for `RetryInfo`, and ends at once on any
 * other 4xx and on a 429 that says a daily quota is used up.
 */
import type { FailureKind, GatewayFailure } from "../../failure.ts";
import type { ErrorResponse } from "../dialect.ts";
import { failureMessage } from "../failure-words.ts";
import { retryHeaders } from "../retry-headers.ts";

const FORMS: Readonly<Record<FailureKind, readonly [status: number, name: string]>> = {
  invalid_request: [400, "INVALID_ARGUMENT"],
  unauthorized: [401, "UNAUTHENTICATED"],
  not_found: [404, "NOT_FOUND"],
  too_large: [413, "INVALID_ARGUMENT"],
  closed: [410, "FAILED_PRECONDITION"],
  budget: [429, "RESOURCE_EXHAUSTED"],
  context_overflow: [400, "INVALID_ARGUMENT"],
  rate_limited: [429, "RESOURCE_EXHAUSTED"],
  overloaded: [503, "UNAVAILABLE"],
  timeout: [504, "DEADLINE_EXCEEDED"],
  upstream: [502, "UNAVAILABLE"],
  truncated: [502, "UNAVAILABLE"],
  refused_by_upstream: [400, "INVALID_ARGUMENT"],
  cancelled: [499, "CANCELLED"],
  internal: [500, "INTERNAL"],
};

export function encodeFailure(failure: GatewayFailure): ErrorResponse {
  const [status, name] = FORMS[failure.kind];
  const details = detailsOf(failure);
  return {
    status,
    headers: retryHeaders(failure),
    body: { error: { code: status, message: messageOf(failure), status: name, ...(details.length === 0 ? {} : { details }) } },
  };
}

/** The API's own words, by which clients tell an overflow from other bad requests. */
function messageOf(failure: GatewayFailure): string {
  const { kind, details: { promptTokens, contextTokens } } = failure;
  if (kind !== "context_overflow") return failureMessage(failure);
  const counts = promptTokens === undefined || contextTokens === undefined ? "The input token count" : `The input token count (${promptTokens})`;
  return `${counts} exceeds the maximum number of tokens allowed${contextTokens === undefined || promptTokens === undefined ? "" : ` (${contextTokens})`}.`;
}

function detailsOf({ kind, details: { field, retryAfterMs } }: GatewayFailure): readonly unknown[] {
  const of = (type: string, fields: object): unknown => ({ "@type": `type.googleapis.com/google.rpc.${type}`, ...fields });
  if (kind === "budget") return [of("QuotaFailure", { violations: [{ quotaMetric: "manyworlds/session_budget", quotaId: "SessionBudgetPerDay" }] })];
  if (kind === "rate_limited" || kind === "overloaded") return [of("RetryInfo", { retryDelay: `${((retryAfterMs ?? 1000) / 1000).toFixed(3)}s` })];
  return field === undefined ? [] : [of("BadRequest", { fieldViolations: [{ field }] })];
}

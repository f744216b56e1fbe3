/**
 * What tells clients whether and when to try again. `x-should-retry` is read by the official OpenAI and Anthropic clients (`shouldRetry` in their client.ts), before they
 * look at the status; `retry-after` counts whole seconds, `retry-after-ms` is theirs too.
 */
import type { FailureKind, GatewayFailure } from "../failure.ts";

const FINAL: ReadonlySet<FailureKind> = new Set(["invalid_request", "unauthorized", "not_found", "too_large", "closed", "budget", "context_overflow", "refused_by_upstream"]);

export function retryHeaders(failure: GatewayFailure): Readonly<Record<string, string>> {
  if (FINAL.has(failure.kind)) return { "x-should-retry": "false" };
  const { retryAfterMs } = failure.details;
  if (retryAfterMs === undefined) return {};
  return { "retry-after": String(Math.ceil(retryAfterMs / 1000)), "retry-after-ms": String(retryAfterMs) };
}

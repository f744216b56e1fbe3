/**
 * The words of a failure, as far as clients act on them.
 *
 * Agent CLIs that keep only the message look for words and numbers in it: "connection error", "timed out" and "overloaded" are tried again, and so is anything with the
 * digits 500; "too many tokens" is an overflow (pi: `_isRetryableError` in agent-session.js, `isContextOverflow` in pi-ai's overflow.js; LiteLLM:
 * exception_mapping_utils.py).
 */
import type { FailureKind, GatewayFailure } from "../failure.ts";

/** By what a failure that may pass is known. */
const PASSING: Readonly<Partial<Record<FailureKind, string>>> = {
  rate_limited: "Rate limit reached",
  overloaded: "Overloaded",
  timeout: "Request timed out",
  upstream: "Upstream connection error",
  truncated: "Upstream connection error",
  internal: "Internal server error",
};

export function mayPass(kind: FailureKind): boolean {
  return kind in PASSING;
}

export function failureMessage(failure: GatewayFailure): string {
  // In fixed words: the session's own may hold numbers and words that some client takes for a reason to go on.
  if (failure.kind === "budget") return "The budget of this session is used up.";
  if (failure.kind === "closed") return "This session is closed.";
  const word = PASSING[failure.kind];
  return word === undefined ? failure.message : `${word}: ${failure.message}`;
}

/** From what an inference server did to what the harness is told. Nothing here shows a key or an address. */
import type { IncomingHttpHeaders } from "node:http";
import { GatewayFailure, type FailureKind } from "../failure.ts";
import { BrokenConnection } from "./http.ts";
import { readOverflow } from "./overflow.ts";
import { excerpt } from "./redact.ts";

/** An error response. `text` is its body, redacted. */
export function failureOfStatus(status: number, headers: IncomingHttpHeaders, text: string, nowMs: number): GatewayFailure {
  const overflow = readOverflow(status, text);
  if (overflow !== null) {
    const { promptTokens, contextTokens } = overflow;
    return new GatewayFailure("context_overflow", `The conversation does not fit the model's context: ${excerpt(text)}`, {
      upstreamStatus: status,
      ...(promptTokens === null ? {} : { promptTokens }),
      ...(contextTokens === null ? {} : { contextTokens }),
    });
  }
  const kind = kindOfStatus(status);
  // What a server says about its keys is not for the sandbox.
  const said = status === 401 || status === 403 ? "it does not accept the gateway's key" : excerpt(text);
  const wait = kind === "rate_limited" || kind === "overloaded" ? readRetryAfter(headers, nowMs) : null;
  return new GatewayFailure(kind, `The model server answered HTTP ${status}: ${said}`, { upstreamStatus: status, ...(wait === null ? {} : { retryAfterMs: wait }) });
}

function kindOfStatus(status: number): FailureKind {
  if (status === 429) return "rate_limited";
  if (status === 503 || status === 529) return "overloaded";
  if (status === 408 || status === 504) return "timeout";
  if (status === 404) return "not_found";
  // 409 and 425 pass by themselves; redirects mean that something else than a model server answers.
  if (status === 409 || status === 425 || status < 400 || status >= 500) return "upstream";
  return "refused_by_upstream";
}

/** A connection that gave no whole answer. `begun`: something of the answer itself had come. */
export function failureOfConnection(error: BrokenConnection, begun: boolean): GatewayFailure {
  if (error.code === "UND_ERR_BODY_TIMEOUT") return new GatewayFailure("timeout", "The model server fell silent in the middle of its answer.", { cause: error });
  if (begun) return new GatewayFailure("truncated", "The model server's answer broke off before its end.", { cause: error });
  const why = error.code === "" ? "" : ` (${error.code})`;
  const what = error.answered ? "The connection to the model server broke before its answer" : error.code === "ECONNREFUSED" ? "The model server is not there" : "The connection to the model server broke";
  return new GatewayFailure("upstream", `${what}${why}.`, { cause: error });
}

/** An error object in place of an answer, or of the rest of one. Codes are HTTP's in vLLM and SGLang, words elsewhere. */
export function failureOfErrorObject(error: unknown, redacted: string, nowMs: number): GatewayFailure {
  const code = typeof error === "object" && error !== null && "code" in error ? Number(error.code) : Number.NaN;
  return failureOfStatus(Number.isInteger(code) && code >= 400 && code <= 599 ? code : 500, {}, redacted, nowMs);
}

/** `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or OpenAI's `retry-after-ms`; null where there is none. */
export function readRetryAfter(headers: IncomingHttpHeaders, nowMs: number): number | null {
  const exact = headers["retry-after-ms"];
  if (typeof exact === "string" && /^\d+(\.\d+)?$/.test(exact)) return Number(exact);
  const value = headers["retry-after"];
  if (value === undefined) return null;
  if (/^\s*\d+(\.\d+)?\s*$/.test(value)) return Number(value) * 1000;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : Math.max(0, at - nowMs);
}

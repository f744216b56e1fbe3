/** What a model call can fail with, before it is put into a dialect's own words and status. */
import { messageOf, MwError } from "../core/errors.ts";

/**
 * - `invalid_request`: the harness sent what cannot be honoured; the message names the field.
 * - `unauthorized`: no or a wrong token. `not_found`: no such path or model. `too_large`: a body over the limit.
 * - `closed`: the session is over, for ever.
 * - `budget`: the session's calls, tokens or time are used up; no retry helps.
 * - `context_overflow`: prompt and answer do not fit the model's window.
 * - `rate_limited`, `overloaded`: try again later. `timeout`: no answer within the time for one call.
 * - `upstream`: the inference server failed, or sent what is no answer. `truncated`: its stream broke off in the middle of an answer.
 * - `refused_by_upstream`: it understood and said no, for a reason that a retry meets again.
 * - `cancelled`: the harness hung up, or whoever runs it stopped it; as a rule nobody is left to hear of it.
 * - `internal`: a bug of ours, or a log that takes no more.
 */
export type FailureKind =
  | "invalid_request"
  | "unauthorized"
  | "not_found"
  | "too_large"
  | "closed"
  | "budget"
  | "context_overflow"
  | "rate_limited"
  | "overloaded"
  | "timeout"
  | "upstream"
  | "truncated"
  | "refused_by_upstream"
  | "cancelled"
  | "internal";

export interface FailureDetails {
  /** The field of the request that is at fault. */
  readonly field?: string;
  /** How long to wait before another try, where somebody knows. */
  readonly retryAfterMs?: number;
  /** Of a context overflow, where the upstream tells. */
  readonly promptTokens?: number;
  readonly contextTokens?: number;
  /** Status of the upstream's response, for people. */
  readonly upstreamStatus?: number;
  readonly cause?: unknown;
}

/** Thrown within the gateway; a dialect turns it into a response. Messages are shown inside the sandbox: they hold no keys and no addresses of the host. */
export class GatewayFailure extends Error {
  readonly kind: FailureKind;
  readonly details: FailureDetails;

  constructor(kind: FailureKind, message: string, details: FailureDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = "GatewayFailure";
    this.kind = kind;
    this.details = details;
  }
}

/** A failure of our own making. What caused it may name paths and addresses of the host, so it is in no message that a harness sees. */
export function internalFailure(cause: unknown): GatewayFailure {
  return new GatewayFailure("internal", "The gateway failed.", { cause });
}

/** For the host's records: with what caused it. */
export function messageForRecord({ kind, message, details }: GatewayFailure): string {
  const { cause } = details;
  return cause instanceof MwError || (kind === "internal" && cause !== undefined) ? `${message} ${messageOf(cause)}` : message;
}

/**
 * What every dialect offers: its requests read, its answers written, whole and streamed, and its errors in the shape and with the status that its SDKs and CLIs act on.
 *
 * Codecs are pure: no clock, no randomness, no network. The same answer gives the same content whole and streamed; `EncodeContext` brings ids and times.
 */
import type { Answer, Delta, Dialect, TurnRequest } from "../conversation.ts";
import type { GatewayFailure } from "../failure.ts";

/** What of a request stands outside its body. */
export interface RouteFacts {
  /** Gemini's model in the path; null elsewhere. */
  readonly model: string | null;
  /** Gemini's `:streamGenerateContent`; elsewhere the body says. */
  readonly stream: boolean | null;
}

export interface EncodeContext {
  /** Unique; becomes the id of the response in the dialect's form. */
  readonly callId: string;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  readonly request: TurnRequest;
}

/** Server-sent events as text, ready to be written. A method that has nothing to say returns "". */
export interface StreamEncoder {
  /** What comes before any content; called once, first. `promptTokens` where known by then. */
  start(promptTokens: number | null): string;
  delta(delta: Delta): string;
  /** Everything from the last content to the terminal event; called once, after the call is in the log. */
  end(answer: Answer): string;
  /** An error after the start, in the form that makes this dialect's clients take the answer for incomplete. */
  fail(failure: GatewayFailure): string;
}

export interface ErrorResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: unknown;
}

export interface DialectCodec {
  readonly dialect: Dialect;
  /** Throws `GatewayFailure` `invalid_request`, which names the field, for what cannot be honoured. */
  decode(body: unknown, route: RouteFacts): TurnRequest;
  encode(answer: Answer, context: EncodeContext): unknown;
  stream(context: EncodeContext): StreamEncoder;
  /** The same as one JSON array (`application/json`): Gemini's `:streamGenerateContent` without `alt=sse`. Other dialects have no such form. */
  readonly streamJson?: (context: EncodeContext) => StreamEncoder;
  /** The response to a failure before anything was streamed. */
  encodeFailure(failure: GatewayFailure): ErrorResponse;
  /** The body that answers a token count (`count_tokens`, `countTokens`); null for dialects that have no such call. */
  readonly encodeCount: ((tokens: number) => unknown) | null;
  /** The body that answers the listing of models. */
  encodeModels(models: readonly { readonly id: string; readonly contextTokens: number | null }[]): unknown;
}

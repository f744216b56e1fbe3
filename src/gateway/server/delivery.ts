/**
 * One answer on its way into one HTTP response, streamed or whole.
 *
 * Headers wait for the first piece, so that a failure before it has a status that clients act on. The last bytes go out in one write: a client that leaves at the terminal
 * event has left nothing unread.
 */
import type { ServerResponse } from "node:http";
import { LIMITS } from "../../core/limits.ts";
import type { Delta, TurnRequest } from "../conversation.ts";
import type { DialectCodec, StreamEncoder } from "../dialects/dialect.ts";
import type { GatewayFailure } from "../failure.ts";
import { deltasOf } from "../session/answer-so-far.ts";
import type { DeltaListener, ExchangeFacts, Outcome } from "../session/exchange.ts";

export class Delivery {
  readonly #response: ServerResponse;
  readonly #codec: DialectCodec;
  readonly #request: TurnRequest;
  readonly #array: boolean;
  #encoder: StreamEncoder | null = null;
  #facts: ExchangeFacts | null = null;
  #heard = false;
  #held: NodeJS.Timeout | null = null;
  /** Resolves when the response is over; true when all of it went out. */
  readonly over: Promise<boolean>;

  /** `array`: streamed as one JSON array. */
  constructor(response: ServerResponse, codec: DialectCodec, request: TurnRequest, array: boolean) {
    this.#array = array;
    this.#response = response;
    this.#codec = codec;
    this.#request = request;
    this.over = new Promise((resolve) => {
      if (response.closed) resolve(false);
      else response.once("close", () => resolve(response.writableFinished));
    });
  }

  readonly listen = (facts: ExchangeFacts): DeltaListener => {
    this.#facts = facts;
    if (!this.#request.stream) return () => undefined;
    this.#held = setTimeout(() => void this.#write(this.#begin()), LIMITS.gatewayHeadersHeldMs);
    return (delta) => this.#onDelta(delta);
  };

  /** Writes the end of it. */
  finish(outcome: Outcome): void {
    this.stop();
    if (this.#response.closed || this.#facts === null) return;
    if (outcome.kind === "failure") this.#fail(outcome.failure);
    else if (this.#request.stream) {
      const begun = this.#begin();
      const encoder = this.#stream();
      const pieces = this.#heard ? "" : deltasOf(outcome.answer.blocks).map((delta) => encoder.delta(delta)).join("");
      this.#response.end(begun + pieces + encoder.end(outcome.answer));
    } else {
      const { id, createdAt } = this.#facts;
      sendJson(this.#response, 200, requestIds(id), this.#codec.encode(outcome.answer, { callId: id, createdAt, request: this.#request }));
    }
  }

  /** To be called when nobody waits any more. */
  stop(): void {
    if (this.#held !== null) clearTimeout(this.#held);
    this.#held = null;
  }

  #fail(failure: GatewayFailure): void {
    if (this.#encoder !== null) this.#response.end(this.#encoder.fail(failure));
    else sendFailure(this.#response, this.#codec, failure, this.#facts?.id);
  }

  #onDelta(delta: Delta): void | Promise<void> {
    this.#heard = true;
    return this.#write(this.#begin() + this.#stream().delta(delta));
  }

  #write(text: string): void | Promise<void> {
    if (text === "" || this.#response.closed || this.#response.write(text)) return;
    return this.#drained();
  }

  /** A harness that does not read holds the engine up, but not for ever. */
  #drained(): Promise<void> {
    const response = this.#response;
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        response.off("drain", done).off("close", done);
        resolve();
      };
      const timer = setTimeout(() => response.destroy(), LIMITS.gatewayStalledMs);
      response.once("drain", done).once("close", done);
    });
  }

  /** What comes before the first piece; nothing the second time. */
  #begin(): string {
    if (this.#encoder !== null) return "";
    this.stop();
    this.#response.writeHead(200, { "content-type": this.#array ? "application/json" : "text/event-stream; charset=utf-8", "cache-control": "no-cache", ...requestIds(this.#facts?.id) });
    return this.#stream().start(null);
  }

  #stream(): StreamEncoder {
    const context = { callId: this.#facts?.id ?? "", createdAt: this.#facts?.createdAt ?? 0, request: this.#request };
    this.#encoder ??= (this.#array ? this.#codec.streamJson?.(context) : undefined) ?? this.#codec.stream(context);
    return this.#encoder;
  }
}

/** Under the names that the vendors' SDKs show in their errors. */
function requestIds(id: string | undefined): Readonly<Record<string, string>> {
  return id === undefined ? {} : { "x-request-id": id, "request-id": id };
}

export function sendJson(response: ServerResponse, status: number, headers: Readonly<Record<string, string>>, value: unknown): void {
  if (response.headersSent || response.destroyed) return;
  const text = Buffer.from(JSON.stringify(value));
  response.writeHead(status, { "content-type": "application/json", "content-length": text.length, ...headers });
  response.end(text);
}

export function sendFailure(response: ServerResponse, codec: DialectCodec, failure: GatewayFailure, id?: string): void {
  const { status, headers, body } = codec.encodeFailure(failure);
  sendJson(response, status, { ...requestIds(id), ...headers }, body);
}

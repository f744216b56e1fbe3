/**
 * Requests to one inference server over kept connections, at the level of undici's dispatch: the response is pushed into a sink as it comes, and a sink that returns a
 * promise stops the reading until it resolves, so that a slow harness slows the engine and nothing piles up here.
 */
import type { IncomingHttpHeaders } from "node:http";
import { Pool, type Dispatcher } from "undici";
import { messageOf } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";

export interface HttpRequest {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
  /** Aborting tears the connection down and rejects with the signal's reason. */
  readonly signal: AbortSignal;
}

export interface ResponseSink {
  start(status: number, headers: IncomingHttpHeaders): void;
  data(chunk: Buffer): void | Promise<void>;
  end(): void;
  /** Set when everything that matters was there: the exchange resolves, the rest is thrown away. */
  readonly finished: boolean;
}

/** The connection failed, broke off, or fell silent. */
export class BrokenConnection extends Error {
  /** Something of the response had come. */
  readonly answered: boolean;
  readonly code: string;

  constructor(cause: unknown, answered: boolean) {
    super(describe(cause), { cause });
    this.answered = answered;
    this.code = codeOf(cause);
  }
}

/** Of a response that is no longer wanted, so much is read to keep its connection. */
const DRAIN_BYTES = 64 * 1024;

export class HttpClient {
  readonly #pool: Pool;

  constructor(origin: string, stallMs: number) {
    // Headers may come as late as the whole answer; the deadline of the call rules.
    this.#pool = new Pool(origin, { connections: LIMITS.upstreamConnections, pipelining: 1, headersTimeout: 0, bodyTimeout: stallMs, connectTimeout: 15_000 });
  }

  /** Rejects `BrokenConnection`, the signal's reason, or what the sink threw. */
  exchange(request: HttpRequest, sink: ResponseSink): Promise<void> {
    const { signal } = request;
    if (signal.aborted) return Promise.reject(signal.reason);
    return new Promise((resolve, reject) => {
      let controller: Dispatcher.DispatchController | null = null;
      let settled = false;
      let answered = false;
      let drained = 0;
      const settle = (error?: unknown): void => {
        if (settled) return;
        settled = true;
        signal.removeEventListener("abort", onAbort);
        if (error === undefined) resolve();
        else reject(error);
      };
      const give = (error: unknown): void => {
        settle(error);
        controller?.abort(error instanceof Error ? error : new Error(messageOf(error)));
      };
      const onAbort = (): void => give(signal.reason);
      signal.addEventListener("abort", onAbort, { once: true });
      const guard = (act: () => void): void => {
        try {
          act();
        } catch (error) {
          give(error);
        }
      };
      const { method, path, headers, body } = request;
      guard(() =>
        this.#pool.dispatch(
          { method, path, headers, body },
          {
            onRequestStart: (given) => {
              controller = given;
              if (settled) given.abort(new Error("no longer wanted"));
            },
            onResponseStart: (_, status, responseHeaders) => {
              answered = true;
              if (!settled && status >= 200) guard(() => sink.start(status, responseHeaders));
            },
            onResponseData: (given, chunk) => {
              if (settled) {
                drained += chunk.length;
                if (drained > DRAIN_BYTES) given.abort(new Error("no longer wanted"));
                return;
              }
              guard(() => {
                const wait = sink.data(chunk);
                if (wait === undefined) return sink.finished ? settle() : undefined;
                given.pause();
                wait.then(() => {
                  if (sink.finished) settle();
                  given.resume();
                }, give);
              });
            },
            onResponseEnd: () => {
              if (settled) return;
              guard(() => {
                sink.end();
                settle();
              });
            },
            onResponseError: (_, error) => settle(new BrokenConnection(error, answered)),
          },
        ),
      );
    });
  }

  close(): Promise<void> {
    return this.#pool.destroy();
  }
}

/** Collects a body as text, up to a limit. */
export class TextSink implements ResponseSink {
  status = 0;
  headers: IncomingHttpHeaders = {};
  readonly finished = false;
  readonly #limitBytes: number;
  readonly #tooBig: () => Error;
  readonly #parts: Buffer[] = [];
  #bytes = 0;

  constructor(limitBytes: number, tooBig: () => Error) {
    this.#limitBytes = limitBytes;
    this.#tooBig = tooBig;
  }

  start(status: number, headers: IncomingHttpHeaders): void {
    this.status = status;
    this.headers = headers;
  }

  data(chunk: Buffer): void {
    this.#bytes += chunk.length;
    if (this.#bytes > this.#limitBytes) throw this.#tooBig();
    this.#parts.push(chunk);
  }

  end(): void {
    // The text is there when it is asked for.
  }

  text(): string {
    return this.#parts.length === 1 ? (this.#parts[0]?.toString("utf8") ?? "") : Buffer.concat(this.#parts).toString("utf8");
  }
}

/** undici wraps the reason of a failed connection; the innermost error is the one that tells. */
function innermost(error: unknown): unknown {
  let at = error;
  for (let depth = 0; depth < 4 && at instanceof Error; depth++) {
    if (at instanceof AggregateError && at.errors.length > 0) at = at.errors[0];
    else if (at.cause instanceof Error) at = at.cause;
    else break;
  }
  return at;
}

function codeOf(error: unknown): string {
  const at = innermost(error);
  return at instanceof Error && "code" in at && typeof at.code === "string" ? at.code : "";
}

function describe(error: unknown): string {
  const code = codeOf(error);
  const message = messageOf(innermost(error)) || "the connection failed";
  return code === "" || message.includes(code) ? message : `${code}: ${message}`;
}

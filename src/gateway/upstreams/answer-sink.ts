/** Takes the response to one generation as it comes: events, a whole body, or an error, whatever was asked for. */
import type { IncomingHttpHeaders } from "node:http";
import { LIMITS } from "../../core/limits.ts";
import type { Delta } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";
import { SseParser } from "../sse.ts";
import { TextSink, type ResponseSink } from "./http.ts";
import { record } from "./chat/tokens.ts";
import type { GenerateJob } from "./upstream.ts";

export type OnDelta = ((delta: Delta) => void | Promise<void>) | null;

/** Where the pieces of an answer go: to the harness, to who looks on, or nowhere. */
export function listenerOf({ onDelta, progress }: Pick<GenerateJob, "onDelta" | "progress">): OnDelta {
  return onDelta ?? (progress === undefined ? null : (delta) => progress.add(delta));
}

/** Reads the bodies of one endpoint. Errors are thrown as `GatewayFailure`. */
export interface AnswerReader<Result> {
  /** Something of an answer has come. */
  readonly begun: boolean;
  /** All that is wanted of the answer has come, whatever else the server would send. */
  readonly isDone?: boolean;
  chunk(body: unknown): void;
  whole(body: unknown): void;
  /** What can be passed on since it was asked last. */
  take(): readonly Delta[];
  /** Throws `truncated` for an answer that has no end. */
  end(): Result;
}

/** Errors are short; of a longer body the beginning says enough. */
const ERROR_BYTES = 1 << 20;

export class AnswerSink<Result> implements ResponseSink {
  status = 0;
  headers: IncomingHttpHeaders = {};
  finished = false;
  readonly #reader: AnswerReader<Result>;
  readonly #onDelta: OnDelta;
  #text: TextSink | null = null;
  #events: SseParser | null = null;
  #bytes = 0;

  constructor(reader: AnswerReader<Result>, onDelta: OnDelta) {
    this.#reader = reader;
    this.#onDelta = onDelta;
  }

  start(status: number, headers: IncomingHttpHeaders): void {
    this.status = status;
    this.headers = headers;
    if (this.#ok && (headers["content-type"] ?? "").includes("text/event-stream")) this.#events = new SseParser();
  }

  get #ok(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  data(chunk: Buffer): void | Promise<void> {
    this.#bytes += chunk.length;
    if (!this.#ok && this.#bytes > ERROR_BYTES) {
      this.finished = true;
      return;
    }
    // A server that streams although it was not asked may call it anything; JSON begins with a brace.
    if (this.#events === null && this.#text === null && this.#ok && /^(data|event|:|id|retry)/.test(chunk.toString("latin1", 0, 8))) this.#events = new SseParser();
    if (this.#events !== null) return this.#readEvents(this.#events, chunk);
    this.#text ??= new TextSink(LIMITS.upstreamBodyBytes, () => new GatewayFailure("upstream", `The model server's answer is larger than ${LIMITS.upstreamBodyBytes} bytes.`));
    this.#text.data(chunk);
  }

  #readEvents(parser: SseParser, chunk: Buffer): void | Promise<void> {
    if (this.#bytes > LIMITS.upstreamStreamBytes) throw new GatewayFailure("upstream", `The model server's stream is larger than ${LIMITS.upstreamStreamBytes} bytes.`);
    for (const { event, data } of parser.push(chunk)) {
      if (data === "[DONE]") {
        this.finished = true;
        break;
      }
      const body = parseJson(data);
      // Some servers put an error into an event of that name instead of a field.
      this.#reader.chunk(event === "error" && record(body)["error"] === undefined ? { error: body } : body);
      if (this.#reader.isDone === true) {
        this.finished = true;
        break;
      }
    }
    return this.#onDelta === null ? undefined : emit(this.#reader.take(), this.#onDelta);
  }

  end(): void {
    // What came is read by `complete`, which can wait.
  }

  errorText(): string {
    return this.#text?.text() ?? "";
  }

  /** After the response: reads a whole body, and passes on what was held back. */
  async complete(): Promise<Result> {
    if (this.#events === null) this.#reader.whole(parseJson(this.#text?.text() ?? ""));
    const answer = this.#reader.end();
    if (this.#onDelta !== null) await emit(this.#reader.take(), this.#onDelta);
    return answer;
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new GatewayFailure("upstream", "The model server answered with something that is no complete JSON.");
  }
}

/** Waits only where the receiver does. */
function emit(deltas: readonly Delta[], onDelta: NonNullable<OnDelta>): void | Promise<void> {
  for (let at = 0; at < deltas.length; at++) {
    const delta = deltas[at];
    if (delta === undefined) continue;
    const wait = onDelta(delta);
    if (wait !== undefined) return wait.then(() => emit(deltas.slice(at + 1), onDelta));
  }
}

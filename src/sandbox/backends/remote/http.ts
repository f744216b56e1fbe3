/**
 * Requests to a service of others: bounded in time and size, tried again only where that can do no harm, and never sent on to where an answer points.
 *
 * What comes back is not trusted: a message of the service is shown shortened and without the key, should it hold that.
 */
import type { Readable } from "node:stream";
import { Agent, request as send, type Dispatcher } from "undici";
import { messageOf, MwError, type ErrorCode } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";

export interface RemoteRequest {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  readonly url: URL;
  readonly headers?: Readonly<Record<string, string>>;
  /** A stream goes once. */
  readonly body?: Buffer | string | Readable;
  /** Whether asking twice is as good as asking once: then it is tried again when the connection or the service fails. */
  readonly repeatable?: boolean;
  readonly deadlineMs?: number;
  readonly signal?: AbortSignal;
}

export interface RemoteAnswer {
  readonly status: number;
  readonly text: string;
}

export class RemoteHttp {
  readonly #runtime: Runtime;
  readonly #secret: string;
  readonly #agent = new Agent({ connect: { timeout: LIMITS.remoteConnectMs }, headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: 10_000, connections: LIMITS.remoteConnections });

  constructor(runtime: Runtime, secret: string) {
    this.#runtime = runtime;
    this.#secret = secret;
  }

  /** The answer of a service that did what it was asked; every other one rejects. One that had no room (429) has not done it, and is asked again. */
  async ask(request: RemoteRequest): Promise<RemoteAnswer> {
    for (let failures = 1; ; failures++) {
      const outcome = await this.#once(request).catch(toFailure);
      if (!(outcome instanceof MwError)) return outcome;
      const mayRepeat = outcome.code === "overloaded" || (request.repeatable === true && outcome.retryable);
      if (!mayRepeat || failures > LIMITS.remoteRetries) throw outcome;
      const asked = outcome.facts["retryAfterMs"];
      await this.#runtime.sleep(typeof asked === "number" ? asked : 100 * 2 ** failures, request.signal);
    }
  }

  /** An answer whose body is read as it comes. Rejects as `ask`, and is never tried again. The caller ends the body. */
  async open(request: RemoteRequest): Promise<Dispatcher.ResponseData> {
    const { method, url } = request;
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(this.#late(request)), request.deadlineMs ?? LIMITS.remoteRequestMs);
    try {
      const response = await send(url, this.#options(request, deadline.signal));
      if (response.statusCode < 300) return response;
      throw this.#failure(request, { status: response.statusCode, text: await readText(response.body, () => this.#tooLarge(request)) }, response.headers["retry-after"]);
    } catch (error) {
      if (error instanceof MwError) throw error;
      if (deadline.signal.aborted) throw this.#late(request);
      throw new MwError("sandbox_failed", `${method} ${shown(url)}: ${this.#clean(messageOf(error))}`, { cause: error, facts: { unreached: true } });
    } finally {
      clearTimeout(timer);
    }
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  /** What an answer that is none means. */
  #failure({ method, url }: RemoteRequest, { status, text }: RemoteAnswer, retryAfter?: string | readonly string[]): MwError {
    const what = `${method} ${shown(url)} was answered with ${status}`;
    const said = this.#clean(saidIn(text));
    const message = said === "" ? what : `${what}: ${said}`;
    const facts = { status };
    if (status >= 300 && status < 400) return new MwError("sandbox_failed", `${what}, a redirection, which is not followed`, { fix: "name the address that the service is really at", facts });
    const seconds = typeof retryAfter === "string" && /^\d{1,6}$/.test(retryAfter) ? Number(retryAfter) : null;
    const waiting = seconds === null ? {} : { retryAfterMs: Math.min(seconds * 1000, LIMITS.remoteRetryAfterMs) };
    if (status === 401) return new MwError("unauthorized", message, { fix: "set MW_REMOTE_KEY (or E2B_API_KEY) to a key of that service", facts });
    return new MwError(CODES[status] ?? (status >= 500 ? "sandbox_failed" : "invalid_input"), message, { facts: { ...facts, ...waiting } });
  }

  async #once(request: RemoteRequest): Promise<RemoteAnswer> {
    const { method, url } = request;
    const deadline = AbortSignal.timeout(request.deadlineMs ?? LIMITS.remoteRequestMs);
    try {
      const response = await send(url, this.#options(request, deadline));
      const answer = { status: response.statusCode, text: await readText(response.body, () => this.#tooLarge(request)) };
      if (answer.status < 300) return answer;
      throw this.#failure(request, answer, response.headers["retry-after"]);
    } catch (error) {
      if (error instanceof MwError) throw error;
      request.signal?.throwIfAborted();
      if (deadline.aborted) throw this.#late(request);
      throw new MwError("sandbox_failed", `${method} ${shown(url)}: ${this.#clean(messageOf(error))}`, { cause: error, facts: { unreached: true } });
    }
  }

  #options({ method, headers = {}, body, signal }: RemoteRequest, deadline: AbortSignal): Options {
    return { dispatcher: this.#agent, method, headers: { ...headers }, signal: signal === undefined ? deadline : AbortSignal.any([signal, deadline]), ...(body === undefined ? {} : { body }) };
  }

  #late({ method, url, deadlineMs }: RemoteRequest): MwError {
    return new MwError("timeout", `${method} ${shown(url)} was not answered within ${(deadlineMs ?? LIMITS.remoteRequestMs) / 1000} s`);
  }

  #tooLarge({ method, url }: RemoteRequest): MwError {
    return new MwError("sandbox_failed", `${method} ${shown(url)} was answered with more than ${LIMITS.remoteAnswerBytes} bytes`);
  }

  #clean(text: string): string {
    const safe = this.#secret === "" ? text : text.replaceAll(this.#secret, "***");
    return safe.length > 300 ? `${safe.slice(0, 300)}...` : safe;
  }
}

/** What undici takes beside the address. */
type Options = NonNullable<Parameters<typeof send<null>>[1]>;

const CODES: Readonly<Record<number, ErrorCode>> = { 403: "forbidden", 404: "not_found", 409: "conflict", 413: "limit_exceeded", 429: "overloaded", 507: "host_exhausted" };

function toFailure(error: unknown): MwError {
  if (error instanceof MwError) return error;
  throw error;
}

/** Without what a query may hold. */
function shown(url: URL): string {
  return `${url.origin}${url.pathname}`;
}

function saidIn(text: string): string {
  try {
    const document = JSON.parse(text) as { readonly message?: unknown };
    return typeof document.message === "string" ? document.message : "";
  } catch {
    return "";
  }
}

async function readText(body: AsyncIterable<Buffer>, tooLarge: () => MwError): Promise<string> {
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of body) {
    bytes += part.length;
    if (bytes > LIMITS.remoteAnswerBytes) throw tooLarge();
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

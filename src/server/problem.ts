/** Failures as RFC 9457 problem documents: `{type, title, status, detail, code, fix}`, and what the failure adds. */
import type { IncomingMessage } from "node:http";
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { MwError, toMwError, type ErrorCode, type ErrorDetails } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";

/** A failure whose answer says more than its code: another status, headers, members of the document. */
export class ProblemError extends MwError {
  readonly extensions: Readonly<Record<string, unknown>>;
  readonly headers: Readonly<Record<string, string>>;

  constructor(code: ErrorCode, message: string, details: ErrorDetails & { readonly extensions?: Readonly<Record<string, unknown>>; readonly headers?: Readonly<Record<string, string>> } = {}) {
    super(code, message, details);
    this.extensions = details.extensions ?? {};
    this.headers = details.headers ?? {};
  }
}

export interface Problem {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Readonly<Record<string, unknown>>;
}

/** Seconds after which asking again makes sense, where nothing better is known. */
const RETRY_AFTER = "1";

export function problemOf(error: unknown): Problem {
  const { failure, status } = ofFastify(error) ?? { failure: toMwError(error), status: null };
  const answered = status ?? failure.status;
  const more = failure instanceof ProblemError ? failure : null;
  const headers = {
    "content-type": "application/problem+json",
    ...(answered === 429 || answered === 503 ? { "retry-after": RETRY_AFTER } : {}),
    ...(answered === 401 ? { "www-authenticate": 'Bearer realm="manyworlds"' } : {}),
    ...more?.headers,
  };
  // What went wrong inside is for the log; the caller learns that it did.
  const detail = failure.code === "internal" ? "the server failed at this request; its log says how" : failure.message;
  return {
    status: answered,
    headers,
    body: { ...failure.facts, ...more?.extensions, type: `about:blank#${failure.code}`, title: TITLES[failure.code] ?? failure.code.replaceAll("_", " "), status: answered, detail, code: failure.code, fix: failure.fix ?? null },
  };
}

const TITLES: Partial<Record<ErrorCode, string>> = {
  invalid_input: "what was sent cannot be used",
  not_found: "there is no such thing",
  unauthorized: "no valid key",
  overloaded: "too much at once",
  internal: "a bug of the server",
};

/** Answers every failure of a route, and routes that there are not. */
export function answerProblems(app: FastifyInstance, log: (line: string) => void): void {
  app.setErrorHandler(async (error, request, reply) => {
    const problem = problemOf(error);
    if (problem.status === 413) await readPast(request.raw);
    if (problem.status === 500) log(`${request.method} ${request.routeOptions.url ?? "?"} (${request.id}): ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    return send(reply, problem);
  });
  app.setNotFoundHandler((request: FastifyRequest, reply) => send(reply, problemOf(new MwError("not_found", `there is nothing at ${request.method} ${request.url.slice(0, 200)}`, { fix: "docs/server.md lists what there is" }))));
}

/** A client that is still sending hears of nothing until it is done, or of a broken connection: a body that is not far too large is read to its end. */
async function readPast(request: IncomingMessage): Promise<void> {
  let bytes = 0;
  await new Promise<void>((resolve) => {
    const give = setTimeout(resolve, LIMITS.refusedBodyMs);
    const stop = (): void => {
      clearTimeout(give);
      resolve();
    };
    request.on("data", (data: Buffer) => {
      bytes += data.length;
      if (bytes > LIMITS.refusedBodyBytes) stop();
    });
    for (const end of ["end", "close", "error"]) request.once(end, stop);
    if (request.readableEnded || request.destroyed) stop();
    request.resume();
  });
}

function send(reply: FastifyReply, { status, headers, body }: Problem): FastifyReply {
  return reply.code(status).headers(headers).send(Buffer.from(JSON.stringify(body)));
}

/** What the web framework refuses by itself, in our words. */
function ofFastify(error: unknown): { readonly failure: MwError; readonly status: number } | null {
  if (error instanceof MwError || !(error instanceof Error) || !("code" in error) || !("statusCode" in error)) return null;
  // Its own errors have both.
  const { code, statusCode, message } = error as FastifyError;
  if (statusCode === undefined || statusCode < 400 || statusCode >= 500) return null;
  if (code === "FST_ERR_CTP_BODY_TOO_LARGE") return { failure: new MwError("limit_exceeded", "the body of the request is larger than this route takes"), status: 413 };
  if (statusCode === 415) return { failure: new MwError("invalid_input", "this route does not take a body of that content type", { fix: "send application/json, or what docs/server.md says" }), status: 415 };
  return { failure: new MwError("invalid_input", message), status: statusCode };
}

/** Failures of the control plane as E2B's clients read them: `{code, message, error_code?}` with the HTTP status in `code`. */
import type { FastifyInstance } from "fastify";
import { MwError, toMwError } from "../../core/errors.ts";
import { problemOf } from "../problem.ts";

/** What the protocol calls a request that cannot be met as it is, where ours tells more apart. */
const STATUS: Partial<Record<MwError["code"], number>> = { usage: 400, invalid_input: 400, invalid_image: 400, unsupported: 400, limit_exceeded: 400, image_failed: 400, sandbox_gone: 404, sandbox_paused: 409 };

const ERROR_CODES: Partial<Record<MwError["code"], string>> = { host_exhausted: "sandbox_capacity_unavailable", overloaded: "sandbox_placement_timeout", sandbox_failed: "sandbox_create_failed", internal: "internal_server_error" };

export interface E2bFailure {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: { readonly code: number; readonly message: string; readonly error_code?: string };
}

export function e2bFailure(error: unknown): E2bFailure {
  const { status: ours, headers, body } = problemOf(error);
  const { code } = error instanceof MwError ? error : toMwError(error);
  // A body that is too large, or of another content type, keeps what HTTP says of it.
  const status = ours === 413 || ours === 415 ? ours : (STATUS[code] ?? ours);
  const fix = typeof body["fix"] === "string" ? ` (${body["fix"]})` : "";
  const errorCode = ERROR_CODES[code];
  return { status, headers: { ...headers, "content-type": "application/json" }, body: { code: status, message: `${String(body["detail"])}${fix}`, ...(errorCode === undefined ? {} : { error_code: errorCode }) } };
}

export function answerE2bFailures(app: FastifyInstance, log: (line: string) => void): void {
  app.setErrorHandler((error, request, reply) => {
    const { status, headers, body } = e2bFailure(error);
    if (status === 500) log(`${request.method} ${request.routeOptions.url ?? "?"} (${request.id}): ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    return reply.code(status).headers(headers).send(Buffer.from(JSON.stringify(body)));
  });
}

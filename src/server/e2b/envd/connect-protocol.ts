/**
 * The Connect protocol with its JSON codec, as much of it as the guest agent's services need: unary calls, and streams of messages in envelopes of one flag byte and four length
 * bytes. Compression is never offered. Source: https://connectrpc.com/docs/protocol.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { z } from "zod";
import { toMwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { COMPRESSED, END_OF_STREAM as END, envelope, ENVELOPE_BYTES as ENVELOPE } from "../../../protocol/e2b/envelope.ts";
import { send } from "../../request-signal.ts";

/** Codes that are used here, with the HTTP status of a unary failure. */
const STATUS = {
  canceled: 499,
  invalid_argument: 400,
  deadline_exceeded: 504,
  not_found: 404,
  already_exists: 409,
  permission_denied: 403,
  resource_exhausted: 429,
  failed_precondition: 400,
  unimplemented: 501,
  internal: 500,
  unavailable: 503,
  unauthenticated: 401,
} as const;
export type ConnectCode = keyof typeof STATUS;

export class ConnectFailure extends Error {
  readonly code: ConnectCode;

  constructor(code: ConnectCode, message: string) {
    super(message);
    this.name = "ConnectFailure";
    this.code = code;
  }
}

/** How the protocol calls our failures. */
export function connectFailure(error: unknown): ConnectFailure {
  if (error instanceof ConnectFailure) return error;
  const { code, message, facts } = toMwError(error);
  switch (code) {
    case "not_found":
      return new ConnectFailure("not_found", message);
    case "usage":
    case "invalid_input":
      return new ConnectFailure("invalid_argument", message);
    case "conflict":
    case "unsupported":
    case "sandbox_paused":
      return new ConnectFailure("failed_precondition", message);
    case "sandbox_gone":
      return new ConnectFailure("unavailable", message);
    case "limit_exceeded":
    case "host_exhausted":
    case "overloaded":
      return new ConnectFailure("resource_exhausted", message);
    case "timeout":
      return new ConnectFailure("deadline_exceeded", message);
    default:
      return new ConnectFailure(facts["errno"] === "EACCES" || facts["errno"] === "EPERM" ? "permission_denied" : "internal", message);
  }
}

export type Rpc = (request: IncomingMessage, response: ServerResponse) => Promise<void>;

/** One message in, one out. */
export function unary<T extends z.ZodType>(schema: T, work: (message: z.output<T>, request: IncomingMessage) => Promise<unknown>): Rpc {
  return async (request, response) => {
    try {
      expectType(request, "application/json");
      const answer = JSON.stringify(await work(parse(schema, await readAll(request, LIMITS.envdMessageBytes)), request));
      response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(answer) }).end(answer);
    } catch (error) {
      const { code, message } = connectFailure(error);
      const answer = JSON.stringify({ code, message });
      response.writeHead(STATUS[code], { "content-type": "application/json", "content-length": Buffer.byteLength(answer) }).end(answer);
    }
  };
}

export interface MessageSink {
  /** Waits for a slow reader. False once it has gone. */
  send(message: unknown): Promise<boolean>;
  /** When the reader goes. */
  readonly gone: AbortSignal;
  /** Ends the connection in the middle of the answer, as one that is lost: clients take a proper end of it for a server that cannot speak the protocol. */
  breakOff(): void;
}

/** One message in, many out. A failure is the last message, since the answer has begun by then. */
export function serverStream<T extends z.ZodType>(schema: T, work: (message: z.output<T>, sink: MessageSink, request: IncomingMessage) => Promise<void>): Rpc {
  return async (request, response) => {
    const gone = new AbortController();
    response.once("close", () => gone.abort("gone"));
    let end: { readonly error?: { readonly code: string; readonly message: string } } = {};
    try {
      expectType(request, "application/connect+json");
      const body = await readAll(request, LIMITS.envdMessageBytes + ENVELOPE);
      const message = parse(schema, only(body));
      response.writeHead(200, { "content-type": "application/connect+json" });
      await work(message, { gone: gone.signal, breakOff: () => void request.socket.resetAndDestroy(), send: (document) => send(response, envelope(0, document)) }, request);
    } catch (error) {
      const { code, message } = connectFailure(error);
      end = { error: { code, message } };
    }
    if (response.destroyed) return;
    if (!response.headersSent) response.writeHead(200, { "content-type": "application/connect+json" });
    response.end(envelope(END, end));
  };
}

/** Many messages in, one out. */
export function clientStream<T extends z.ZodType>(schema: T, work: (messages: AsyncIterable<z.output<T>>) => Promise<unknown>): Rpc {
  return async (request, response) => {
    let last: Buffer;
    try {
      expectType(request, "application/connect+json");
      const answer = await work(messages(request, schema));
      last = Buffer.concat([envelope(0, answer), envelope(END, {})]);
    } catch (error) {
      const { code, message } = connectFailure(error);
      last = envelope(END, { error: { code, message } });
    }
    response.writeHead(200, { "content-type": "application/connect+json" }).end(last);
  };
}

/** The body of a request whose stream has exactly one message. */
function only(body: Buffer): Buffer {
  if (body.length < ENVELOPE) throw new ConnectFailure("invalid_argument", "the request holds no whole message");
  const [flags = 0] = body;
  const length = body.readUInt32BE(1);
  if ((flags & COMPRESSED) !== 0) throw new ConnectFailure("unimplemented", "compressed messages are not taken");
  if (length !== body.length - ENVELOPE) throw new ConnectFailure("invalid_argument", `the request says that its message has ${length} bytes, and has ${body.length - ENVELOPE}`);
  return body.subarray(ENVELOPE);
}

async function* messages<T extends z.ZodType>(request: IncomingMessage, schema: T): AsyncGenerator<z.output<T>> {
  let held = Buffer.alloc(0);
  for await (const chunk of request) {
    // No encoding was set: chunks are bytes.
    held = Buffer.concat([held, chunk as Buffer]);
    while (held.length >= ENVELOPE) {
      const length = held.readUInt32BE(1);
      if (length > LIMITS.envdMessageBytes) throw tooLarge();
      if (held.length < ENVELOPE + length) break;
      const [flags = 0] = held;
      if ((flags & COMPRESSED) !== 0) throw new ConnectFailure("unimplemented", "compressed messages are not taken");
      const message = held.subarray(ENVELOPE, ENVELOPE + length);
      held = held.subarray(ENVELOPE + length);
      if ((flags & END) === 0) yield parse(schema, message);
    }
  }
  if (held.length > 0) throw new ConnectFailure("invalid_argument", "the stream of messages ends in the middle of one");
}

function parse<T extends z.ZodType>(schema: T, bytes: Buffer): z.output<T> {
  let document: unknown;
  try {
    document = JSON.parse(bytes.toString("utf8"));
  } catch {
    throw new ConnectFailure("invalid_argument", "the message is no JSON");
  }
  const result = schema.safeParse(document);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw new ConnectFailure("invalid_argument", `${issue?.path.join(".") ?? ""}: ${issue?.message ?? "malformed"}`);
}

function expectType(request: IncomingMessage, wanted: string): void {
  const type = (request.headers["content-type"] ?? "").split(";")[0]?.trim().toLowerCase();
  if (type !== wanted) throw new ConnectFailure("unimplemented", `this call takes ${wanted}`);
  const encoding = request.headers["content-encoding"] ?? request.headers["connect-content-encoding"] ?? "identity";
  if (encoding !== "identity") throw new ConnectFailure("unimplemented", "compressed requests are not taken");
}

export async function readAll(request: IncomingMessage, most: number): Promise<Buffer> {
  if (Number(request.headers["content-length"]) > most) throw tooLarge();
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request) {
    chunks.push(chunk as Buffer);
    bytes += (chunk as Buffer).length;
    if (bytes > most) throw tooLarge();
  }
  return chunks.length === 1 ? (chunks[0] ?? Buffer.alloc(0)) : Buffer.concat(chunks);
}

function tooLarge(): ConnectFailure {
  return new ConnectFailure("resource_exhausted", `a message has at most ${LIMITS.envdMessageBytes} bytes`);
}


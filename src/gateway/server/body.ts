/** A request's body: bounded in bytes before and after decompression, and, over all requests, in memory. */
import type { IncomingMessage } from "node:http";
import { Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { LIMITS } from "../../core/limits.ts";
import { zstdDecompress } from "../../image/decompress.ts";
import { GatewayFailure } from "../failure.ts";

/** Memory that bodies may take together, and those of one session. */
export class BodyMemory {
  #used = 0;
  readonly #sessions = new Map<object, number>();

  /** False when there is no room now. */
  take(session: object, bytes: number): boolean {
    const own = (this.#sessions.get(session) ?? 0) + bytes;
    if (this.#used + bytes > LIMITS.gatewayBufferedBytes || own > LIMITS.sessionBufferedBytes) return false;
    this.#used += bytes;
    this.#sessions.set(session, own);
    return true;
  }

  give(session: object, bytes: number): void {
    const own = (this.#sessions.get(session) ?? 0) - bytes;
    this.#used -= bytes;
    if (own > 0) this.#sessions.set(session, own);
    else this.#sessions.delete(session);
  }
}

export interface Body {
  readonly value: unknown;
  /** To be called when the request is over. */
  release(): void;
}

/** Rejects `too_large`, `overloaded`, and `invalid_request` for what is no JSON or is compressed in no known way. What is too much of a body is read and thrown away. */
export async function readBody(request: IncomingMessage, memory: BodyMemory, session: object): Promise<Body> {
  const part = new Part(memory, session);
  try {
    if (Number(request.headers["content-length"]) > LIMITS.gatewayBodyBytes) throw tooLarge();
    const decoder = decoderOf(request.headers["content-encoding"]);
    const received = await receive(request, part);
    return { value: parse(decoder === null ? received : await decompress(decoder, received, part)), release: () => part.release() };
  } catch (error) {
    request.resume();
    part.release();
    throw error;
  }
}

/** What one request takes of the memory. */
class Part {
  readonly #memory: BodyMemory;
  readonly #session: object;
  #bytes = 0;

  constructor(memory: BodyMemory, session: object) {
    this.#memory = memory;
    this.#session = session;
  }

  take(bytes: number): void {
    if (!this.#memory.take(this.#session, bytes)) throw new GatewayFailure("overloaded", "The gateway holds as many requests as it can.", { retryAfterMs: 1000 });
    this.#bytes += bytes;
  }

  release(): void {
    this.#memory.give(this.#session, this.#bytes);
    this.#bytes = 0;
  }
}

function receive(request: IncomingMessage, part: Part): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const fail = (error: unknown): void => {
      request.off("data", onData);
      reject(error);
    };
    const onData = (chunk: Buffer): void => {
      try {
        bytes += chunk.length;
        if (bytes > LIMITS.gatewayBodyBytes) throw tooLarge();
        part.take(chunk.length);
        chunks.push(chunk);
      } catch (error) {
        fail(error);
      }
    };
    const broken = (): void => fail(new GatewayFailure("invalid_request", "The request's body did not arrive whole."));
    request.on("data", onData).once("error", broken).once("close", broken);
    request.once("end", () => {
      request.off("close", broken);
      resolve(chunks.length === 1 ? (chunks[0] ?? Buffer.alloc(0)) : Buffer.concat(chunks));
    });
  });
}

async function decompress(decoder: Transform, received: Buffer, part: Part): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  // One that is destroyed in the middle of its work may still complain.
  decoder.on("error", () => undefined);
  decoder.end(received);
  try {
    for await (const piece of decoder) {
      // Decoders deliver Buffers unless an encoding was set.
      const chunk = piece as Buffer;
      bytes += chunk.length;
      if (bytes > LIMITS.gatewayBodyBytes) throw tooLarge();
      part.take(chunk.length);
      chunks.push(chunk);
    }
  } catch (error) {
    if (error instanceof GatewayFailure) throw error;
    throw new GatewayFailure("invalid_request", "The request's body cannot be decompressed.", { cause: error });
  }
  return Buffer.concat(chunks);
}

function tooLarge(): GatewayFailure {
  return new GatewayFailure("too_large", `The request's body is larger than ${LIMITS.gatewayBodyBytes} bytes.`);
}

function decoderOf(encoding: string | undefined): Transform | null {
  switch (encoding?.trim().toLowerCase()) {
    case undefined:
    case "":
    case "identity":
      return null;
    case "gzip":
    case "x-gzip":
      return createGunzip();
    case "deflate":
      return createInflate();
    case "br":
      return createBrotliDecompress();
    case "zstd":
      return zstdDecompress();
    default:
      throw new GatewayFailure("invalid_request", "The request's content-encoding is none of gzip, deflate, br, zstd.", { field: "content-encoding" });
  }
}

function parse(bytes: Buffer): unknown {
  if (hasTooManyValues(bytes)) throw new GatewayFailure("invalid_request", `The request's body has more than ${LIMITS.requestValues} values.`);
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new GatewayFailure("invalid_request", "The request's body is no JSON.", { cause: error });
  }
  // Before anything walks through it, or writes it into the log: that may recurse.
  if (nestsTooDeep(value)) throw new GatewayFailure("invalid_request", `The request nests more than ${LIMITS.requestNesting} objects and lists.`);
  return value;
}

function nestsTooDeep(value: unknown): boolean {
  let level: readonly unknown[] = [value];
  for (let depth = 0; depth <= LIMITS.requestNesting; depth++) {
    level = level.flatMap((inner): readonly unknown[] => (typeof inner === "object" && inner !== null ? Object.values(inner) : []));
    if (level.length === 0) return false;
  }
  return true;
}

/** Counts commas outside strings. A body of so many bytes as values is not worth the look. */
function hasTooManyValues(bytes: Buffer): boolean {
  if (bytes.length < 2 * LIMITS.requestValues) return false;
  let commas = 0;
  let inString = false;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte === QUOTE) inString = !inString;
    else if (inString && byte === BACKSLASH) at++;
    else if (!inString && byte === COMMA && ++commas >= LIMITS.requestValues) return true;
  }
  return false;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;

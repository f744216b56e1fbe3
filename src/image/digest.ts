/** Content digests: `sha256:` and 64 lower-case hex digits. Others are refused by name. */
import { createHash } from "node:crypto";
import { Transform, type TransformCallback } from "node:stream";
import { MwError } from "../core/errors.ts";

export function isDigest(text: string): boolean {
  return /^sha256:[0-9a-f]{64}$/.test(text);
}

/** The hex part, safe as a file name. */
export function hexOf(digest: string): string {
  if (!isDigest(digest)) throw new MwError("invalid_image", `not a sha256 digest: ${JSON.stringify(digest.slice(0, 100))}`, { fix: "only sha256 digests are supported" });
  return digest.slice(7);
}

export function digestOf(bytes: Uint8Array | string): string {
  return `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
}

/** Passes bytes through and knows their digest and number. `maxBytes` stops a stream that never ends. */
export class DigestStream extends Transform {
  readonly #hash = createHash("sha256");
  readonly #maxBytes: number;
  bytes = 0;

  constructor(maxBytes: number) {
    super();
    this.#maxBytes = maxBytes;
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    this.bytes += chunk.length;
    if (this.bytes > this.#maxBytes) {
      done(new MwError("limit_exceeded", `more than ${this.#maxBytes} bytes in one layer`));
      return;
    }
    this.#hash.update(chunk);
    done(null, chunk);
  }

  /** Call once, after the end. */
  digest(): string {
    return `sha256:${this.#hash.digest("hex")}`;
  }
}

/** Digests of the growing head of a file, each byte read once. */
import { createHash } from "node:crypto";
import { open } from "node:fs/promises";

export class PrefixDigest {
  readonly #path: string;
  readonly #hash = createHash("sha256");
  #at = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /** Of the first `bytes`, at least as many as the last time. Null when the file has fewer, or is not there. */
  async of(bytes: number): Promise<string | null> {
    if (bytes > this.#at) {
      const file = await open(this.#path, "r").catch(() => null);
      if (file === null) return null;
      try {
        const chunk = Buffer.allocUnsafe(Math.min(1 << 18, bytes - this.#at));
        while (this.#at < bytes) {
          const { bytesRead } = await file.read(chunk, 0, Math.min(chunk.length, bytes - this.#at), this.#at);
          if (bytesRead === 0) return null;
          this.#hash.update(chunk.subarray(0, bytesRead));
          this.#at += bytesRead;
        }
      } finally {
        await file.close();
      }
    }
    return `sha256:${this.#hash.copy().digest("hex")}`;
  }
}

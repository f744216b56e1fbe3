/**
 * One stream of a command's output, kept in bounded memory: the first and the last bytes, and how many there were.
 *
 * Where bytes are left out, the rendered bytes say so in a line of their own with the true number; the kept bytes themselves are untouched.
 */
export class ClippedOutput {
  readonly #headCap: number;
  readonly #tailCap: number;
  readonly #head: Uint8Array[] = [];
  #headBytes = 0;
  #tail: Uint8Array[] = [];
  #tailBytes = 0;
  #delivered = 0;

  /** Keeps at most `capBytes` of the stream. */
  constructor(capBytes: number) {
    this.#headCap = Math.ceil(capBytes / 2);
    this.#tailCap = Math.floor(capBytes / 2);
  }

  /** Bytes pushed so far, kept or not. */
  get delivered(): number {
    return this.#delivered;
  }

  push(data: Uint8Array): void {
    this.#delivered += data.length;
    const room = this.#headCap - this.#headBytes;
    if (room > 0) {
      // Copies: a chunk may be a view into a transport buffer that is used again.
      const part = data.slice(0, room);
      this.#head.push(part);
      this.#headBytes += part.length;
    }
    if (data.length <= Math.max(room, 0)) return;
    const rest = data.slice(Math.max(room, 0));
    this.#tail.push(rest.length > this.#tailCap ? rest.slice(rest.length - this.#tailCap) : rest);
    this.#tailBytes += Math.min(rest.length, this.#tailCap);
    // Compacted at twice the cap, so that a stream of single bytes costs linear time.
    if (this.#tailBytes > 2 * this.#tailCap || this.#tail.length > 1024) this.#compact();
  }

  /** The kept bytes with a line where something is missing. `totalBytes`: what the command wrote, which exceeds `delivered` when the sandbox dropped some. */
  render(totalBytes: number): Uint8Array {
    this.#compact();
    const left = this.#delivered - this.#headBytes - this.#tailBytes;
    const parts: Uint8Array[] = [...this.#head];
    if (left > 0) parts.push(encoder.encode(`\n[... ${left} bytes left out here; ${totalBytes} bytes in all ...]\n`));
    parts.push(...this.#tail);
    const dropped = totalBytes - this.#delivered;
    if (dropped > 0) parts.push(encoder.encode(`\n[... the last ${dropped} of ${totalBytes} bytes were not kept ...]\n`));
    return Buffer.concat(parts);
  }

  #compact(): void {
    const joined = Buffer.concat(this.#tail);
    const kept = joined.length > this.#tailCap ? joined.subarray(joined.length - this.#tailCap) : joined;
    this.#tail = kept.length === 0 ? [] : [kept];
    this.#tailBytes = kept.length;
  }
}

const encoder = new TextEncoder();

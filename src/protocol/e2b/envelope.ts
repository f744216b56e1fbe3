/** Envelopes of the Connect protocol's streams: one flag byte, four length bytes, JSON. Source: https://connectrpc.com/docs/protocol. */

export const ENVELOPE_BYTES = 5;
/** Flags. */
export const COMPRESSED = 1;
export const END_OF_STREAM = 2;

export function envelope(flags: number, document: unknown): Buffer {
  const text = JSON.stringify(document);
  const bytes = Buffer.allocUnsafe(ENVELOPE_BYTES + Buffer.byteLength(text));
  bytes[0] = flags;
  bytes.write(text, ENVELOPE_BYTES);
  bytes.writeUInt32BE(bytes.length - ENVELOPE_BYTES, 1);
  return bytes;
}

export interface Envelope {
  readonly flags: number;
  readonly bytes: Buffer;
}

/** Cuts a stream into its envelopes. `push` throws at one that says it is longer than `mostBytes`. */
export class EnvelopeDecoder {
  readonly #mostBytes: number;
  #parts: Buffer[] = [];
  #held = 0;

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes;
  }

  /** Bytes of an envelope that is not whole. */
  get held(): number {
    return this.#held;
  }

  push(chunk: Buffer): readonly Envelope[] {
    this.#parts.push(chunk);
    this.#held += chunk.length;
    const envelopes: Envelope[] = [];
    for (let needed = this.#needed(); needed !== null && this.#held >= needed; needed = this.#needed()) {
      const bytes = this.#joined();
      const rest = bytes.subarray(needed);
      this.#parts = rest.length === 0 ? [] : [rest];
      this.#held = rest.length;
      envelopes.push({ flags: bytes[0] ?? 0, bytes: bytes.subarray(ENVELOPE_BYTES, needed) });
    }
    return envelopes;
  }

  /** Bytes of the first envelope with its head; null while that is not known. */
  #needed(): number | null {
    if (this.#held < ENVELOPE_BYTES) return null;
    const head = (this.#parts[0]?.length ?? 0) >= ENVELOPE_BYTES ? (this.#parts[0] ?? Buffer.alloc(0)) : this.#joined();
    const length = head.readUInt32BE(1);
    if (length > this.#mostBytes) throw new Error(`a message of ${length} bytes, where ${this.#mostBytes} are the most`);
    return ENVELOPE_BYTES + length;
  }

  #joined(): Buffer {
    const [only] = this.#parts;
    if (this.#parts.length === 1 && only !== undefined) return only;
    const joined = Buffer.concat(this.#parts, this.#held);
    this.#parts = [joined];
    return joined;
  }
}

/**
 * Server-sent events from bytes (WHATWG HTML, 9.2.6), however the network cut them: within a character, within a line end, within a byte order mark.
 *
 * Bytes are decoded one whole line at a time, so a split character cannot be damaged. An event that its stream does not end with an empty line is none: it may be half.
 */
import { GatewayFailure } from "./failure.ts";
import { LIMITS } from "../core/limits.ts";

export interface SseEvent {
  /** `message` where the stream names none. */
  readonly event: string;
  /** The data lines, joined by line feeds. */
  readonly data: string;
}

const LF = 0x0a;
const CR = 0x0d;
const COLON = 0x3a;
const SPACE = 0x20;
const BOM = [0xef, 0xbb, 0xbf] as const;

export class SseParser {
  /** The beginning of the line that is not complete yet, in a buffer that grows by doubling. */
  #partial = Buffer.alloc(0);
  #partialBytes = 0;
  /** The last piece ended with CR: a line feed that follows belongs to it. */
  #afterCr = false;
  /** Bytes of the byte order mark seen so far; -1 when the start of the stream is over. */
  #bom = 0;
  #event = "";
  #data: string[] = [];
  #dataBytes = 0;

  /** The events that these bytes complete. Throws `GatewayFailure` `upstream` for an event beyond `LIMITS.sseEventBytes`. */
  push(bytes: Uint8Array): readonly SseEvent[] {
    const events: SseEvent[] = [];
    let chunk = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (this.#bom >= 0) chunk = this.#skipBom(chunk);
    let start = 0;
    if (this.#afterCr && chunk.length > 0) {
      if (chunk[0] === LF) start = 1;
      this.#afterCr = false;
    }
    // Both searches run ahead of `start`, so that each byte is looked at once for each kind of line end.
    let lf = chunk.indexOf(LF, start);
    let cr = chunk.indexOf(CR, start);
    while (lf !== -1 || cr !== -1) {
      const end = lf === -1 || (cr !== -1 && cr < lf) ? cr : lf;
      this.#line(chunk.subarray(start, end), events);
      start = end + 1;
      if (end === cr) {
        if (start === chunk.length) this.#afterCr = true;
        else if (start === lf) start++;
        cr = chunk.indexOf(CR, start);
      }
      if (lf !== -1 && lf < start) lf = chunk.indexOf(LF, start);
    }
    if (start < chunk.length) {
      this.#keep(chunk.subarray(start));
      this.#check();
    }
    return events;
  }

  #keep(piece: Buffer): void {
    const bytes = this.#partialBytes + piece.length;
    if (bytes > this.#partial.length) {
      const larger = Buffer.allocUnsafe(Math.max(1024, bytes * 2));
      this.#partial.copy(larger, 0, 0, this.#partialBytes);
      this.#partial = larger;
    }
    piece.copy(this.#partial, this.#partialBytes);
    this.#partialBytes = bytes;
  }

  #skipBom(chunk: Buffer): Buffer {
    let at = 0;
    while (at < chunk.length && this.#bom < BOM.length && chunk[at] === BOM[this.#bom]) {
      at++;
      this.#bom++;
    }
    if (at === chunk.length && this.#bom < BOM.length) return chunk.subarray(at);
    // What looked like a mark and was none belongs to the first line.
    const taken = this.#bom < BOM.length ? Buffer.from(BOM.slice(0, this.#bom)) : null;
    this.#bom = -1;
    const rest = chunk.subarray(at);
    return taken === null || taken.length === 0 ? rest : Buffer.concat([taken, rest]);
  }

  #line(tail: Buffer, events: SseEvent[]): void {
    let line = tail;
    if (this.#partialBytes > 0) {
      this.#keep(tail);
      line = this.#partial.subarray(0, this.#partialBytes);
      this.#partial = Buffer.alloc(0);
      this.#partialBytes = 0;
    }
    if (line.length === 0) {
      if (this.#data.length > 0) events.push({ event: this.#event === "" ? "message" : this.#event, data: this.#data.length === 1 ? (this.#data[0] ?? "") : this.#data.join("\n") });
      this.#event = "";
      this.#data = [];
      this.#dataBytes = 0;
      return;
    }
    const colon = line.indexOf(COLON);
    // A comment.
    if (colon === 0) return;
    const name = colon === -1 ? line.toString("utf8") : line.toString("utf8", 0, colon);
    const from = colon === -1 ? line.length : line[colon + 1] === SPACE ? colon + 2 : colon + 1;
    if (name === "data") {
      this.#dataBytes += line.length - from + 1;
      this.#check();
      this.#data.push(line.toString("utf8", from));
    } else if (name === "event") this.#event = line.toString("utf8", from);
    // `id` and `retry` are for clients that connect again by themselves, which no model API has.
  }

  #check(): void {
    if (this.#dataBytes + this.#partialBytes > LIMITS.sseEventBytes) {
      throw new GatewayFailure("upstream", `The model server sent an event of more than ${LIMITS.sseEventBytes} bytes.`);
    }
  }
}

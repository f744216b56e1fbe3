import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { LIMITS } from "../core/limits.ts";
import { SseParser, type SseEvent } from "./sse.ts";

function parse(pieces: readonly Uint8Array[]): readonly SseEvent[] {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

const message = (data: string): SseEvent => ({ event: "message", data });

describe("server-sent events", () => {
  it.each<readonly [string, string, readonly SseEvent[]]>([
    ["line feeds", "data: a\n\ndata: b\n\n", [message("a"), message("b")]],
    ["CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", [message("a"), message("b")]],
    ["lone carriage returns", "data: a\r\rdata: b\r\r", [message("a"), message("b")]],
    ["mixed line ends", "data: a\r\n\ndata: b\n\rdata: c\r\r\ndata: d\n\n", [message("a"), message("b"), message("c"), message("d")]],
    ["no space after the colon, and two", "data:a\n\ndata:  b\n\n", [message("a"), message(" b")]],
    ["comments", ": keepalive\n\ndata: a\n: in between\ndata: b\n\n:\n\n", [message("a\nb")]],
    ["names of events", "event: message_stop\ndata: {}\n\ndata: x\n\n", [{ event: "message_stop", data: "{}" }, message("x")]],
    ["an event without data, which is none", "event: ping\n\ndata: a\n\n", [message("a")]],
    ["data without a colon", "data\n\n", [message("")]],
    ["fields that nobody knows", "id: 4\nretry: 10\nfoo: bar\nfoo\ndata: a\n\n", [message("a")]],
    ["a byte order mark", "\uFEFFdata: a\n\n", [message("a")]],
    ["a second byte order mark, which is text", "\uFEFFdata: a\n\n\uFEFFdata: b\n\ndata: c\n\n", [message("a"), message("c")]],
    ["an end in the middle", "data: a\n\ndata: half\n", [message("a")]],
    ["characters of two, three and four bytes", "data: é北😀\n\n", [message("é北😀")]],
    ["nothing", "", []],
  ])("with %s, cut anywhere", (_name, text, events) => {
    const bytes = Buffer.from(text);
    expect(parse([bytes])).toEqual(events);
    expect(parse([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(events);
    for (let at = 0; at <= bytes.length; at++) expect(parse([bytes.subarray(0, at), bytes.subarray(at)])).toEqual(events);
  });

  it("are the same however their bytes are cut", () => {
    const line = fc.oneof(
      fc.string({ unit: "grapheme" }).map((text) => `data: ${text}`),
      fc.constantFrom("", ": comment", "event: x", "data", "data:", "\uFEFF", "data: 北😀"),
    );
    const stream = fc.array(fc.tuple(line, fc.constantFrom("\n", "\r\n", "\r"))).map((lines) => Buffer.from(lines.map(([text, end]) => text + end).join("")));
    fc.assert(
      fc.property(stream, fc.array(fc.nat()), (bytes, cuts) => {
        const at = [0, ...cuts.map((cut) => cut % (bytes.length + 1)), bytes.length].sort((a, b) => a - b);
        const pieces = at.slice(1).map((end, index) => bytes.subarray(at[index], end));
        expect(parse(pieces)).toEqual(parse([bytes]));
      }),
      { numRuns: 500 },
    );
  });

  it("survive any bytes", () => {
    fc.assert(fc.property(fc.array(fc.uint8Array()), (pieces) => void parse(pieces)), { numRuns: 500 });
  });

  it("do not depend on a buffer that the reader uses again", () => {
    const parser = new SseParser();
    const buffer = Buffer.from("data: first");
    parser.push(buffer);
    buffer.fill(0x78);
    expect(parser.push(Buffer.from("\n\n"))).toEqual([message("first")]);
  });

  it("may be as large as the limit, and no larger", () => {
    const piece = Buffer.alloc(8 << 20, "x");
    const parser = new SseParser();
    parser.push(Buffer.from("data: "));
    for (let i = 0; i < 7; i++) parser.push(piece);
    const [event] = parser.push(Buffer.from("\n\n"));
    expect(event?.data.length).toBe(7 * piece.length);
    const lines = Math.ceil(LIMITS.sseEventBytes / piece.length) + 1;
    for (const text of ["", "\ndata: "]) {
      const greedy = new SseParser();
      expect(() => {
        for (let i = 0; i < lines; i++) {
          greedy.push(Buffer.from(i === 0 ? "data: " : text));
          greedy.push(piece);
        }
      }).toThrow(/more than \d+ bytes/);
    }
  });
});

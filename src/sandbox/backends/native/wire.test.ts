import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { encodeFrame, ERROR_TYPE, FrameDecoder } from "./wire.ts";

const field = fc.tuple(fc.integer({ min: 0, max: 0xffff }), fc.uint8Array({ maxLength: 300 }));
const frame = fc.record({ type: fc.integer({ min: 0, max: 255 }), ref: fc.integer({ min: 0, max: 0xffffffff }), fields: fc.array(field, { maxLength: 8 }) });

/** Cuts `bytes` at the given relative points. */
function cut(bytes: Buffer, sizes: readonly number[]): Buffer[] {
  const pieces: Buffer[] = [];
  let at = 0;
  for (let i = 0; at < bytes.length; i++) {
    const size = Math.max(1, sizes[i % sizes.length] ?? 1);
    pieces.push(bytes.subarray(at, at + size));
    at += size;
  }
  return pieces;
}

/** "ok", or the code of what was thrown. */
function attempt(work: () => unknown): string {
  try {
    work();
    return "ok";
  } catch (error) {
    return error instanceof MwError ? error.code : String(error);
  }
}

describe("frames", () => {
  test("come out as they went in, however the stream is cut", () => {
    fc.assert(
      fc.property(fc.array(frame, { maxLength: 6 }), fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 10 }), (frames, sizes) => {
        const bytes = Buffer.concat(frames.map(({ type, ref, fields }) => encodeFrame(type, ref, fields)));
        const decoder = new FrameDecoder();
        const decoded = cut(bytes, sizes).flatMap((piece) => decoder.push(piece));
        expect(decoded.map(({ type, ref, fields }) => ({ type, ref, fields: fields.map(({ tag, data }) => [tag, Uint8Array.from(data)]) }))).toEqual(frames);
        expect(decoder.buffered).toBe(0);
      }),
    );
  });

  test("of garbage either decode or throw once and for all, and never hold more than one frame", () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ minLength: 1, maxLength: 64 }), { maxLength: 40 }), (pieces) => {
        const decoder = new FrameDecoder();
        let broken = false;
        for (const piece of pieces) {
          const outcome = attempt(() => decoder.push(Buffer.from(piece)));
          expect(outcome).toMatch(broken ? /^sandbox_failed$/ : /^(ok|sandbox_failed)$/);
          broken = outcome !== "ok";
          expect(decoder.buffered).toBeLessThanOrEqual(LIMITS.frameBytes + 4);
        }
      }),
    );
  });

  test("of borrowed chunks stay whole when the memory is read into again, however the stream is cut", () => {
    const sent = [3, 70_000, 0, 4096].map((size, index) => encodeFrame(index, index, [[1, new Uint8Array(size).fill(index + 1)]]));
    const stream = Buffer.concat(sent);
    for (const step of [1, 3, 4096, 65_536, stream.length]) {
      const decoder = new FrameDecoder("borrowed");
      const memory = Buffer.alloc(step);
      const frames = [];
      for (let at = 0; at < stream.length; at += step) {
        const length = stream.copy(memory, 0, at);
        frames.push(...decoder.push(memory.subarray(0, length)));
        memory.fill(0xff);
      }
      expect(decoder.buffered).toBe(0);
      expect(frames.map((frame) => encodeFrame(frame.type, frame.ref, frame.fields.map(({ tag, data }) => [tag, data])))).toEqual(sent);
    }
  });

  test.each([
    ["a length below the head", [4, 0, 0, 0, 1, 0, 0, 0]],
    ["a length above the limit", [1, 0, 0x10, 0]],
    ["a length of 4 GiB", [0xff, 0xff, 0xff, 0xff]],
    ["a field cut short", [8, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]],
    ["a field longer than its frame", [11, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff]],
  ])("with %s break the stream", (_name, bytes) => {
    const decoder = new FrameDecoder();
    expect(() => decoder.push(Buffer.from(bytes))).toThrow(/not usable/);
    expect(() => decoder.push(encodeFrame(1, 1))).toThrow(/not usable/);
  });

  test("larger than the limit are refused before they are sent, the largest passes", () => {
    const largest = LIMITS.frameBytes - 5 - 6;
    expect(new FrameDecoder().push(encodeFrame(1, 1, [[1, new Uint8Array(largest)]]))).toHaveLength(1);
    expect(() => encodeFrame(1, 1, [[1, new Uint8Array(largest + 1)]])).toThrow(/exceeds/);
  });

  test("carry numbers, repeated fields and errors", () => {
    const [decoded] = new FrameDecoder().push(encodeFrame(9, 7, [[1, 5], [2, -5n], [3, ["a", "b"]], [4, undefined], [5, 2n ** 64n - 1n]]));
    expect(decoded?.number(1)).toBe(5);
    expect(decoded?.i64(2)).toBe(-5n);
    expect(decoded?.all(3).map(String)).toEqual(["a", "b"]);
    expect(decoded?.bytes(4)).toBeNull();
    expect(decoded?.u64(5)).toBe(2n ** 64n - 1n);
    expect(decoded?.number(5)).toBeNull();
    const [failed] = new FrameDecoder().push(encodeFrame(ERROR_TYPE, 7, [[1, "ENOENT"], [2, "gone"]]));
    expect(failed?.error()).toEqual({ code: "ENOENT", message: "gone" });
    expect(decoded?.error()).toBeNull();
  });
});

import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { ClippedOutput } from "./output.ts";

describe("clipped output", () => {
  it("is the whole stream, or its head and tail with the true number between", () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 40 })), fc.integer({ min: 0, max: 60 }), fc.nat(5), (chunks, cap, dropped) => {
        const output = new ClippedOutput(cap);
        for (const chunk of chunks) {
          const reused = Uint8Array.from(chunk);
          output.push(reused);
          reused.fill(0);
        }
        const all = Buffer.concat(chunks);
        const total = all.length + dropped;
        const end = dropped > 0 ? `\n[... the last ${dropped} of ${total} bytes were not kept ...]\n` : "";
        const head = Math.ceil(cap / 2);
        const tail = Math.floor(cap / 2);
        const middle = `\n[... ${all.length - head - tail} bytes left out here; ${total} bytes in all ...]\n`;
        const expected = all.length <= cap ? [all] : [all.subarray(0, head), Buffer.from(middle), all.subarray(all.length - tail)];
        expect(Buffer.from(output.render(total)).toString("latin1")).toBe(Buffer.concat([...expected, Buffer.from(end)]).toString("latin1"));
      }),
    );
  });

  it("takes millions of small chunks in linear time and little memory", () => {
    const output = new ClippedOutput(10_000);
    const startedAt = performance.now();
    for (let i = 0; i < 1_000_000; i++) output.push(Uint8Array.of(97));
    expect(output.render(1_000_000).length).toBeLessThan(10_100);
    expect(performance.now() - startedAt).toBeLessThan(30_000);
  });
});

import { describe, expect, it } from "vitest";
import { tellWhenSlow } from "./tell-when-slow.ts";

describe("tellWhenSlow", () => {
  /** Patience ends when the test says so. */
  function patience(): { readonly runtime: { sleep(ms: number, signal?: AbortSignal): Promise<void> }; end(): void } {
    let end: () => void = () => undefined;
    const over = new Promise<void>((resolve) => (end = resolve));
    return {
      end,
      runtime: { sleep: (_ms, signal) => Promise.race([over, new Promise<void>((_resolve, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))))]) },
    };
  }

  it("tells while the work goes on, and gives what it gives", async () => {
    const { runtime, end } = patience();
    let finish: (value: number) => void = () => undefined;
    const told = new Promise<void>((resolve) => void tellWhenSlow(runtime, resolve, new Promise<number>((done) => (finish = done))).then((value) => expect(value).toBe(7)));
    end();
    await told;
    finish(7);
  });

  it("says nothing about what is over or has failed", async () => {
    const { runtime, end } = patience();
    const tell = (): void => expect.fail("it was told");
    expect(await tellWhenSlow(runtime, tell, Promise.resolve(7))).toBe(7);
    await expect(tellWhenSlow(runtime, tell, Promise.reject(new Error("no")))).rejects.toThrow("no");
    end();
    await new Promise((resolve) => setImmediate(resolve));
  });
});

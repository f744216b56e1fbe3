import { describe, expect, it } from "vitest";
import { systemRuntime } from "../core/runtime.ts";
import type { AppContext } from "./context.ts";
import { formatBytes, formatDuration, formatTable, printable, printJson, wantsColor } from "./output.ts";

describe("printable", () => {
  it("shows control characters and direction overrides instead of obeying them, and keeps the rest", () => {
    expect(printable("a\u001b[31mb\u0007\u009b1m")).toBe("a\\x1b[31mb\\x07\\x9b1m");
    expect(printable("abc\u202etxt.exe")).toBe("abc\\u202etxt.exe");
    expect(printable("ünïcode 世界 🙂\n\ttab")).toBe("ünïcode 世界 🙂\n\ttab");
  });
});

describe("formatTable", () => {
  it("aligns columns, also of wide characters and coloured cells", () => {
    const text = formatTable([{ title: "name" }, { title: "n", align: "right" }], [["世界", "1"], ["\u001b[31mred\u001b[39m", "100"]]);
    expect(text).toBe("name    n\n世界    1\n\u001b[31mred\u001b[39m   100");
  });
});

describe("printJson", () => {
  it("refuses numbers that JSON would turn into null", () => {
    const written: string[] = [];
    const context = { process: { stdout: { write: (text: string) => written.push(text) }, stderr: { write: () => undefined } }, env: {}, cwd: "/", runtime: systemRuntime } as unknown as AppContext;
    for (const reward of [Number.NaN, Number.POSITIVE_INFINITY]) expect(() => printJson(context, { deep: [{ reward }] })).toThrow(/reward/);
    expect(written).toEqual([]);
    printJson(context, { reward: null });
    expect(JSON.parse(written.join(""))).toEqual({ reward: null });
  });
});

describe("wantsColor", () => {
  const terminal = { write: () => undefined, isTTY: true };
  const pipe = { write: () => undefined };
  it.each([
    [terminal, {}, true],
    [terminal, { NO_COLOR: "1" }, false],
    [terminal, { NO_COLOR: "" }, true],
    [terminal, { TERM: "dumb" }, false],
    [pipe, {}, false],
    [pipe, { FORCE_COLOR: "1" }, true],
    [pipe, { FORCE_COLOR: "1", NO_COLOR: "1" }, false],
  ])("%#", (stream, env, wanted) => {
    expect(wantsColor(stream, env)).toBe(wanted);
  });
});

describe("units", () => {
  it("are those that people read", () => {
    expect([0, 1023, 1024, 1536 * 1024].map(formatBytes)).toEqual(["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
    expect([3, 999, 1500, 61_000, 7_260_000].map(formatDuration)).toEqual(["3 ms", "999 ms", "1.5 s", "1 min 1 s", "2 h 1 min"]);
  });
});

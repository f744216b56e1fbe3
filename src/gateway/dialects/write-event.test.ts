import { expect, test } from "vitest";
import { writeEvent } from "./write-event.ts";

/** Where Python's `splitlines` ends a line, other than at a line feed. */
const ENDS = ["\r", "\u000b", "\u000c", "\u001c", "\u001d", "\u001e", "\u0085", "\u2028", "\u2029"];

test("an event's data is one line for every client, whatever the text", () => {
  const text = `a\n😀\ud83d${ENDS.join("x")}`;
  const written = writeEvent({ text }, "delta");
  expect(ENDS.filter((end) => written.includes(end))).toEqual([]);
  const [event, data, ...rest] = written.split("\n");
  expect([event, rest]).toEqual(["event: delta", ["", ""]]);
  expect(JSON.parse(data?.slice("data: ".length) ?? "")).toEqual({ text });
  expect(writeEvent("[DONE]")).toBe("data: [DONE]\n\n");
});

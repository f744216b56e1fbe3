/** Who dies for memory, look by look, with a clock and counters of the test's own (test/support/native/memory-looks.c): chance hides what this decides. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const ROOT = join(import.meta.dirname, "../../../..");
const base = mkdtempSync(join(tmpdir(), "mw-memory-"));
const program = join(base, "memory-looks");
beforeAll(() => {
  const sources = ["test/support/native/memory-looks.c", "native/spawn-memory.c"].map((path) => join(ROOT, path));
  execFileSync("gcc", ["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I", join(ROOT, "native"), "-o", program, ...sources]);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

/** What is said at each look; the limit is 64. */
const looks = (...words: readonly string[]): readonly string[] => execFileSync(program, words, { encoding: "utf8" }).trimEnd().split("\n");
const times = (count: number, word: string): readonly string[] => Array.from({ length: count }, () => word);

test("a process that shows what is used dies at the first look over the limit, and nobody with it while it is on its way out", () => {
  expect(looks("+40", "60", "70", ...times(100, "100"))).toEqual(["nobody", "killed", ...times(100, "nobody")]);
});

test("nobody dies for what whoever held it is just giving back: what no process shows is waited for, a second long", () => {
  expect(looks(...times(21, "100"))).toEqual([...times(20, "nobody"), "killed"]);
  expect(looks(...times(20, "100"), "60", ...times(21, "100"))).toEqual([...times(41, "nobody"), "killed"]);
  // Whoever shows it meanwhile dies at once.
  expect(looks(...times(10, "100"), "+40", "100")).toEqual([...times(10, "nobody"), "killed"]);
});

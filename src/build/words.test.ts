import { describe, expect, it } from "vitest";
import { pathMatcher, parseDockerignore } from "./dockerignore.ts";
import { expandVariables, splitAssignments, splitWords } from "./words.ts";

const lookup = (name: string): string | undefined => ({ A: "1", EMPTY: "" })[name];
const expand = (text: string): string => expandVariables(text, "\\", lookup);

describe("words", () => {
  it("splits at blanks outside quotes and escapes", () => {
    expect(splitWords(`a "b c" d\\ e 'f " g'`, "\\")).toEqual(["a", '"b c"', "d\\ e", `'f " g'`]);
  });

  it("reads assignments in both forms", () => {
    expect(splitAssignments(`A=1 B="2 3" C=x\\ y`, "\\", false)).toEqual([
      { name: "A", value: "1" },
      { name: "B", value: '"2 3"' },
      { name: "C", value: "x\\ y" },
    ]);
    expect(splitAssignments("PATH /a b", "\\", false)).toEqual([{ name: "PATH", value: "/a b" }]);
    expect(splitAssignments("V", "\\", true)).toEqual([{ name: "V", value: null }]);
    expect(splitAssignments("V", "\\", false)).toBeNull();
    expect(splitAssignments("=x", "\\", false)).toBeNull();
  });

  it.each([
    ["$A-${A}", "1-1"],
    ["${B:-x}${B-y}${EMPTY:-z}${EMPTY-w}", "xyz"],
    ["${A:+set}${B:+set}${EMPTY:+s}${EMPTY+t}", "sett"],
    ["${B:-${A}2}", "12"],
    ["'$A' \"$A\" \\$A", "$A 1 $A"],
    ["$B", ""],
    ["100$", "100$"],
    ['"a\\"b\\c"', 'a"b\\c'],
  ])("expands %s to %s", (text, expected) => {
    expect(expand(text)).toBe(expected);
  });

  it("refuses forms that it does not know instead of leaving them", () => {
    expect(() => expand("${A#x}")).toThrow("unsupported variable form `${A#x}`");
    expect(() => expand("${A")).toThrow("unsupported variable form");
  });
});

describe("patterns", () => {
  it.each([
    ["*.txt", "a.txt", true],
    ["*.txt", "d/a.txt", false],
    ["**/*.txt", "d/e/a.txt", true],
    ["**/*.txt", "a.txt", true],
    ["d/**", "d/e/f", true],
    ["a?c", "abc", true],
    ["a?c", "a/c", false],
    ["[a-c]x", "bx", true],
    ["[^a-c]x", "bx", false],
    ["a+(b)", "a+(b)", true],
    ["\\*", "*", true],
  ])("%s on %s is %s", (pattern, path, expected) => {
    expect(pathMatcher(pattern)(path)).toBe(expected);
  });

  it("applies .dockerignore in order, covering what is below a directory", () => {
    const rules = parseDockerignore("# comment\n*\n!src\nsrc/secret\n/.git/\n");
    expect(["README", "src/a", "src/secret", "src/secret/x", ".git/config"].map((path) => rules.ignores(path))).toEqual([true, false, true, true, true]);
    expect(rules.hasExceptions).toBe(true);
  });
});

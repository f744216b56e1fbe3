import { expect, test } from "vitest";
import { parseIgnore } from "./gitignore.ts";

// [patterns, ignored paths, other paths]
test.each<[string, string[], string[]]>([
  ["*.log", ["a.log", "x/a.log", "a.log/b"], ["a.logs"]],
  ["/build", ["build", "build/x"], ["x/build"]],
  ["build/", ["build/x", "x/build/y"], ["build"]],
  ["a/b", ["a/b", "a/b/c"], ["x/a/b"]],
  ["a/**/b", ["a/b", "a/x/y/b"], ["b"]],
  ["**/b", ["b", "x/b"], ["ab"]],
  ["a/*", ["a/b"], ["a/b/c", "a"]],
  ["*.log\n!keep.log", ["a.log"], ["keep.log"]],
  ["[!a]x", ["bx"], ["ax"]],
  ["[]a]x", ["]x", "ax"], ["bx"]],
  ["\\#a", ["#a"], ["a"]],
  ["# comment\n\n  \n", [], ["# comment"]],
  ["a ", ["a"], ["a "]],
  ["x[", ["x["], ["x"]],
])("%j", (patterns, ignored, others) => {
  const rules = parseIgnore(patterns);
  for (const path of ignored) expect([path, rules.check(path)]).toEqual([path, true]);
  for (const path of others) expect([path, rules.check(path) === true]).toEqual([path, false]);
});

/**
 * `.harborignore`: leaves files of tests/ and solution/ (also those of steps) out of what is uploaded and digested. Rules of a directory hold for everything below it,
 * nearer files and later lines win. The ignore files themselves are never part of a task.
 */
import { readFile, realpath } from "node:fs/promises";
import { dirname, join, relative, sep } from "node:path";
import { parseIgnore, type IgnoreRules } from "./gitignore.ts";

const IGNORE_FILE = ".harborignore";
/** A path in scope: below one of the four places where ignore files count. */
const SCOPE = /^(?:tests|solution|steps\/[^/]+\/(?:tests|solution))(?:\/|$)/;

export interface TaskFileFilter {
  /** True when the path (absolute, below the task's real directory) is left out. */
  excludes(path: string, isDirectory: boolean): Promise<boolean>;
}

export function taskFileFilter(root: string): TaskFileFilter {
  const cache = new Map<string, Promise<IgnoreRules>>();
  const rulesOf = (directory: string): Promise<IgnoreRules> => {
    let rules = cache.get(directory);
    if (rules === undefined) {
      rules = readFile(join(root, directory, IGNORE_FILE), "utf8").then(parseIgnore, () => parseIgnore(""));
      cache.set(directory, rules);
    }
    return rules;
  };

  const matches = async (path: string, isDirectory: boolean): Promise<boolean> => {
    const parts = relative(root, path).split(sep);
    if (parts.at(-1) === IGNORE_FILE) return true;
    if (!SCOPE.test(`${parts.join("/")}${isDirectory ? "/" : ""}`)) return false;
    const scopes: string[] = [];
    // From the outside in: a directory that is left out takes everything below it along.
    for (let depth = 1; depth <= parts.length; depth++) {
      const candidate = parts.slice(0, depth).join("/");
      const parent = parts.slice(0, depth - 1).join("/");
      if (SCOPE.test(`${parent}/`)) scopes.push(parent);
      const suffix = depth < parts.length || isDirectory ? "/" : "";
      let excluded = false;
      for (const scope of scopes) excluded = (await rulesOf(scope)).check(candidate.slice(scope.length + 1) + suffix) ?? excluded;
      if (excluded) return true;
    }
    return false;
  };

  return {
    async excludes(path, isDirectory) {
      if (await matches(path, isDirectory)) return true;
      const real = await realpath(path).catch(() => path);
      // A link into a place that is left out is left out too.
      if (real === path || !real.startsWith(`${root}${sep}`) || dirname(real) === real) return false;
      return matches(real, isDirectory);
    },
  };
}

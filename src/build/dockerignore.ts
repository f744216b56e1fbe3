/**
 * `.dockerignore`: which files of the build context do not exist for the build. Patterns are Go's `filepath.Match` per path segment plus `**`; the last matching
 * pattern wins and `!` brings files back.
 */
export interface IgnoreRules {
  /** Whether a path (relative, `/` between segments) is left out. A directory is entered even when ignored, while some `!` pattern exists. */
  ignores(path: string): boolean;
  readonly hasExceptions: boolean;
}

export function parseDockerignore(text: string): IgnoreRules {
  const rules = text
    .replace(/^\uFEFF/, "")
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map((line) => {
      const negated = line.startsWith("!");
      const pattern = (negated ? line.slice(1).trim() : line).replace(/^\/+|\/+$/g, "").replace(/^(\.\/)+/, "");
      return { negated, matches: pathMatcher(pattern) };
    });
  return {
    hasExceptions: rules.some((rule) => rule.negated),
    ignores: (path) => {
      const parents = path.split("/").map((_, index, all) => all.slice(0, index + 1).join("/"));
      let ignored = false;
      // A pattern that matches a directory covers everything below it.
      for (const rule of rules) if (parents.some((parent) => rule.matches(parent))) ignored = !rule.negated;
      return ignored;
    },
  };
}

/** Compiles a pattern with `*`, `?`, `[...]` (within one segment) and `**` (any number of segments). */
export function pathMatcher(pattern: string): (path: string) => boolean {
  let source = "";
  for (let i = 0; i < pattern.length; i++) {
    const char = pattern.charAt(i);
    if (pattern.startsWith("**/", i)) {
      source += "(?:.*/)?";
      i += 2;
    } else if (pattern.startsWith("**", i)) {
      source += ".*";
      i += 1;
    } else if (char === "*") source += "[^/]*";
    else if (char === "?") source += "[^/]";
    else if (char === "[" && pattern.includes("]", i + 2)) {
      const end = pattern.indexOf("]", i + 2);
      source += `[${pattern.slice(i + 1, end).replaceAll("\\", "\\\\").replace(/^!/, "^")}]`;
      i = end;
    } else if (char === "\\" && i + 1 < pattern.length) source += escapeRegExp(pattern.charAt(++i));
    else source += escapeRegExp(char);
  }
  const expression = new RegExp(`^${source}$`, "s");
  return (path) => expression.test(path);
}

function escapeRegExp(char: string): string {
  return char.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&");
}

/** Exclusion patterns of tree transfers; the same rules as in native/files-path.c. */

/**
 * A pattern without a slash is matched against the last name of a path, one with against the whole path below the root of the transfer. `*` stays within a
 * segment, `**` crosses them, `?` is one character.
 */
export function globMatcher(patterns: readonly string[]): (path: string) => boolean {
  const compiled = patterns.map((pattern) => ({ whole: pattern.includes("/"), expression: expressionOf(pattern.replace(/^\/+/, "")) }));
  return (path) => compiled.some(({ whole, expression }) => expression.test(whole ? path : path.slice(path.lastIndexOf("/") + 1)));
}

function expressionOf(pattern: string): RegExp {
  const body = pattern.replaceAll(/\*\*+\/?|\*|\?|[.+^${}()|[\]\\]/g, (part) => {
    if (part === "*") return "[^/]*";
    if (part === "?") return "[^/]";
    if (part.startsWith("**")) return part.endsWith("/") ? "(?:.*/)?" : ".*";
    return `\\${part}`;
  });
  return new RegExp(`^${body}$`, "s");
}

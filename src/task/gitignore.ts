/**
 * Ignore patterns as git documents them, for the task digest: the last match wins, `!` takes back, a `/` inside anchors to the root, a trailing `/` means what is
 * below a directory. Paths are relative with `/`; a directory is asked for with a trailing `/`.
 */
export interface IgnoreRules {
  /** True: ignored; false: explicitly taken back; null: no pattern says anything. */
  check(path: string): boolean | null;
}

interface Rule {
  readonly ignored: boolean;
  readonly pattern: RegExp;
}

export function parseIgnore(text: string): IgnoreRules {
  const rules: Rule[] = [];
  for (const line of text.split(/\r\n|\r|\n/)) {
    const rule = parseRule(line);
    if (rule !== null) rules.push(rule);
  }
  return {
    check: (path) => rules.findLast((rule) => rule.pattern.test(path))?.ignored ?? null,
  };
}

function parseRule(line: string): Rule | null {
  // Trailing blanks do not count, unless the last one is escaped.
  let text = line.endsWith("\\ ") ? line : line.trimEnd();
  if (text === "" || text.startsWith("#")) return null;
  const ignored = !text.startsWith("!");
  if (!ignored) text = text.slice(1);
  const source = patternSource(text);
  return source === null ? null : { ignored, pattern: new RegExp(source, "s") };
}

function patternSource(text: string): string | null {
  const segments = text.split("/");
  const directory = text !== "/" && segments.at(-1) === "";
  if (segments[0] === "") segments.shift();
  else if (segments.length === 1 || (segments.length === 2 && segments[1] === "")) {
    if (segments[0] !== "**") segments.unshift("**");
  }
  if (segments.length === 0) return null;
  // What a directory holds is below it; the directory itself, as a name, is not asked for.
  if (segments.at(-1) === "") segments[segments.length - 1] = "**";
  const parts = segments.filter((segment, index) => segment !== "**" || segments[index - 1] !== "**");
  if (parts.length === 1 && parts[0] === "**") return directory ? "/" : ".";
  if (parts[0] === "**" && parts[1] === "*" && parts.length === 2) return ".";
  if (parts[0] === "**" && parts[1] === "*" && parts[2] === "**" && parts.length === 3) return "/";
  return joinSegments(parts);
}

function joinSegments(parts: readonly string[]): string {
  let out = "";
  let slash = false;
  for (const [index, part] of parts.entries()) {
    const last = index === parts.length - 1;
    if (part === "**") {
      if (index === 0) out += "^(?:.+/)?";
      else if (last) out += "/";
      else {
        out += "(?:/.+)?";
        slash = true;
      }
      continue;
    }
    if (index === 0) out += "^";
    if (slash) out += "/";
    out += part === "*" ? "[^/]+" : segmentSource(part);
    if (last) out += part === "*" ? "/?$" : "(?:/|$)";
    slash = true;
  }
  return out;
}

function segmentSource(segment: string): string {
  let out = "";
  for (let i = 0; i < segment.length; i++) {
    const char = segment.charAt(i);
    if (char === "\\" && i + 1 < segment.length) out += literal(segment.charAt(++i));
    else if (char === "*") out += "[^/]*";
    else if (char === "?") out += "[^/]";
    else if (char === "[") {
      const end = segment.indexOf("]", /^\[[!^]?\]/.test(segment.slice(i)) ? segment.indexOf("]", i) + 1 : i + 1);
      if (end < 0) out += "\\[";
      else {
        out += setSource(segment.slice(i + 1, end));
        i = end;
      }
    } else out += literal(char);
  }
  return out;
}

function setSource(body: string): string {
  const negated = body.startsWith("!") || body.startsWith("^");
  const members = (negated ? body.slice(1) : body).replace(/[\\[\]^]/g, "\\$&");
  return `[${negated ? "^" : ""}${members}]`;
}

function literal(char: string): string {
  return char.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}

/** Docker's word rules: splitting at blanks outside quotes, quote removal, and `$VARIABLE` expansion. */

/** Splits at blanks outside of quotes and escapes; quotes and escapes stay in place for `expandVariables`, which removes them. */
export function splitWords(text: string, escape: string): string[] {
  const words: string[] = [];
  let word = "";
  let quote = "";
  for (let i = 0; i < text.length; i++) {
    const char = text.charAt(i);
    if (quote !== "'" && char === escape && i + 1 < text.length) {
      word += char + text.charAt(++i);
    } else if (quote !== "") {
      word += char;
      if (char === quote) quote = "";
    } else if (/\s/.test(char)) {
      if (word !== "") words.push(word);
      word = "";
    } else {
      if (char === '"' || char === "'") quote = char;
      word += char;
    }
  }
  if (word !== "") words.push(word);
  return words;
}

/**
 * `A=1 B="2 3"` (and, where `bareNames` allows it, `A`); the old form `NAME value with blanks` otherwise. Null when it is neither.
 */
export function splitAssignments(text: string, escape: string, bareNames: boolean): { name: string; value: string | null }[] | null {
  const words = splitWords(text, escape);
  const first = words[0];
  if (first === undefined) return null;
  if (!bareNames && !first.includes("=")) {
    const value = text.trimStart().slice(first.length).trim();
    return value === "" ? null : [{ name: first, value }];
  }
  const pairs: { name: string; value: string | null }[] = [];
  for (const word of words) {
    const at = word.indexOf("=");
    if (at === 0 || (at < 0 && !bareNames)) return null;
    pairs.push(at < 0 ? { name: word, value: null } : { name: unquote(word.slice(0, at), escape), value: word.slice(at + 1) });
  }
  return pairs;
}

function unquote(text: string, escape: string): string {
  return expandVariables(text, escape, () => undefined);
}

/**
 * Replaces `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME-default}`, `${NAME:+alternative}` and `${NAME+alternative}` outside single quotes, then removes
 * quotes and escapes. Unset names become the empty string, as in Docker. Throws on a form that it does not know.
 */
export function expandVariables(text: string, escape: string, lookup: (name: string) => string | undefined): string {
  let result = "";
  let quote = "";
  for (let i = 0; i < text.length; i++) {
    const char = text.charAt(i);
    if (quote === "'") {
      if (char === "'") quote = "";
      else result += char;
    } else if (char === escape && i + 1 < text.length) {
      const next = text.charAt(++i);
      // Inside double quotes an escape stands for itself except before these.
      result += quote === '"' && next !== '"' && next !== "$" && next !== escape ? char + next : next;
    } else if (char === '"' || (char === "'" && quote === "")) {
      quote = quote === char ? "" : char;
    } else if (char === "$") {
      const { value, length } = expandAt(text.slice(i), escape, lookup);
      result += value;
      i += length - 1;
    } else result += char;
  }
  return result;
}

function expandAt(text: string, escape: string, lookup: (name: string) => string | undefined): { value: string; length: number } {
  const plain = /^\$([A-Za-z_][A-Za-z0-9_]*|[0-9])/.exec(text);
  if (plain !== null) return { value: lookup(plain[1] ?? "") ?? "", length: plain[0].length };
  if (!text.startsWith("${")) return { value: "$", length: 1 };
  const end = closingBrace(text);
  const match = end < 0 ? null : /^([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([\s\S]*))?$/.exec(text.slice(2, end));
  if (match === null) throw new Error(`unsupported variable form \`${end < 0 ? text : text.slice(0, end + 1)}\``);
  const [, name = "", operator, word = ""] = match;
  const found = lookup(name);
  const present = operator?.startsWith(":") === true ? found !== undefined && found !== "" : found !== undefined;
  const alternative = (): string => expandVariables(word, escape, lookup);
  const value = operator === undefined ? (found ?? "") : operator.endsWith("-") ? (present ? (found ?? "") : alternative()) : present ? alternative() : "";
  return { value, length: end + 1 };
}

/** Index of the brace that closes `${`, minding nested ones. */
function closingBrace(text: string): number {
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    if (text.startsWith("${", i)) depth++;
    else if (text.charAt(i) === "}" && --depth === 0) return i;
  }
  return -1;
}

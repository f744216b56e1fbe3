/** JSON as Python reads and writes it: key order kept whatever the keys, 1.0 apart from 1, integers of any size. */
import { Float, isDict, isList, Tuple, TemplateError, floatText, typeName, type Dict, type Value } from "./values.ts";

const TOKEN = /[ \t\n\r]*(?:([{}[\],:])|("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null))/y;
const MAX_DEPTH = 200;

/** Null when `text` is not JSON, or nested deeper than anybody means. */
export function readJson(text: string): { readonly value: Value } | null {
  // The strict parser decides what is JSON; ours then only reads it.
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let at = 0;
  let depth = 0;
  function next(): RegExpExecArray {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (match === null) throw new TemplateError("JSON breaks off.");
    at = TOKEN.lastIndex;
    return match;
  }
  function value(token: RegExpExecArray): Value {
    if (token[2] !== undefined) return JSON.parse(token[2]) as string;
    if (token[3] !== undefined) return /[.eE]/.test(token[3]) ? new Float(Number(token[3])) : integer(token[3]);
    if (token[4] !== undefined) return token[4] === "null" ? null : token[4] === "true";
    depth += 1;
    if (depth > MAX_DEPTH) throw new TemplateError(`JSON is nested more than ${MAX_DEPTH} deep.`);
    const result = token[1] === "{" ? dict() : list();
    depth -= 1;
    return result;
  }
  function dict(): Dict {
    const result: Dict = new Map();
    for (let token = next(); token[1] !== "}"; token = next()) {
      if (token[1] === ",") continue;
      const key = JSON.parse(token[2]!) as string;
      next();
      result.set(key, value(next()));
    }
    return result;
  }
  function list(): readonly Value[] {
    const result: Value[] = [];
    for (let token = next(); token[1] !== "]"; token = next()) if (token[1] !== ",") result.push(value(token));
    return result;
  }
  try {
    return { value: value(next()) };
  } catch (error) {
    if (error instanceof TemplateError) return null;
    throw error;
  }
}

function integer(text: string): Value {
  const number = Number(text);
  return Number.isSafeInteger(number) ? number : BigInt(text);
}

export interface JsonStyle {
  readonly ensureAscii: boolean;
  readonly indent: number | string | null;
  readonly separators: readonly [item: string, key: string] | null;
  readonly sortKeys: boolean;
}

export const PLAIN_JSON: JsonStyle = { ensureAscii: false, indent: null, separators: null, sortKeys: false };

/** `json.dumps`. */
export function writeJson(value: Value, style: JsonStyle = PLAIN_JSON): string {
  const indent = typeof style.indent === "number" ? " ".repeat(style.indent) : style.indent;
  const [between, after] = style.separators ?? [indent === null ? ", " : ",", ": "];
  function text(string: string): string {
    // A lone surrogate stays as it is, as in Python.
    const quoted = JSON.stringify(string);
    return style.ensureAscii ? quoted.replaceAll(/[\u007f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`) : quoted;
  }
  function wrap(open: string, close: string, parts: readonly string[], depth: number): string {
    if (parts.length === 0) return open + close;
    if (indent === null) return open + parts.join(between) + close;
    const line = `\n${indent.repeat(depth + 1)}`;
    return `${open}${line}${parts.join(between + line)}\n${indent.repeat(depth)}${close}`;
  }
  function write(item: Value, depth: number): string {
    if (item === null) return "null";
    if (typeof item === "string") return text(item);
    if (typeof item === "boolean" || typeof item === "number" || typeof item === "bigint") return item.toString();
    if (item instanceof Float) return Number.isFinite(item.value) ? floatText(item.value) : Number.isNaN(item.value) ? "NaN" : item.value > 0 ? "Infinity" : "-Infinity";
    if (depth > MAX_DEPTH) throw new TemplateError(`A value is nested more than ${MAX_DEPTH} deep.`);
    if (isList(item) || item instanceof Tuple) return wrap("[", "]", (isList(item) ? item : item.items).map((part) => write(part, depth + 1)), depth);
    if (isDict(item)) {
      const entries = [...item].map(([key, part]) => [typeof key === "string" ? key : write(key, depth), part] as const);
      if (style.sortKeys) entries.sort(([left], [right]) => (left < right ? -1 : 1));
      return wrap("{", "}", entries.map(([key, part]) => `${text(key)}${after}${write(part, depth + 1)}`), depth);
    }
    throw new TemplateError(`Object of type ${typeName(item)} is not JSON serializable`);
  }
  return write(value, 0);
}

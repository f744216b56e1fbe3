/**
 * Values as Python has them, for templates that were written against Python: integers apart from floats, dictionaries in order of insertion, strings in code points,
 * and each value's `str` and JSON spelled as Python spells them. A template that sees `false` where it was written for `False` gives another prompt.
 */

/** A float, so that 1.0 stays apart from 1. */
export class Float {
  readonly value: number;
  constructor(value: number) {
    this.value = value;
  }
}

export class Tuple {
  readonly items: readonly Value[];
  constructor(items: readonly Value[]) {
    this.items = items;
  }
}

/** What `namespace()` gives: the one thing that a template can assign attributes to. */
export class Namespace {
  readonly fields: Map<string, Value>;
  constructor(fields: Map<string, Value>) {
    this.fields = fields;
  }
}

export class Undefined {
  readonly name: string;
  constructor(name: string) {
    this.name = name;
  }
}

export interface Arguments {
  readonly positional: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
}

export class Callable {
  readonly call: (args: Arguments) => Value;
  constructor(call: (args: Arguments) => Value) {
    this.call = call;
  }
}

export type Dict = Map<Value, Value>;
/** Null is `None`; numbers and bigints are integers. */
export type Value = null | boolean | string | number | bigint | Float | Tuple | Namespace | Undefined | Callable | readonly Value[] | Dict;

/** What a template itself asks to be told: `raise_exception`, or an operation that Python refuses. */
export class TemplateError extends Error {
  override readonly name: string = "TemplateError";
}

/** `raise_exception`: the template refuses the conversation. */
export class TemplateRefusal extends TemplateError {
  override readonly name: string = "TemplateRefusal";
}

export function isDict(value: Value): value is Dict {
  return value instanceof Map;
}

export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value);
}

const MAX_DEPTH = 500;

/** A JavaScript value as Python's JSON reader would give it. Numbers without a fraction become integers. Throws `TemplateError` for one that is nested too deep. */
export function fromJs(value: unknown, depth = 0): Value {
  if (depth > MAX_DEPTH) throw new TemplateError(`A value is nested more than ${MAX_DEPTH} deep.`);
  switch (typeof value) {
    case "string":
    case "boolean":
    case "bigint":
      return value;
    case "number":
      return Number.isInteger(value) ? value : new Float(value);
    case "undefined":
      return new Undefined("undefined");
    case "object": {
      if (value === null) return null;
      if (Array.isArray(value)) return value.map((item) => fromJs(item, depth + 1));
      if (value instanceof Map) return value as Dict;
      if (value instanceof Float || value instanceof Tuple || value instanceof Namespace || value instanceof Undefined || value instanceof Callable) return value;
      const dict: Dict = new Map();
      for (const [key, item] of Object.entries(value)) if (item !== undefined) dict.set(key, fromJs(item, depth + 1));
      return dict;
    }
    default:
      throw new TemplateError(`A ${typeof value} is no value for a template.`);
  }
}

export function isTrue(value: Value): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (value instanceof Float) return value.value !== 0;
  if (value instanceof Tuple) return value.items.length > 0;
  if (isList(value)) return value.length > 0;
  if (isDict(value)) return value.size > 0;
  if (typeof value === "object") return true;
  return typeof value === "bigint" ? value !== 0n : Boolean(value);
}

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (typeof value === "string") return "str";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "number" || typeof value === "bigint") return "int";
  if (value instanceof Float) return "float";
  if (value instanceof Tuple) return "tuple";
  if (isList(value)) return "list";
  if (isDict(value)) return "dict";
  return value.constructor.name;
}

/** The number behind an integer, float or bool; null for anything else. */
export function toNumber(value: Value): number | null {
  if (typeof value === "number") return value;
  if (typeof value === "bigint" || typeof value === "boolean") return Number(value);
  return value instanceof Float ? value.value : null;
}

export function items(value: Value): readonly Value[] {
  if (isList(value)) return value;
  if (value instanceof Tuple) return value.items;
  if (isDict(value)) return [...value.keys()];
  if (typeof value === "string") return Array.from(value);
  if (value instanceof Undefined) return [];
  throw new TemplateError(`'${typeName(value)}' object is not iterable`);
}

export function isEqual(left: Value, right: Value): boolean {
  const [a, b] = [toNumber(left), toNumber(right)];
  if (a !== null && b !== null) return a === b;
  if (left instanceof Undefined && right instanceof Undefined) return true;
  if ((isList(left) && isList(right)) || (left instanceof Tuple && right instanceof Tuple)) {
    const [x, y] = [items(left), items(right)];
    return x.length === y.length && x.every((item, index) => isEqual(item, y[index]!));
  }
  if (isDict(left) && isDict(right)) {
    if (left.size !== right.size) return false;
    for (const [key, item] of left) {
      const other = right.get(key);
      if (other === undefined || !isEqual(item, other)) return false;
    }
    return true;
  }
  return left === right;
}

/** Negative, zero or positive. Strings compare by code point. */
export function compare(left: Value, right: Value): number {
  const [a, b] = [toNumber(left), toNumber(right)];
  if (a !== null && b !== null) return a - b;
  if (typeof left === "string" && typeof right === "string") return compareStrings(left, right);
  if ((isList(left) && isList(right)) || (left instanceof Tuple && right instanceof Tuple)) {
    const [x, y] = [items(left), items(right)];
    for (let index = 0; index < Math.min(x.length, y.length); index++) {
      if (!isEqual(x[index]!, y[index]!)) return compare(x[index]!, y[index]!);
    }
    return x.length - y.length;
  }
  throw new TemplateError(`'<' not supported between instances of '${typeName(left)}' and '${typeName(right)}'`);
}

function compareStrings(left: string, right: string): number {
  const [a, b] = [Array.from(left), Array.from(right)];
  for (let index = 0; index < Math.min(a.length, b.length); index++) {
    if (a[index] !== b[index]) return a[index]!.codePointAt(0)! - b[index]!.codePointAt(0)!;
  }
  return a.length - b.length;
}

export function floatText(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  const size = Math.abs(value);
  // Python writes an exponent from 1e16 on and below 1e-4, with at least two digits.
  if (size !== 0 && (size >= 1e16 || size < 1e-4)) return value.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
  const text = value.toString();
  return /[.e]/.test(text) ? text : `${text}.0`;
}

/** Python's `str`. */
export function toText(value: Value): string {
  if (typeof value === "string") return value;
  if (value instanceof Undefined) return "";
  return repr(value);
}

function repr(value: Value): string {
  if (value === null) return "None";
  if (typeof value === "string") return reprText(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" || typeof value === "bigint") return value.toString();
  if (value instanceof Float) return floatText(value.value);
  if (value instanceof Tuple) return value.items.length === 1 ? `(${repr(value.items[0]!)},)` : `(${value.items.map(repr).join(", ")})`;
  if (isList(value)) return `[${value.map(repr).join(", ")}]`;
  if (isDict(value)) return `{${[...value].map(([key, item]) => `${repr(key)}: ${repr(item)}`).join(", ")}}`;
  if (value instanceof Undefined) return "Undefined";
  throw new TemplateError(`A ${typeName(value)} has no text.`);
}

const ESCAPED = /[\\'"\p{Cc}\u00a0\u00ad]/gu;

function reprText(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const body = text.replaceAll(ESCAPED, (char) => {
    if (char === "'" || char === '"') return char === quote ? `\\${char}` : char;
    if (char === "\\") return "\\\\";
    if (char === "\n") return "\\n";
    if (char === "\r") return "\\r";
    if (char === "\t") return "\\t";
    return `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`;
  });
  return `${quote}${body}${quote}`;
}

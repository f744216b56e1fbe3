/** Jinja's filters and tests, as far as chat templates use them. An unknown one is an error when the template is run, never a silent pass. */
import { writeJson } from "./json.ts";
import { argument, capitalize, contains, integerArgument, item, length, replace, strip, title } from "./methods.ts";
import {
  Callable, Float, Namespace, TemplateError, Tuple, Undefined, compare, isDict, isEqual, isList, isTrue, items, toNumber, toText, typeName,
  type Arguments, type Value,
} from "./values.ts";

type FilterFunction = (value: Value, args: Arguments) => Value;

export const FILTERS: ReadonlyMap<string, FilterFunction> = new Map<string, FilterFunction>([
  ["safe", (value) => value],
  ["string", (value) => toText(value)],
  ["tojson", tojson],
  ["trim", (value, args) => strip(toText(value), (argument(args, 0, "chars") ?? null) as string | null)],
  ["upper", (value) => toText(value).toUpperCase()],
  ["lower", (value) => toText(value).toLowerCase()],
  ["title", (value) => title(toText(value))],
  ["capitalize", (value) => capitalize(toText(value))],
  ["replace", (value, args) => replace(toText(value), toText(argument(args, 0, "old") ?? ""), toText(argument(args, 1, "new") ?? ""), integerArgument(args, 2, "count", -1))],
  ["indent", indent],
  ["escape", (value) => escape(toText(value))],
  ["e", (value) => escape(toText(value))],
  ["length", (value) => length(value)],
  ["count", (value) => length(value)],
  ["list", (value) => items(value)],
  ["first", (value) => orUndefined(items(value)[0], "first")],
  ["last", (value) => orUndefined(items(value).at(-1), "last")],
  ["reverse", (value) => (typeof value === "string" ? Array.from(value).toReversed().join("") : items(value).toReversed())],
  ["join", (value, args) => items(value).map((part) => toText(attributeOf(part, args, 1))).join(toText(argument(args, 0, "d") ?? ""))],
  ["sort", sort],
  ["unique", (value) => items(value).filter((one, index, all) => all.findIndex((other) => isEqual(fold(other), fold(one))) === index)],
  ["min", (value) => items(value).toSorted((left, right) => compare(fold(left), fold(right)))[0] ?? new Undefined("min")],
  ["max", (value) => items(value).toSorted((left, right) => compare(fold(right), fold(left)))[0] ?? new Undefined("max")],
  ["sum", (value, args) => number(items(value).reduce<number>((total, part) => total + (toNumber(attributeOf(part, args, 0)) ?? 0), 0), items(value).some((part) => part instanceof Float))],
  ["abs", (value) => number(Math.abs(numberOf(value)), value instanceof Float)],
  ["round", (value, args) => new Float(roundHalfEven(numberOf(value), integerArgument(args, 0, "precision", 0)))],
  ["int", (value, args) => int(value, argument(args, 0, "default") ?? 0)],
  ["float", (value, args) => float(value, argument(args, 0, "default") ?? new Float(0))],
  ["items", (value) => (value instanceof Undefined ? [] : isDict(value) ? [...value].map((entry) => new Tuple(entry)) : fail("Can only get item pairs from a mapping."))],
  ["dictsort", dictsort],
  ["default", fallback],
  ["d", fallback],
  ["map", map],
  ["select", (value, args) => items(value).filter((part) => passes(part, args, 0))],
  ["reject", (value, args) => items(value).filter((part) => !passes(part, args, 0))],
  ["selectattr", (value, args) => items(value).filter((part) => passes(path(part, args.positional[0] ?? null), args, 1))],
  ["rejectattr", (value, args) => items(value).filter((part) => !passes(path(part, args.positional[0] ?? null), args, 1))],
]);

type TestFunction = (value: Value, args: readonly Value[]) => boolean;

export const TESTS: ReadonlyMap<string, TestFunction> = new Map<string, TestFunction>([
  ["defined", (value) => !(value instanceof Undefined)],
  ["undefined", (value) => value instanceof Undefined],
  ["none", (value) => value === null],
  ["true", (value) => value === true],
  ["false", (value) => value === false],
  ["boolean", (value) => typeof value === "boolean"],
  ["string", (value) => typeof value === "string"],
  ["number", (value) => toNumber(value) !== null],
  ["integer", (value) => typeof value === "number" || typeof value === "bigint"],
  ["float", (value) => value instanceof Float],
  ["mapping", (value) => isDict(value)],
  // What has a length and items: also dictionaries and strings.
  ["sequence", (value) => typeof value === "string" || isList(value) || isDict(value) || value instanceof Tuple || value instanceof Undefined],
  ["iterable", (value) => typeof value === "string" || isList(value) || isDict(value) || value instanceof Tuple || value instanceof Undefined],
  ["callable", (value) => value instanceof Callable],
  ["odd", (value) => Math.abs(numberOf(value) % 2) === 1],
  ["even", (value) => numberOf(value) % 2 === 0],
  ["lower", (value) => toText(value) === toText(value).toLowerCase() && toText(value) !== toText(value).toUpperCase()],
  ["upper", (value) => toText(value) === toText(value).toUpperCase() && toText(value) !== toText(value).toLowerCase()],
  ["eq", (value, [other]) => isEqual(value, other ?? null)],
  ["equalto", (value, [other]) => isEqual(value, other ?? null)],
  ["==", (value, [other]) => isEqual(value, other ?? null)],
  ["ne", (value, [other]) => !isEqual(value, other ?? null)],
  ["!=", (value, [other]) => !isEqual(value, other ?? null)],
  ["in", (value, [other]) => contains(other ?? null, value)],
]);

export function test(name: string): TestFunction {
  return TESTS.get(name) ?? fail(`No test named '${name}'.`);
}

function fail(message: string): never {
  throw new TemplateError(message);
}

function orUndefined(value: Value | undefined, name: string): Value {
  return value === undefined ? new Undefined(name) : value;
}

function numberOf(value: Value): number {
  return toNumber(value) ?? fail(`A ${typeName(value)} is no number.`);
}

function number(value: number, isFloat: boolean): Value {
  return isFloat ? new Float(value) : value;
}

function fold(value: Value): Value {
  return typeof value === "string" ? value.toLowerCase() : value;
}

/** `a.b.0` of a value, by items. */
function path(value: Value, attribute: Value): Value {
  if (typeof attribute === "number") return orUndefined(item(value, attribute), String(attribute));
  let current = value;
  for (const part of toText(attribute).split(".")) {
    const key = /^\d+$/.test(part) ? Number(part) : part;
    current = orUndefined(current instanceof Namespace ? current.fields.get(part) : item(current, key), part);
  }
  return current;
}

function attributeOf(value: Value, args: Arguments, position: number): Value {
  const attribute = argument(args, position, "attribute");
  return attribute === undefined || attribute === null ? value : path(value, attribute);
}

function passes(value: Value, args: Arguments, position: number): boolean {
  const name = args.positional[position];
  return name === undefined ? isTrue(value) : test(toText(name))(value, args.positional.slice(position + 1));
}

function tojson(value: Value, args: Arguments): string {
  const separators = args.named.get("separators") ?? args.positional[2] ?? null;
  const pair = separators === null ? null : items(separators).map(toText);
  const indentation = args.named.get("indent") ?? args.positional[1] ?? null;
  return writeJson(value, {
    ensureAscii: isTrue(args.named.get("ensure_ascii") ?? args.positional[0] ?? false),
    indent: indentation === null ? null : typeof indentation === "string" ? indentation : numberOf(indentation),
    separators: pair === null ? null : [pair[0] ?? ", ", pair[1] ?? ": "],
    sortKeys: isTrue(args.named.get("sort_keys") ?? args.positional[3] ?? false),
  });
}

function indent(value: Value, args: Arguments): string {
  const width = argument(args, 0, "width") ?? 4;
  const pad = typeof width === "string" ? width : " ".repeat(numberOf(width));
  const first = isTrue(argument(args, 1, "first") ?? false);
  const blank = isTrue(argument(args, 2, "blank") ?? false);
  return toText(value).split("\n").map((line, index) => ((index === 0 && !first) || (line === "" && !blank && index > 0) ? line : pad + line)).join("\n");
}

function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&#34;").replaceAll("'", "&#39;");
}

function sort(value: Value, args: Arguments): Value {
  const caseSensitive = isTrue(argument(args, 1, "case_sensitive") ?? false);
  const key = (part: Value): Value => {
    const by = attributeOf(part, args, 2);
    return caseSensitive ? by : fold(by);
  };
  const sorted = items(value).toSorted((left, right) => compare(key(left), key(right)));
  return isTrue(argument(args, 0, "reverse") ?? false) ? items(value).toSorted((left, right) => compare(key(right), key(left))) : sorted;
}

function dictsort(value: Value, args: Arguments): Value {
  if (!isDict(value)) return fail("dictsort takes a mapping.");
  const caseSensitive = isTrue(argument(args, 0, "case_sensitive") ?? false);
  const position = argument(args, 1, "by") === "value" ? 1 : 0;
  const sign = isTrue(argument(args, 2, "reverse") ?? false) ? -1 : 1;
  const key = (entry: readonly Value[]): Value => (caseSensitive ? entry[position]! : fold(entry[position]!));
  return [...value].toSorted((left, right) => sign * compare(key(left), key(right))).map((entry) => new Tuple(entry));
}

function fallback(value: Value, args: Arguments): Value {
  const missing = value instanceof Undefined || (isTrue(argument(args, 1, "boolean") ?? false) && !isTrue(value));
  const given = argument(args, 0, "default_value");
  return !missing ? value : given === undefined ? "" : given;
}

function map(value: Value, args: Arguments): Value {
  const attribute = args.named.get("attribute");
  if (attribute !== undefined) {
    const missing = args.named.get("default");
    return items(value).map((part) => {
      const found = path(part, attribute);
      return found instanceof Undefined && missing !== undefined ? missing : found;
    });
  }
  const name = toText(args.positional[0] ?? "");
  const filter = FILTERS.get(name) ?? fail(`No filter named '${name}'.`);
  return items(value).map((part) => filter(part, { positional: args.positional.slice(1), named: args.named }));
}

function int(value: Value, missing: Value): Value {
  if (typeof value === "bigint") return value;
  const number = toNumber(value);
  if (number !== null) return Math.trunc(number);
  const text = toText(value).trim();
  if (/^[+-]?\d+$/.test(text)) return Number(text);
  return /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(text) ? Math.trunc(Number(text)) : missing;
}

function float(value: Value, missing: Value): Value {
  const number = toNumber(value) ?? (typeof value === "string" && value.trim() !== "" ? Number(value) : Number.NaN);
  return Number.isNaN(number) ? missing : new Float(number);
}

function roundHalfEven(value: number, precision: number): number {
  const scale = 10 ** precision;
  const scaled = value * scale;
  const floor = Math.floor(scaled);
  const rest = scaled - floor;
  return (rest < 0.5 || (rest === 0.5 && floor % 2 === 0) ? floor : floor + 1) / scale;
}

/** The methods of Python's strings, dictionaries and lists, as far as templates may use them: those that change their object are refused, as transformers' sandbox does. */
import { Callable, Float, isDict, isEqual, isList, items, TemplateError, toNumber, toText, Tuple, typeName, type Arguments, type Dict, type Value } from "./values.ts";

/** What `str.strip()` removes. */
const SPACE = "\t\n\v\f\r\u001c\u001d\u001e\u001f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000";

const LINE_ENDS = "\n\r\v\f\u001c\u001d\u001e\u0085\u2028\u2029";
const LINE_END = new RegExp(`\\r\\n|[${LINE_ENDS}]`);

export function strip(text: string, chars: string | null, side: "both" | "left" | "right" = "both"): string {
  const set = new Set(chars ?? SPACE);
  const points = Array.from(text);
  let start = 0;
  let end = points.length;
  if (side !== "right") while (start < end && set.has(points[start]!)) start += 1;
  if (side !== "left") while (end > start && set.has(points[end - 1]!)) end -= 1;
  return start === 0 && end === points.length ? text : points.slice(start, end).join("");
}

export function title(text: string): string {
  return text.replaceAll(/\p{L}+/gu, (word) => capitalize(word));
}

export function capitalize(text: string): string {
  const [first = "", ...rest] = Array.from(text);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

/** `args` by position or name; undefined where not given. */
export function argument(args: Arguments, index: number, name: string): Value | undefined {
  const value = args.positional[index];
  return value === undefined ? args.named.get(name) : value;
}

export function textArgument(args: Arguments, index: number, name: string): string {
  const value = argument(args, index, name);
  if (typeof value !== "string") throw new TemplateError(`${name} must be a string.`);
  return value;
}

export function integerArgument(args: Arguments, index: number, name: string, fallback: number): number {
  const value = argument(args, index, name);
  if (value === undefined || value === null) return fallback;
  const number = value instanceof Float ? null : toNumber(value);
  if (number === null) throw new TemplateError(`${name} must be an integer.`);
  return number;
}

/** Null for a value that has no such method. */
export function method(value: Value, name: string): Callable | null {
  if (typeof value === "string") return textMethod(value, name);
  if (isDict(value)) return dictMethod(value, name);
  if (isList(value) || value instanceof Tuple) return listMethod(items(value), name);
  return null;
}

function dictMethod(dict: Dict, name: string): Callable | null {
  switch (name) {
    case "get":
      return new Callable((args) => {
        const value = dict.get(args.positional[0] ?? null);
        return value === undefined ? (argument(args, 1, "default") ?? null) : value;
      });
    case "items":
      return new Callable(() => [...dict].map((entry) => new Tuple(entry)));
    case "keys":
      return new Callable(() => [...dict.keys()]);
    case "values":
      return new Callable(() => [...dict.values()]);
    case "copy":
      return new Callable(() => new Map(dict));
    default:
      return null;
  }
}

function listMethod(list: readonly Value[], name: string): Callable | null {
  switch (name) {
    case "index":
      return new Callable((args) => {
        const at = list.findIndex((item) => isEqual(item, args.positional[0] ?? null));
        if (at < 0) throw new TemplateError("The value is not in the list.");
        return at;
      });
    case "count":
      return new Callable((args) => list.filter((item) => isEqual(item, args.positional[0] ?? null)).length);
    default:
      return null;
  }
}

function textMethod(text: string, name: string): Callable | null {
  const make = (call: (args: Arguments) => Value): Callable => new Callable(call);
  switch (name) {
    case "strip":
    case "lstrip":
    case "rstrip": {
      const side = name === "strip" ? "both" : name === "lstrip" ? "left" : "right";
      return make((args) => strip(text, args.positional[0] === undefined || args.positional[0] === null ? null : textArgument(args, 0, "chars"), side));
    }
    case "upper":
      return make(() => text.toUpperCase());
    case "lower":
      return make(() => text.toLowerCase());
    case "title":
      return make(() => title(text));
    case "capitalize":
      return make(() => capitalize(text));
    case "startswith":
      return make((args) => affixes(args).some((affix) => text.startsWith(affix)));
    case "endswith":
      return make((args) => affixes(args).some((affix) => text.endsWith(affix)));
    case "removeprefix":
      return make((args) => (text.startsWith(textArgument(args, 0, "prefix")) ? text.slice(textArgument(args, 0, "prefix").length) : text));
    case "removesuffix":
      return make((args) => {
        const suffix = textArgument(args, 0, "suffix");
        return suffix !== "" && text.endsWith(suffix) ? text.slice(0, -suffix.length) : text;
      });
    case "split":
    case "rsplit":
      return make((args) => split(text, args, name === "rsplit"));
    case "splitlines":
      return make(() => {
        const lines = text.split(LINE_END);
        return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
      });
    case "join":
      return make((args) => items(args.positional[0] ?? null).map((item) => (typeof item === "string" ? item : fail(`expected str instance, ${typeName(item)} found`))).join(text));
    case "replace":
      return make((args) => replace(text, textArgument(args, 0, "old"), textArgument(args, 1, "new"), integerArgument(args, 2, "count", -1)));
    case "find":
    case "index":
      return make((args) => {
        const at = text.indexOf(textArgument(args, 0, "sub"));
        if (at < 0 && name === "index") throw new TemplateError("substring not found");
        return at < 0 ? at : Array.from(text.slice(0, at)).length;
      });
    case "rfind":
      return make((args) => {
        const at = text.lastIndexOf(textArgument(args, 0, "sub"));
        return at < 0 ? at : Array.from(text.slice(0, at)).length;
      });
    case "count":
      return make((args) => text.split(textArgument(args, 0, "sub")).length - 1);
    case "format":
      return make((args) => format(text, args));
    case "isdigit":
      return make(() => /^\p{Nd}+$/u.test(text));
    case "isalpha":
      return make(() => /^\p{L}+$/u.test(text));
    case "isspace":
      return make(() => text !== "" && strip(text, null) === "");
    default:
      return null;
  }
}

/** `"{} {0} {name}".format(...)`, without conversions or format specifications. */
function format(text: string, args: Arguments): string {
  let automatic = 0;
  return text.replaceAll(/\{\{|\}\}|\{([^{}]*)\}/g, (all, field: string | undefined) => {
    if (field === undefined) return all[0]!;
    const value = field === "" ? args.positional[automatic++] : /^\d+$/.test(field) ? args.positional[Number(field)] : args.named.get(field);
    return value === undefined ? fail(`format() has nothing for {${field}}.`) : toText(value);
  });
}

function fail(message: string): never {
  throw new TemplateError(message);
}

function affixes(args: Arguments): readonly string[] {
  const affix = args.positional[0];
  if (affix instanceof Tuple) return affix.items.map(toText);
  return [textArgument(args, 0, "prefix")];
}

function split(text: string, args: Arguments, fromRight: boolean): readonly Value[] {
  const given = argument(args, 0, "sep") ?? null;
  const limit = integerArgument(args, 1, "maxsplit", -1);
  if (given === null) {
    const words = [...strip(text, null).matchAll(new RegExp(`[^${SPACE}]+`, "gu"))];
    if (limit < 0 || words.length <= limit + 1) return words.map((word) => word[0]);
    const body = strip(text, null, fromRight ? "right" : "left");
    if (fromRight) {
      const kept = words.slice(-limit || words.length);
      const first = kept[0]!;
      const offset = strip(text, null).length - body.length;
      return [strip(body.slice(0, first.index - offset), null, "right"), ...kept.map((word) => word[0])];
    }
    return [...words.slice(0, limit).map((word) => word[0]), body.slice(words[limit]!.index)];
  }
  const separator = textArgument(args, 0, "sep");
  if (separator === "") throw new TemplateError("empty separator");
  const parts = text.split(separator);
  if (limit < 0 || parts.length <= limit + 1) return parts;
  if (!fromRight) return [...parts.slice(0, limit), parts.slice(limit).join(separator)];
  const head = parts.slice(0, parts.length - limit).join(separator);
  return [head, ...parts.slice(parts.length - limit)];
}

/** `count` below zero: all. */
export function replace(text: string, old: string, by: string, count: number): string {
  if (count < 0) return old === "" ? [by, ...Array.from(text).flatMap((char) => [char, by])].join("") : text.replaceAll(old, () => by);
  let result = "";
  let rest = text;
  for (let done = 0; done < count; done++) {
    const at = rest.indexOf(old);
    if (at < 0 || (old === "" && rest === "")) break;
    result += rest.slice(0, at) + by + (old === "" ? rest[0]! : "");
    rest = rest.slice(at + Math.max(old.length, 1));
  }
  return result + rest;
}

/** `range(...)`. */
export function range(args: Arguments): readonly Value[] {
  const [first, second, third] = args.positional.map((value) => (value instanceof Float ? null : toNumber(value)));
  if (first === null || second === null || third === null || first === undefined) throw new TemplateError("range() takes integers.");
  const [start, stop, step] = second === undefined ? [0, first, 1] : [first, second, third ?? 1];
  if (step === 0) throw new TemplateError("range() arg 3 must not be zero");
  const count = Math.max(0, Math.ceil((stop - start) / step));
  if (count > 100_000) throw new TemplateError("Range too big.");
  return Array.from({ length: count }, (_, index) => start + index * step);
}

/** The value of `value[property]` or, where `value` has no such item, `value.property`; undefined for neither. */
export function item(value: Value, property: Value): Value | undefined {
  if (isDict(value)) return value.get(property);
  if (isList(value) || value instanceof Tuple || typeof value === "string") {
    const index = typeof property === "boolean" || property instanceof Float ? null : toNumber(property);
    if (index === null) return undefined;
    return typeof value === "string" ? Array.from(value).at(index) : items(value).at(index);
  }
  return undefined;
}

export function slice(value: Value, start: number | null, stop: number | null, step: number | null): Value {
  const list = items(value);
  const by = step ?? 1;
  if (by === 0) throw new TemplateError("slice step cannot be zero");
  const clamp = (index: number | null, fallback: number): number => {
    if (index === null) return fallback;
    const from = index < 0 ? index + list.length : index;
    return by > 0 ? Math.min(Math.max(from, 0), list.length) : Math.min(Math.max(from, -1), list.length - 1);
  };
  const end = clamp(stop, by > 0 ? list.length : -1);
  const result: Value[] = [];
  for (let index = clamp(start, by > 0 ? 0 : list.length - 1); by > 0 ? index < end : index > end; index += by) result.push(list[index]!);
  if (typeof value === "string") return (result as readonly string[]).join("");
  return value instanceof Tuple ? new Tuple(result) : result;
}

export function length(value: Value): number {
  if (isDict(value)) return value.size;
  if (typeof value === "number" || typeof value === "bigint" || typeof value === "boolean" || value === null) throw new TemplateError(`object of type '${typeName(value)}' has no len()`);
  return items(value).length;
}

export function contains(container: Value, value: Value): boolean {
  if (typeof container === "string") {
    if (typeof value !== "string") throw new TemplateError(`'in <string>' requires string as left operand, not ${typeName(value)}`);
    return container.includes(value);
  }
  if (isDict(container)) return container.has(value);
  return items(container).some((other) => isEqual(other, value));
}


/** What every template finds defined. */
import { range } from "./methods.ts";
import { Callable, Namespace, TemplateError, TemplateRefusal, isDict, toText, type Dict, type Value } from "./values.ts";

/** `now` is what `strftime_now` tells. */
export function globals(now: Date): readonly (readonly [string, Value])[] {
  return [
    ["true", true], ["True", true], ["false", false], ["False", false], ["none", null], ["None", null],
    ["range", new Callable(range)],
    ["dict", new Callable((args) => new Map<Value, Value>([...(isDict(args.positional[0] ?? null) ? (args.positional[0] as Dict) : []), ...args.named]))],
    ["namespace", new Callable((args) => {
      const from = args.positional[0] ?? null;
      const entries = isDict(from) ? [...from].map(([key, value]) => [toText(key), value] as const) : [];
      return new Namespace(new Map([...entries, ...args.named]));
    })],
    ["raise_exception", new Callable((args) => {
      throw new TemplateRefusal(toText(args.positional[0] ?? ""));
    })],
    ["strftime_now", new Callable((args) => strftime(now, toText(args.positional[0] ?? "")))],
  ];
}

const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** In the host's time zone and in English, whatever the locale. */
function strftime(now: Date, format: string): string {
  const two = (value: number): string => String(value).padStart(2, "0");
  return format.replaceAll(/%-?[a-zA-Z%]/g, (code) => {
    const text = field(code.replace("-", ""));
    return code.startsWith("%-") ? text.replace(/^0(?=\d)/, "") : text;
  });
  function field(code: string): string {
    switch (code) {
      case "%Y": return String(now.getFullYear());
      case "%y": return two(now.getFullYear() % 100);
      case "%m": return two(now.getMonth() + 1);
      case "%d": return two(now.getDate());
      case "%H": return two(now.getHours());
      case "%I": return two(now.getHours() % 12 || 12);
      case "%M": return two(now.getMinutes());
      case "%S": return two(now.getSeconds());
      case "%p": return now.getHours() < 12 ? "AM" : "PM";
      case "%B": return MONTHS[now.getMonth()]!;
      case "%b": return MONTHS[now.getMonth()]!.slice(0, 3);
      case "%A": return DAYS[now.getDay()]!;
      case "%a": return DAYS[now.getDay()]!.slice(0, 3);
      case "%%": return "%";
      default: throw new TemplateError(`strftime_now does not know ${code}.`);
    }
  }
}

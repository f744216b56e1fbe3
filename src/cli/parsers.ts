/** Parsers of flag values. Each says what was expected; the flag's name and the value given are added by the caller. */
import { MwError } from "../core/errors.ts";
import { parseHostRule } from "../sandbox/egress/host-rules.ts";
import { parseBackendChoice } from "../sandbox/backend-choice.ts";
import type { Prices } from "../rollout/cost.ts";

/** A whole number within bounds. */
export function integerParser(minimum: number, maximum: number): (input: string) => number {
  return (input) => {
    const value = /^[+-]?\d+$/.test(input) ? Number(input) : Number.NaN;
    if (!Number.isSafeInteger(value) || value < minimum || value > maximum) {
      throw new MwError("usage", `expected a whole number from ${minimum} to ${maximum}`);
    }
    return value;
  };
}

/** A finite decimal number within bounds. */
export function decimalParser(minimum: number, maximum: number): (input: string) => number {
  return (input) => {
    const value = /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(input) ? Number(input) : Number.NaN;
    if (!Number.isFinite(value) || value < minimum || value > maximum) throw new MwError("usage", `expected a number from ${minimum} to ${maximum}`);
    return value;
  };
}

const BYTE_UNITS: Readonly<Record<string, number>> = { "": 1, b: 1, k: 1024, kib: 1024, m: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gib: 1024 ** 3, t: 1024 ** 4, tib: 1024 ** 4 };

/** An amount of memory or disk: `512M`, `2GiB`, `1048576`. */
export function bytesParser(input: string): number {
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(input);
  const unit = BYTE_UNITS[(match?.[2] ?? "?").toLowerCase()];
  const value = Math.floor(Number(match?.[1]) * (unit ?? Number.NaN));
  if (!Number.isSafeInteger(value) || value <= 0) throw new MwError("usage", "expected a size such as 512M, 2GiB or 1048576");
  return value;
}

const TIME_UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

/** A time span in milliseconds: `500ms`, `90s`, `5m`, `2h`; a bare number is seconds. */
export function durationParser(input: string): number {
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(input);
  const value = Math.round(Number(match?.[1]) * (TIME_UNITS[match?.[2] ?? "s"] ?? Number.NaN));
  if (!Number.isSafeInteger(value) || value <= 0) throw new MwError("usage", "expected a time span such as 90s, 5m or 2h");
  return value;
}

/** `every-turn` (0), or a time span. */
export function everyTurnParser(input: string): number {
  if (input === "every-turn") return 0;
  try {
    return durationParser(input);
  } catch {
    throw new MwError("usage", "expected every-turn, or a time span such as 30s");
  }
}

/** `input=1.25,cached=0.125,output=10,machine=0.05`: dollars a million tokens, and an hour of a machine. */
export function parsePrices(text: string): Prices {
  const expected = "expected prices such as input=1.25,cached=0.125,output=10 (dollars a million tokens), with machine=0.05 (an hour of a machine) where that costs something";
  const given = new Map<string, number>();
  for (const part of text.split(",")) {
    const [, name = "", number] = /^\s*(input|cached|output|machine)\s*=\s*(\d+(?:\.\d+)?|\.\d+)\s*$/.exec(part) ?? [];
    if (name === "" || given.has(name)) throw new MwError("usage", expected);
    given.set(name, Number(number));
  }
  const [input, output] = [given.get("input"), given.get("output")];
  // Half a price would be taken for the whole.
  if ((input === undefined) !== (output === undefined) || (given.has("cached") && input === undefined)) throw new MwError("usage", `${expected}; of tokens both input and output`);
  return { input: input ?? 0, cached: given.get("cached") ?? input ?? 0, output: output ?? 0, machine: given.get("machine") ?? 0 };
}

/** The same, as it was written. */
export function pricesText(input: string): string {
  parsePrices(input);
  return input;
}

export function textParser(input: string): string {
  if (input === "") throw new MwError("usage", "expected some text, got an empty value");
  return input;
}

/** An entry of a list of allowed hosts, as it was written. */
export function hostParser(input: string): string {
  return parseHostRule(input).text;
}

/** As given: the word is what is recorded. */
export function backendParser(input: string): string {
  parseBackendChoice(input);
  return input;
}

export function choiceParser<const T extends string>(choices: readonly T[]): (input: string) => T {
  return (input) => {
    const found = choices.find((choice) => choice === input);
    if (found === undefined) throw new MwError("usage", `expected one of ${choices.join(", ")}`);
    return found;
  };
}

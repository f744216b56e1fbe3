/** How commands speak: data on stdout, everything else on stderr; colour only for a terminal that wants it. */
import { styleText } from "node:util";
import type { MwError } from "../core/errors.ts";
import type { AppContext, OutputStream } from "./context.ts";

/** The one JSON document of `--json`. Numbers that JSON cannot carry are a bug of the caller and are refused. */
export function printJson(context: AppContext, document: unknown): void {
  const text = JSON.stringify(
    document,
    (key, value: unknown) => {
      if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`not a finite number in JSON output: ${key}`);
      return value;
    },
    2,
  );
  context.process.stdout.write(`${text}\n`);
}

export function printLine(context: AppContext, text = ""): void {
  context.process.stdout.write(`${text}\n`);
}

/** One line of progress or advice on stderr. */
export function note(context: AppContext, text: string): void {
  context.process.stderr.write(`${text}\n`);
}

/** Whether the stream is a terminal whose owner did not ask for plain text (https://no-color.org). */
export function wantsColor(stream: OutputStream, env: AppContext["env"]): boolean {
  if (env["NO_COLOR"] !== undefined && env["NO_COLOR"] !== "") return false;
  if (env["FORCE_COLOR"] !== undefined && env["FORCE_COLOR"] !== "" && env["FORCE_COLOR"] !== "0") return true;
  return stream.isTTY === true && env["TERM"] !== "dumb";
}

type Format = Parameters<typeof styleText>[0];

/** A function that styles text for this stream, or leaves it alone. */
export function styler(stream: OutputStream, env: AppContext["env"]): (format: Format, text: string) => string {
  if (!wantsColor(stream, env)) return (_format, text) => text;
  return (format, text) => styleText(format, text, { validateStream: false });
}

/** What failed, and what to do about it, as people read it. */
export function formatError(error: MwError, paint: (format: Format, text: string) => string = (_format, text) => text): string {
  const lines = [`${paint("red", "error:")} ${printable(error.message)}`];
  if (error.fix !== undefined) lines.push(`  ${paint("bold", "fix:")} ${printable(error.fix)}`);
  if (error.code === "internal") {
    lines.push(`  ${paint("bold", "fix:")} this is a bug in manyworlds; please report it with the lines below`);
    if (error.cause instanceof Error && error.cause.stack !== undefined) lines.push(error.cause.stack);
  }
  return lines.join("\n");
}

export interface Column {
  readonly title: string;
  readonly align?: "left" | "right";
}

/** A plain table: columns padded to their widest cell, two spaces between them. */
export function formatTable(columns: readonly Column[], rows: readonly (readonly string[])[], paint: (format: Format, text: string) => string = (_f, text) => text): string {
  const widths = columns.map((column, index) => Math.max(width(column.title), ...rows.map((row) => width(row[index] ?? ""))));
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, index) => {
        const gap = " ".repeat(Math.max(0, (widths[index] ?? 0) - width(cell)));
        return columns[index]?.align === "right" ? gap + cell : cell + gap;
      })
      .join("  ")
      .trimEnd();
  return [paint("bold", line(columns.map((column) => column.title))), ...rows.map(line)].join("\n");
}

/** Text that came from outside, safe for a terminal: control characters (escape sequences among them) are shown, not obeyed. */
export function printable(text: string): string {
  // Everything below space except newline and tab, delete, the C1 range, and what turns the direction of writing.
  // oxlint-disable-next-line no-control-regex -- these are what is looked for
  return text.replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (char) => {
    const code = char.codePointAt(0) ?? 0;
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Columns that a text takes: escape sequences none, wide East Asian characters two. */
function width(text: string): number {
  let columns = 0;
  // Our own colour sequences only; foreign text was made printable before.
  // oxlint-disable-next-line no-control-regex -- escape sequences begin with one
  for (const char of text.replaceAll(/\u001b\[[0-9;]*m/g, "")) {
    const code = char.codePointAt(0) ?? 0;
    columns += (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) || (code >= 0xff00 && code <= 0xff60) || code >= 0x1f300 ? 2 : 1;
  }
  return columns;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${UNITS[unit] ?? ""}`;
}

export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Two digits that say something, however small: $12.35, $0.0042. */
export function formatDollars(dollars: number): string {
  if (dollars === 0) return "$0";
  if (dollars >= 0.1) return `$${dollars.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${Number(dollars.toPrecision(2)).toLocaleString("en", { maximumFractionDigits: 12 })}`;
}

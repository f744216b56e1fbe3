/** Rows of rollouts as a spreadsheet takes them (RFC 4180). */
import type { RolloutRow } from "./contract/lists.ts";

const COLUMNS = ["rollout", "group", "task", "family", "attempt", "harness", "phase", "outcome", "reward", "stopReason", "seconds", "tries", "turns", "promptTokens", "completionTokens", "dollars", "mark"] as const satisfies readonly (keyof RolloutRow)[];

export function* csvLines(rows: Iterable<RolloutRow>): Generator<string> {
  yield `${[...COLUMNS, "error"].join(",")}\r\n`;
  for (const row of rows) yield `${[...COLUMNS.map((column) => cell(row[column])), cell(row.error?.message ?? null)].join(",")}\r\n`;
}

/** Texts that a spreadsheet would take for a formula are given as texts. */
function cell(value: string | number | null): string {
  if (value === null) return "";
  const text = String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

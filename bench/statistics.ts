/** Percentiles of measured durations, and the row shape that all benches print. */
export interface Row {
  readonly name: string;
  readonly n: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly does: string;
}

export interface Ratio {
  readonly value: number;
  readonly target: string;
  readonly holds: boolean;
}

export function percentile(values: readonly number[], p: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = Math.min(sorted.length - 1, Math.max(0, Math.ceil((p / 100) * sorted.length) - 1));
  return sorted[at] ?? Number.NaN;
}

export function row(name: string, valuesMs: readonly number[], does: string): Row {
  return { name, n: valuesMs.length, p50Ms: round(percentile(valuesMs, 50)), p99Ms: round(percentile(valuesMs, 99)), does };
}

export function round(value: number): number {
  return Number(value.toPrecision(4));
}

export function printTable(rows: readonly Row[], ratios: Readonly<Record<string, Ratio>>): void {
  const width = Math.max(...rows.map(({ name }) => name.length));
  for (const { name, n, p50Ms, p99Ms, does } of rows) {
    console.log(`${name.padEnd(width)}  p50 ${p50Ms.toFixed(3).padStart(9)} ms  p99 ${p99Ms.toFixed(3).padStart(9)} ms  n=${n}  ${does}`);
  }
  for (const [name, { value, target, holds }] of Object.entries(ratios)) console.log(`${holds ? "holds " : "MISSED"}  ${name}: ${value} (target ${target})`);
}

/** Whether the host is short of memory, so that nothing is to be kept that nobody has asked for. */
import { readFile } from "node:fs/promises";

/** Of the host's memory, available to whoever asks. */
const AVAILABLE_LEAST = 0.1;
/** Percent of the last ten seconds in which something waited for memory (pressure stall information). */
const STALLED_MOST = 10;

export async function underMemoryPressure(): Promise<boolean> {
  const [memory, pressure] = await Promise.all([textOf("/proc/meminfo"), textOf("/proc/pressure/memory")]);
  return short(memory, pressure);
}

/** What the texts of those two files say; an empty one says nothing. */
export function short(memory: string, pressure: string): boolean {
  const [total, available] = ["MemTotal", "MemAvailable"].map((name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(memory)?.[1] ?? Number.NaN));
  const stalled = Number(/^some avg10=([\d.]+)/m.exec(pressure)?.[1] ?? 0);
  return stalled > STALLED_MOST || (available ?? Number.NaN) / (total ?? Number.NaN) < AVAILABLE_LEAST;
}

function textOf(path: string): Promise<string> {
  return readFile(path, "utf8").catch(() => "");
}

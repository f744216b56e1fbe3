/** Kills what works for a data directory at chosen moments: its spawner, or a helper of it or of this process. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** `tree` copies and reads files of machines, `unpack` (ours) unpacks and removes trees, `criu` keeps and restores processes. */
export type Victim = "spawner" | "tree" | "unpack" | "criu";

export interface Killing<T> {
  readonly killed: boolean;
  readonly result: PromiseSettledResult<T>;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Does `work`, and kills the victim `afterMs` after it is first seen at work. `killed` is false when it was done before. */
export async function killing<T>(home: string, victim: Victim, afterMs: number, work: () => Promise<T>): Promise<Killing<T>> {
  const before = new Set(victims(home, victim));
  const state = { over: false };
  const settled = Promise.allSettled([work()]).then(([result]) => {
    state.over = true;
    return result;
  });
  let pid: number | undefined;
  while (!state.over && pid === undefined) {
    pid = victims(home, victim).find((found) => victim === "spawner" || !before.has(found));
    // A helper may live for a millisecond only.
    if (pid === undefined) await new Promise(setImmediate);
  }
  if (afterMs > 0) await sleep(afterMs);
  // It may have ended, and its number may be another's by now.
  const killed = pid !== undefined && victims(home, victim).includes(pid) && kills(pid);
  return { killed, result: await settled };
}

function victims(home: string, victim: Victim): readonly number[] {
  const spawner = Number(readFileSync(join(home, "lock"), "utf8"));
  if (victim === "spawner") return commandOf(spawner) === "spawn" ? [spawner] : [];
  return childrenOf(victim === "unpack" ? process.pid : spawner).filter((pid) => commandOf(pid) === victim);
}

function childrenOf(pid: number): readonly number[] {
  return read(`/proc/${pid}/task/${pid}/children`).split(" ").filter((child) => child !== "").map(Number);
}

/** The first word of its command line: helpers of the spawner share its program's name until they are another. */
function commandOf(pid: number): string {
  return read(`/proc/${pid}/cmdline`).split("\0")[0]?.split("/").at(-1) ?? "";
}

function kills(pid: number): boolean {
  try {
    return process.kill(pid, "SIGKILL");
  } catch {
    return false;
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return "";
  }
}

/** Delays from a seed that is printed, so that a failure can be had again: a permuted congruential generator. */
export function delays(name: string, seed: number): (mostMs: number) => number {
  process.stdout.write(`${name}: seed ${seed}\n`);
  let state = seed >>> 0;
  return (mostMs) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return ((state >>> 8) / 2 ** 24) * mostMs;
  };
}

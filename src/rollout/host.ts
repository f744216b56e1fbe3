/**
 * What the host has left. Rollouts are admitted while there is room for one more; a host that is short makes the run wait, not fail.
 */
import { readFile, statfs } from "node:fs/promises";

export interface HostRoom {
  readonly memoryBytes: number | null;
  readonly diskBytes: number | null;
  /** Processes that may still be made. */
  readonly pids: number | null;
}

/** Kept free for the host itself. */
export const RESERVE = { memoryBytes: 256 << 20, diskBytes: 512 << 20, pids: 256 } as const;

export async function hostRoom(home: string): Promise<HostRoom> {
  const [memoryBytes, diskBytes, pids] = await Promise.all([availableMemory(), freeDisk(home), freePids()]);
  return { memoryBytes, diskBytes, pids };
}

/** Why no further rollout should start now, or null. A fact that cannot be had does not hold anything up. */
export function shortage(room: HostRoom): string | null {
  if (room.memoryBytes !== null && room.memoryBytes < RESERVE.memoryBytes) return `memory (${room.memoryBytes >> 20} MiB available, ${RESERVE.memoryBytes >> 20} MiB kept free)`;
  if (room.diskBytes !== null && room.diskBytes < RESERVE.diskBytes) return `disk (${Math.floor(room.diskBytes / 1048576)} MiB free, ${RESERVE.diskBytes >> 20} MiB kept free)`;
  if (room.pids !== null && room.pids < RESERVE.pids) return `processes (${room.pids} left, ${RESERVE.pids} kept free)`;
  return null;
}

async function availableMemory(): Promise<number | null> {
  const text = await readOrNull("/proc/meminfo");
  const kib = /^MemAvailable:\s+(\d+) kB/m.exec(text ?? "")?.[1];
  return kib === undefined ? null : Number(kib) * 1024;
}

async function freeDisk(path: string): Promise<number | null> {
  try {
    const { bavail, bsize } = await statfs(path);
    return bavail * bsize;
  } catch {
    return null;
  }
}

/** `/proc/loadavg` names the processes that exist, `threads-max` and `pid_max` how many may. */
async function freePids(): Promise<number | null> {
  const [load, pidMax, threadsMax] = await Promise.all([readOrNull("/proc/loadavg"), readOrNull("/proc/sys/kernel/pid_max"), readOrNull("/proc/sys/kernel/threads-max")]);
  const used = /\/(\d+) /.exec(load ?? "")?.[1];
  if (used === undefined || pidMax === null || threadsMax === null) return null;
  return Math.min(Number(pidMax), Number(threadsMax)) - Number(used);
}

async function readOrNull(path: string): Promise<string | null> {
  try {
    return await readFile(path, "utf8");
  } catch {
    return null;
  }
}

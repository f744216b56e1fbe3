/**
 * Who holds a lock, a lease or a temporary directory: a process, named so that a later one with the same pid is not mistaken for it. A token is a file name.
 */
import { readFileSync } from "node:fs";
import { systemRuntime } from "../core/runtime.ts";

let own: string | null = null;

/** This process's token: pid, start time and boot, and 8 random characters that tell it from a reader of another pid namespace. */
export function ownToken(): string {
  own ??= `${process.pid}-${startTime(process.pid) ?? "0"}-${bootId()}-${Buffer.from(systemRuntime.randomBytes(4)).toString("hex")}`;
  return own;
}

/** The token of another process that lives; null when it does not. `random`: 8 hexadecimal digits. */
export function tokenOf(pid: number, random: string): string | null {
  const started = startTime(pid);
  return started === null ? null : `${pid}-${started}-${bootId()}-${random}`;
}

/** A name below this process's token, unique within it. */
export function ownName(): string {
  return `${ownToken()}.${counter++}`;
}

let counter = 0;

const TOKEN = /^(\d{1,10})-(\d+)-([0-9a-f]*)-[0-9a-f]{8}/;

/** Whether it is a token, or a name below one. */
export function isHolderName(name: string): boolean {
  return TOKEN.test(name);
}

/** Whether the process that made the token (or a name below it) lives. Names that are no tokens belong to nobody. */
export function holderLives(name: string): boolean {
  const match = TOKEN.exec(name);
  if (match === null) return false;
  const [, pid = "", started = "", boot = ""] = match;
  if (boot !== bootId()) return false;
  const now = startTime(Number(pid));
  if (now !== null) return now === started;
  if (process.platform === "linux") return false;
  try {
    process.kill(Number(pid), 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/** Clock ticks after boot at which the process started, as text; null when there is none, or no /proc. */
function startTime(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The second field is the program's name, which may hold spaces and parentheses. A zombie holds nothing.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? null : (fields[19] ?? null);
  } catch {
    return null;
  }
}

let boot: string | null = null;

function bootId(): string {
  try {
    boot ??= readFileSync("/proc/sys/kernel/random/boot_id", "latin1").replaceAll("-", "").slice(0, 8);
  } catch {
    boot = "";
  }
  return boot;
}

/**
 * Machines that `mw sandbox create` holds: each has, with those that were forked of it, a data directory of its own below `MW_HOME/held/`, so that it never stands in the way of
 * a run, and a record in it through which other commands of the same user find its socket and its holder.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { isId, type SandboxId } from "../core/ids.ts";

const Record = z.strictObject({
  id: z.string(),
  image: z.string(),
  createdAt: z.number(),
  pid: z.int().positive(),
  /** Start time of the holder in clock ticks since boot: a pid alone may have been given to somebody else. */
  startTicks: z.string(),
  socket: z.string(),
  /** Where the file helper is inside; null: where native machines have it. */
  filesProgram: z.string().nullable(),
  /** Where its holder is asked for what only it can do. */
  control: z.string(),
  state: z.enum(["running", "paused"]),
  env: z.record(z.string(), z.string()),
  user: z.string(),
  workdir: z.string(),
});
type Stored = z.infer<typeof Record>;
export type HeldMachine = Omit<Stored, "id"> & { readonly id: SandboxId; readonly directory: string };

/** A data directory for one machine and what is forked of it. `name` tells people what it is for. */
export function makeHeldDirectory(home: string, name: string): string {
  const held = join(home, "held");
  mkdirSync(held, { recursive: true, mode: 0o700 });
  return mkdtempSync(join(held, `${name}-`));
}

export function removeHeldDirectory(directory: string): void {
  rmSync(directory, { recursive: true, force: true });
}

export function recordHeld(directory: string, machine: Omit<Stored, "pid" | "startTicks">): void {
  const path = join(directory, `${machine.id}.json`);
  const record: Stored = { ...machine, pid: process.pid, startTicks: startTicks(process.pid) ?? "" };
  writeFileSync(`${path}.new`, `${JSON.stringify(record)}\n`, { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function forgetHeld(directory: string, id: SandboxId): void {
  rmSync(join(directory, `${id}.json`), { force: true });
}

/** Those whose holder lives. Directories of dead holders are taken away: their machines ended with them. */
export function heldMachines(home: string): readonly HeldMachine[] {
  const held = join(home, "held");
  const found: HeldMachine[] = [];
  for (const name of namesIn(held)) {
    const directory = join(held, name);
    for (const file of namesIn(directory)) {
      const record = readRecord(join(directory, file));
      if (record === null) continue;
      if (startTicks(record.pid) === record.startTicks) found.push({ ...record, directory });
      else {
        for (const path of [record.control, record.socket]) rmSync(path, { force: true });
        removeHeldDirectory(directory);
      }
    }
  }
  return found.toSorted((a, b) => a.createdAt - b.createdAt);
}

/** The one machine whose id is, or begins with, `text`. */
export function findHeld(home: string, text: string): HeldMachine {
  const all = heldMachines(home);
  const matching = all.filter((machine) => machine.id === text || machine.id.startsWith(text) || machine.id.startsWith(`sbx${text}`));
  const [only] = matching;
  if (only !== undefined && matching.length === 1) return only;
  if (matching.length > 1) throw new MwError("usage", `${JSON.stringify(text)} is the beginning of ${matching.length} sandbox ids`, { fix: "give more characters of it" });
  throw new MwError("not_found", `no held sandbox has the id ${JSON.stringify(text)}`, {
    fix: all.length === 0 ? "no machine is held now: `mw sandbox create IMAGE` makes and holds one" : "`mw sandbox ls` lists them",
  });
}

function readRecord(path: string): (Stored & { readonly id: SandboxId }) | null {
  try {
    const record = Record.parse(JSON.parse(readFileSync(path, "utf8")));
    const { id } = record;
    return isId("sbx", id) ? { ...record, id } : null;
  } catch {
    // In the making, or not one of ours.
    return null;
  }
}

function namesIn(directory: string): readonly string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

/** Field 22 of the process's stat line, counted after the command name, which may hold anything. */
export function startTicks(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? null;
  } catch {
    return null;
  }
}

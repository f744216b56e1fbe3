/** What of a data directory's machines is still on the host: the number that has to be zero after every run. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { runDirectory } from "./backends/native/run-directory.ts";

export interface Leftovers {
  /** Processes in a control group of this data directory. */
  readonly processes: number;
  readonly controlGroups: number;
  /** Directories of machines or sealed workspaces in the run directory. */
  readonly machines: number;
  /** Mounts of this data directory's machines in the host's mount namespace. */
  readonly mounts: number;
}

/** Counts them. To be called when no controller is at work on `home`. */
export function countLeftovers(home: string): Leftovers {
  const run = runDirectory(home);
  const group = `manyworlds-${basename(run)}`;
  const machines = existsSync(run) ? readdirSync(run, { withFileTypes: true }).filter((entry) => entry.isDirectory() && !entry.name.startsWith(".")).length : 0;
  const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n").filter((line) => line.includes(` ${run}/`)).length;
  return { processes: processesIn(group), controlGroups: groupsNamed(group), machines, mounts };
}

function processesIn(group: string): number {
  let count = 0;
  for (const pid of readdirSync("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    try {
      if (readFileSync(join("/proc", pid, "cgroup"), "utf8").includes(`/${group}/`)) count++;
    } catch {
      // It ended while we looked.
    }
  }
  return count;
}

/** Control groups of machines: children of the data directory's group in any hierarchy. */
function groupsNamed(group: string): number {
  let count = 0;
  const roots = ["/sys/fs/cgroup", ...list("/sys/fs/cgroup")];
  for (const root of roots) count += list(join(root, group)).length;
  return count;
}

function list(directory: string): string[] {
  try {
    return readdirSync(directory, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => join(directory, entry.name));
  } catch {
    return [];
  }
}

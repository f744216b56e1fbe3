/** What a machine uses and which limits it met, read from the control groups that the runtime makes for it; version 1 and 2. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { SandboxMetrics } from "../../sandbox.ts";
import { NO_LIMITS, type LimitCounts } from "../limit-causes.ts";

/** Where version 2 is mounted when it has the controllers. */
const GROUPS = "/sys/fs/cgroup";

interface Hierarchy {
  readonly place: string;
  /** Null: version 2. */
  readonly controllers: readonly string[] | null;
}

function hierarchies(): readonly Hierarchy[] {
  return readFileSync("/proc/self/mountinfo", "utf8").split("\n").flatMap((line): readonly Hierarchy[] => {
    const [before = "", after = ""] = line.split(" - ");
    const [type = "", , options = ""] = after.split(" ");
    const place = before.split(" ")[4] ?? "";
    if (type === "cgroup") return [{ place, controllers: options.split(",") }];
    // Beside others of version 1 it has no controllers.
    return type === "cgroup2" && place === GROUPS ? [{ place, controllers: null }] : [];
  });
}

/** Which limits this host's control groups can hold, and whether they can stop a machine. */
export function heldByGroups(): { readonly cpu: boolean; readonly memory: boolean; readonly pids: boolean; readonly freeze: boolean; /** Whether a limit of memory can count swap. */ readonly swap: boolean } {
  const all = hierarchies();
  const two = all.find(({ controllers }) => controllers === null);
  const own = two === undefined ? [] : (text(join(two.place, "cgroup.controllers")) ?? "").trim().split(" ");
  const has = (name: string): boolean => own.includes(name) || all.some(({ controllers }) => controllers?.includes(name) === true);
  const memory = placeOf(all, "memory");
  return { cpu: has("cpu"), memory: has("memory"), pids: has("pids"), freeze: two !== undefined || has("freezer"), swap: memory !== null && existsSync(join(memory, "memory.memsw.limit_in_bytes")) };
}

/**
 * Whether groups for machines can be made where these are asked for. Not in version 2 where the top group, as seen from here, holds processes, as in most containers: it cannot hand
 * controllers on, and a runtime that tries turns it into a threaded group.
 */
export function groupsOccupied(): boolean {
  const two = hierarchies().find(({ controllers }) => controllers === null);
  // The host's own top group has no type, and may hold processes.
  return two !== undefined && existsSync(join(two.place, "cgroup.type")) && (text(join(two.place, "cgroup.procs")) ?? "").trim() !== "";
}

function placeOf(all: readonly Hierarchy[], controller: string): string | null {
  return all.find(({ controllers }) => controllers?.includes(controller) === true)?.place ?? null;
}

/** Directories of the groups called `name` in every hierarchy. */
export function groupsNamed(name: string): readonly string[] {
  return hierarchies().map(({ place }) => join(place, name)).filter((path) => existsSync(path));
}

export class MachineGroups {
  readonly #name: string;
  readonly #all = hierarchies();
  readonly #two: boolean;

  /** Of the groups called `name` in every hierarchy. */
  constructor(name: string) {
    this.#name = name;
    this.#two = this.#all.some(({ controllers }) => controllers === null);
  }

  /** Null for what these groups do not tell, or no longer. */
  metrics(): Pick<SandboxMetrics, "cpuMs" | "memoryBytes" | "memoryPeakBytes" | "pids"> {
    if (this.#two) {
      const cpu = this.#field("cpu", "cpu.stat", "usage_usec");
      return { cpuMs: cpu === null ? null : cpu / 1e3, memoryBytes: this.#number("memory", "memory.current"), memoryPeakBytes: this.#number("memory", "memory.peak"), pids: this.#number("pids", "pids.current") };
    }
    const cpu = this.#number("cpuacct", "cpuacct.usage");
    return {
      cpuMs: cpu === null ? null : cpu / 1e6,
      memoryBytes: this.#number("memory", "memory.usage_in_bytes"),
      memoryPeakBytes: this.#number("memory", "memory.max_usage_in_bytes"),
      pids: this.#number("pids", "pids.current"),
    };
  }

  limits(): LimitCounts {
    return {
      ...NO_LIMITS,
      oom_killed: this.#field("memory", this.#two ? "memory.events" : "memory.oom_control", "oom_kill") ?? 0,
      pids: this.#field("pids", "pids.events", "max") ?? 0,
    };
  }

  #number(controller: string, file: string): number | null {
    const read = this.#text(controller, file);
    return read === null || !/^\d+\s*$/.test(read) ? null : Number(read);
  }

  #field(controller: string, file: string, name: string): number | null {
    const found = new RegExp(`^${name} (\\d+)$`, "m").exec(this.#text(controller, file) ?? "")?.[1];
    return found === undefined ? null : Number(found);
  }

  #text(controller: string, file: string): string | null {
    const place = this.#two ? GROUPS : placeOf(this.#all, controller);
    return place === null ? null : text(join(place, this.#name, file));
  }
}

function text(path: string): string | null {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

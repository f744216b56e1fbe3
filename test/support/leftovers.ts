/**
 * What a data directory's machines left on the host: processes, control groups, mounts, sockets, half-made files. Empty when nothing did. A controller that was
 * killed leaves half-made files to the next one.
 */
import { existsSync, readdirSync, readFileSync, realpathSync } from "node:fs";
import { join } from "node:path";
import { gatewaySocket, runDirectory } from "../../src/sandbox/backends/native/run-directory.ts";

export function leftovers(home: string): readonly string[] {
  if (!existsSync(home)) return [];
  return [
    ...machines(home),
    ...halfMade(join(home, "runs")),
    ...names(join(home, "build")).filter((name) => name !== "cache").map((name) => `build ${name}`),
  ];
}

/** Only what lives or is mounted. */
export function machines(home: string): readonly string[] {
  if (!existsSync(home)) return [];
  const sockets = runDirectory(home);
  const hash = sockets.split("/").at(-1) ?? "";
  return [
    ...processesIn(`manyworlds-${hash}`, (name) => isSpare(home, `.${name}`)),
    ...groups("/sys/fs/cgroup", `manyworlds-${hash}`, 4).filter(([, name]) => !isSpare(home, `.${name}`)).map(([path]) => `control group ${path}`),
    ...processesIn(`manyworlds-oci-${hash}`, () => false),
    ...groups("/sys/fs/cgroup", `manyworlds-oci-${hash}`, 4).map(([path]) => `control group ${path}`),
    ...[join(home, "oci"), `${sockets}.oci`].flatMap((place) => names(place).map((name) => `controller's directory ${join(place, name)}`)),
    ...mounts([realpathSync(home), sockets]),
    ...(existsSync(gatewaySocket(home)) && !spawnerLives(home) ? [`gateway socket ${gatewaySocket(home)}`] : []),
    ...names(sockets).filter((name) => !isSpare(home, name)).map((name) => `socket directory ${join(sockets, name)}`),
  ];
}

/** Made beforehand by a spawner that lives, for its next machines: it takes them away when it ends. Those of one that died are left over. */
function isSpare(home: string, name: string): boolean {
  const epoch = read(join(home, "epoch")).trim();
  return new RegExp(`^\\.sbx-${epoch}-\\d+$`).test(name) && spawnerLives(home) && existsSync(join(runDirectory(home), name));
}

/** A controller is at work: what it listens on is no leftover. */
function spawnerLives(home: string): boolean {
  return read(`/proc/${read(join(home, "lock")).split(/\s/)[0] ?? ""}/comm`) === "spawn\n";
}

/** Polls, because what a killed process held is given back by the kernel a moment later, which is long on a loaded machine. */
export async function leftoversAfter(home: string, left = leftovers): Promise<readonly string[]> {
  const end = Date.now() + 60_000;
  for (;;) {
    const found = left(home);
    if (found.length === 0 || Date.now() > end) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function processesIn(group: string, spare: (name: string) => boolean): string[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => read(`/proc/${pid}/cgroup`).includes(group) && !spare(/\/(sbx-[0-9-]+)/.exec(read(`/proc/${pid}/cgroup`))?.[1] ?? ""))
    .map((pid) => `process ${pid} ${read(`/proc/${pid}/cmdline`).replaceAll("\0", " ")}`);
}

/** Machines' groups below ours; the empty parent may stay for the next controller. */
function groups(directory: string, name: string, depth: number): (readonly [path: string, name: string])[] {
  return names(directory).flatMap((entry) => {
    const path = join(directory, entry);
    if (entry === name) return names(path).filter((child) => child.startsWith("sbx")).map((child) => [join(path, child), child] as const);
    return depth > 0 && isDirectory(path) ? groups(path, name, depth - 1) : [];
  });
}

function mounts(below: readonly string[]): string[] {
  return read("/proc/self/mountinfo")
    .split("\n")
    .filter((line) => below.some((path) => line.split(" ")[4]?.startsWith(path)))
    .map((line) => `mount ${line}`);
}

function halfMade(runs: string): string[] {
  return names(runs).filter((name) => name.startsWith(".")).map((name) => `run ${name}`);
}

function names(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

function isDirectory(path: string): boolean {
  return existsSync(join(path, "."));
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

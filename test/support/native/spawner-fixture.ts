/** What the tests of the spawner share: one spawner at a time, bare machines of it, and what of them could be left on the host. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { networkInterfaces, tmpdir } from "node:os";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll } from "vitest";
import { Spawner, type SpawnerOptions } from "../../../src/sandbox/backends/native/spawner.ts";
import type { MachineEnded } from "../../../src/sandbox/backends/native/spawner-protocol.ts";
import { type BareMachine, makeBareMachine, PROGRAMS, shell } from "./bare-machine.ts";

export const MiB = 1024 * 1024;
/** What machines are made of. */
export let bare: BareMachine;
/** Where the data directory is, and whatever a test needs beside it. */
export let base: string;
/** Of the spawner that was started last. */
export let options: SpawnerOptions;
let spawner: Spawner | null = null;

/** For a file of tests: ends the spawner of each, and takes everything away. */
export function spawnerTests(): void {
  beforeAll(() => {
    if (process.getuid?.() !== 0) throw new Error("These tests need root; the ordinary user's are in spawner-user.test.ts");
    bare = makeBareMachine();
    base = mkdtempSync(join(tmpdir(), "mw-spawner-"));
  });
  afterEach(async () => {
    await spawner?.close();
    spawner = null;
  });
  afterAll(() => {
    for (const place of [join(bare.root, ".."), base]) rmSync(place, { recursive: true, force: true });
  });
}

export const create = (extra: Partial<Parameters<Spawner["create"]>[0]> & { id: string }): ReturnType<Spawner["create"]> => get().create({ layers: [bare.root], ...extra });
export const sh = (id: string, script: string): Promise<string> => shell(get().initSocket(id), script);

export function get(): Spawner {
  if (!spawner) throw new Error("no spawner");
  return spawner;
}

afterAll(() => rmSync(join(bare.root, ".."), { recursive: true, force: true }));

export async function start(extra: Partial<SpawnerOptions> = {}): Promise<Spawner> {
  options = {
    program: PROGRAMS.spawn,
    init: bare.init,
    dataDirectory: join(base, "data"),
    runDirectory: `/run/manyworlds/${basename(base).slice(-6).toLowerCase().replaceAll(/[^a-z0-9]/g, "x")}`,
    log: () => undefined,
    ...extra,
  };
  spawner = await Spawner.start(options);
  return spawner;
}

/** What the spawner that lives has made beforehand for its next machines: its own until it ends, no trace of a machine. */
export function spare(name: string): boolean {
  return spawner !== null && alive(spawner.hello.pid) && new RegExp(`^\\.?sbx-${spawner.hello.epoch}-\\d+$`).test(name) && existsSync(join(options.runDirectory, `.${name.replace(/^\./, "")}`));
}

/** Waits until everything is made that a spawner makes beforehand. */
export async function prepared(): Promise<void> {
  const made = (): number => readdirSync(options.runDirectory).filter((name) => spare(name) && existsSync(join(options.runDirectory, name, "record"))).length;
  await until(() => made() === 16, "the spawner has made everything beforehand");
}

/** Everything that could be left: processes, control groups, files, mounts. */
export function traces(): { processes: string[]; groups: string[]; files: string[]; mounts: string[] } {
  const name = basename(options.runDirectory);
  // Orphans that are dead wait for the host's first process; they have no program any more.
  const processes = readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && alive(Number(pid)) && ownGroup(pid).includes(`manyworlds-${name}`) && !spare(/\/(sbx-[0-9-]+)/.exec(ownGroup(pid))?.[1] ?? ""));
  const roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"];
  const groups = roots.map((root) => join(root, `manyworlds-${name}`)).filter((path) => existsSync(path));
  const inner = groups.flatMap((group) => readdirSync(group, { withFileTypes: true }).filter((entry) => entry.isDirectory() && !spare(entry.name)).map((entry) => join(group, entry.name)));
  const files = existsSync(options.runDirectory) ? readdirSync(options.runDirectory).filter((name) => !spare(name)) : [];
  const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n").filter((line) => line.includes("manyworlds"));
  return { processes, groups: inner, files, mounts };
}

export const NOTHING = { processes: [], groups: [], files: [], mounts: [] };

function ownGroup(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cgroup`, "utf8");
  } catch {
    return "";
  }
}

export async function until(condition: () => boolean | Promise<boolean>, what: string, timeoutMs = 60_000): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`Timed out waiting until ${what}`);
    await sleep(10);
  }
}

export function nextEnd(id: string): Promise<MachineEnded> {
  return new Promise((resolve) => {
    const stop = get().onEnded((ended) => {
      if (ended.id !== id) return;
      stop();
      resolve(ended);
    });
  });
}

/** Empty for what is dead, waited for or not. */
function programOf(pid: number): string {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch {
    return "";
  }
}

export const alive = (pid: number): boolean => programOf(pid) !== "";

/** Those of this spawner. */
export function slirps(): number[] {
  const children = readFileSync(`/proc/${get().hello.pid}/task/${get().hello.pid}/children`, "utf8").trim().split(" ").map(Number);
  return children.filter((pid) => programOf(pid).endsWith("slirp4netns"));
}

export function outsideAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((list) => (list ?? []).filter((entry) => entry.family === "IPv4" && !entry.internal).map((entry) => entry.address));
}

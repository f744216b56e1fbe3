/** Thousands of machines made, kept, taken up and ended: the spawner and the controller are then as they were before, and so is the host. */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { fileURLToPath } from "node:url";
import { runInNewContext } from "node:vm";
import { afterAll, expect, it } from "vitest";
import { runDirectory } from "../../src/sandbox/backends/native/run-directory.ts";
import { openNativeBackend, type NativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { makeTestRoot } from "../support/rootfs.ts";

const base = mkdtempSync(join(tmpdir(), "mw-growth-"));
const { root } = makeTestRoot(base);
const MiB = 1 << 20;
setFlagsFromString("--expose_gc");
// Compiled code grows for as long as anything is measured.
for (const flag of ["--no-opt", "--no-sparkplug"]) setFlagsFromString(flag);
// What V8 puts into a new context then.
const collect = runInNewContext("gc") as () => void;
afterAll(() => rmSync(base, { recursive: true, force: true }));

/** What may not grow, of the spawner, of this process, and of the data directory. */
interface Counts {
  readonly spawnerFiles: number;
  readonly spawnerMounts: number;
  readonly spawnerChildren: number;
  readonly ownFiles: number;
  readonly groups: number;
  readonly files: number;
}

interface Memory {
  readonly spawnerBytes: number;
  /** After a collection. */
  readonly heapBytes: number;
}

const list = (path: string): readonly string[] => (existsSync(path) ? readdirSync(path) : []);
const spawnerOf = (home: string): string => readFileSync(join(home, "lock"), "utf8").trim();

function counts(home: string): Counts {
  const spawner = spawnerOf(home);
  const hash = runDirectory(home).split("/").at(-1) ?? "";
  const hierarchies = [...list("/sys/fs/cgroup").map((name) => join("/sys/fs/cgroup", name)), "/sys/fs/cgroup"];
  return {
    spawnerFiles: list(`/proc/${spawner}/fd`).length,
    spawnerMounts: readFileSync(`/proc/${spawner}/mountinfo`, "utf8").split("\n").length,
    spawnerChildren: readFileSync(`/proc/${spawner}/task/${spawner}/children`, "utf8").trim().split(/\s+/).length,
    ownFiles: list("/proc/self/fd").length,
    groups: hierarchies.reduce((sum, path) => sum + list(join(path, `manyworlds-${hash}`)).filter((name) => name.startsWith("sbx")).length, 0),
    files: list(runDirectory(home)).length + ["records", "work", "holds"].reduce((sum, part) => sum + list(join(home, "snapshots", part)).length, 0),
  };
}

function memory(home: string): Memory {
  const resident = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${spawnerOf(home)}/status`, "utf8"))?.[1];
  collect();
  return { spawnerBytes: Number(resident) * 1024, heapBytes: process.memoryUsage().heapUsed };
}

/** Once nothing changes any more: machines made beforehand are all there, and what is taken down has gone. */
async function settled(home: string): Promise<Counts> {
  let seen = counts(home);
  for (let same = 0; same < 10; ) {
    await sleep(200);
    const next = counts(home);
    same = JSON.stringify(next) === JSON.stringify(seen) ? same + 1 : 0;
    seen = next;
  }
  return seen;
}

const ROUNDING_BYTES = 32 << 10;

async function grows(name: string, warmUp: number, times: number, cycle: (backend: NativeBackend, at: number) => Promise<void>, atOnce: number): Promise<void> {
  const home = join(base, name);
  const backend = await openNativeBackend({ home });
  const many = async (count: number): Promise<void> => {
    let next = 0;
    await Promise.all(Array.from({ length: atOnce }, async () => {
      while (next < count) await cycle(backend, next++);
    }));
  };
  try {
    await many(warmUp);
    const [before, held] = [await settled(home), memory(home)];
    await many(times);
    const [after, holds] = [await settled(home), memory(home)];
    const per = { spawner: (holds.spawnerBytes - held.spawnerBytes) / times, heap: (holds.heapBytes - held.heapBytes) / times };
    process.stdout.write(`${name}: ${times} times; spawner ${(held.spawnerBytes / MiB).toFixed(1)} -> ${(holds.spawnerBytes / MiB).toFixed(1)} MiB, heap ${(held.heapBytes / MiB).toFixed(1)} -> ${(holds.heapBytes / MiB).toFixed(1)} MiB; ${JSON.stringify(after)}\n`);
    // Ours may be a few more, of what is opened when it is first needed; one in twenty times that is left open is not a few.
    expect(after).toEqual({ ...before, ownFiles: expect.toSatisfy((files: number) => files <= before.ownFiles + 4) });
    // Allocators round, by pages. The least that a machine could leave behind each time, one reaction of a promise that lasts, would be hundreds of bytes.
    expect(per.spawner).toBeLessThan(100 + ROUNDING_BYTES / times);
    expect(per.heap).toBeLessThan(200 + ROUNDING_BYTES / times);
  } finally {
    await backend.close();
  }
  expect(await leftoversAfter(home, machines)).toEqual([]);
}

it("10,000 machines made, used and ended", async () => {
  await grows("cycles", 500, 10_000, async (backend) => {
    const sandbox = await backend.create({ root, memoryBytes: 64 * MiB, pids: 64, cpus: 1, services: [{ port: 8080, target: "/tmp/none" }] });
    expect((await sandbox.run({ command: ["/bin/true"] })).code).toBe(0);
    await sandbox.kill();
  }, 4);
});

it("1,000 pauses and resumes, with snapshots and children between them", async () => {
  const living: Sandbox[] = [];
  await grows("pauses", 40, 1_000, async (backend, at) => {
    living[0] ??= await backend.create({ root });
    const [sandbox] = living;
    await sandbox.run({ command: `echo ${at} > /at` });
    await sandbox.pause();
    await sandbox.resume();
    expect(Buffer.from((await sandbox.run({ command: "cat /at" })).stdout).toString()).toBe(`${at}\n`);
    if (at % 5 !== 0) return;
    const { snapshot } = await sandbox.snapshot();
    const [child] = await sandbox.fork(1);
    if (child?.ok !== true) throw child?.error ?? new Error("no child");
    await child.sandbox.kill();
    await backend.snapshots.remove(snapshot.id);
  }, 1);
});

it("200 pauses and resumes with processes, with snapshots and children between them", async () => {
  const built = spawnSync(process.execPath, [fileURLToPath(new URL("../../scripts/build-criu.mjs", import.meta.url))], { encoding: "utf8" });
  expect(built.status, built.stderr).toBe(0);
  process.env["MW_CRIU"] = built.stdout.trim();
  const living: Sandbox[] = [];
  await grows("memory", 20, 200, async (backend, at) => {
    if (living[0] === undefined) {
      living[0] = await backend.create({ root, checkpointable: true });
      await living[0].exec({ command: "i=0; while :; do i=$((i+1)); echo $i > /new; mv /new /at; sleep 0.01; done" });
    }
    const [sandbox] = living;
    const count = async (): Promise<number> => Number(Buffer.from((await sandbox.run({ command: "cat /at" })).stdout).toString());
    const before = await count();
    await sandbox.pause({ memory: true });
    await sandbox.resume();
    expect(await count()).toBeGreaterThanOrEqual(before);
    if (at % 5 !== 0) return;
    const { snapshot } = await sandbox.snapshot({ memory: true });
    const [child] = await sandbox.fork(1, { memory: true });
    if (child?.ok !== true) throw child?.error ?? new Error("no child");
    await child.sandbox.kill();
    await backend.snapshots.remove(snapshot.id);
  }, 1);
});

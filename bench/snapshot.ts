/**
 * The snapshot bench: how long a machine stands still while its files are kept, by the number of files that it changed, where nothing runs in it and where something does;
 * sixteen children of a quiet machine; a pause and a resume. Growth of the stop with the number of files is the figure that a host's speed does not change.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { openNativeBackend, type NativeBackend, type Sandbox, type SandboxSpec } from "../src/sandbox/index.ts";
import { busyboxRoot } from "./setup.ts";
import { memoryBench } from "./snapshot-memory.ts";
import { percentile, printTable, round, row, type Ratio, type Row } from "./statistics.ts";

const quick = process.argv.includes("--quick");
const ROUNDS = quick ? 4 : 15;
const FILES = quick ? [0, 1000] : [0, 1000, 20_000];
const CHILDREN = 16;
const CYCLES = quick ? 50 : 1000;
const STOP_MS = 20;
const FORK_MS = 100;
/** In which the spawner makes beforehand what was used up. */
const SETTLE_MS = 300;

export async function snapshotBench(json: boolean): Promise<boolean> {
  const work = mkdtempSync(join(tmpdir(), "mw-bench-"));
  const home = join(work, "home");
  const root = busyboxRoot(join(work, "root"));
  const backend = await openNativeBackend({ home });
  try {
    const rows: Row[] = [];
    for (const files of FILES) rows.push(...(await stops(backend, { root }, files)));
    rows.push(await forks(backend, { root }));
    rows.push(...(await pauses(backend, { root })));
    const grown = await growth(backend, { root }, home);
    const memory = await memoryBench(work, ROUNDS);
    rows.push(...memory.rows);
    const stop = (files: number): number => rows.find(({ name }) => name === switched(files))?.p50Ms ?? Number.NaN;
    const [least = 0, most = 0] = [FILES[0], FILES.at(-1)];
    const fork = rows.find(({ name }) => name.startsWith("fork"))?.p50Ms ?? Number.NaN;
    const ratios: Record<string, Ratio> = {
      [`stop with ${most} changed files, nothing runs, p50 ms`]: { value: stop(most), target: `<= ${STOP_MS}`, holds: stop(most) <= STOP_MS },
      [`that stop / the one with ${least} files`]: { value: round(stop(most) / stop(least)), target: "<= 2", holds: stop(most) / stop(least) <= 2 },
      [`${CHILDREN} children of a quiet machine, all, p50 ms`]: { value: fork, target: `<= ${FORK_MS}`, holds: fork <= FORK_MS },
      [`descriptors, mounts and files more after ${CYCLES} pauses and resumes`]: { value: grown, target: "0", holds: grown === 0 },
      ...memory.ratios,
    };
    if (json) console.log(JSON.stringify({ rows, ratios }, null, 1));
    else printTable(rows, ratios);
    return Object.values(ratios).every(({ holds }) => holds);
  } finally {
    await backend.close();
    rmSync(work, { recursive: true, force: true });
  }
}

const switched = (files: number): string => `stop, ${files} files, nothing runs`;

async function stops(backend: NativeBackend, spec: SandboxSpec, files: number): Promise<readonly Row[]> {
  const [quiet, busy, disk]: [number[], number[], number[]] = [[], [], []];
  for (let i = 0; i < ROUNDS; i++) {
    const sandbox = await filled(backend, spec, files);
    await sleep(SETTLE_MS);
    const start = performance.now();
    const one = await sandbox.snapshot();
    disk.push(performance.now() - start);
    quiet.push(one.stoppedMs);
    await sandbox.kill();
    const other = await filled(backend, spec, files);
    const running = await other.exec({ command: ["/bin/sleep", "1000"] });
    const two = await other.snapshot();
    busy.push(two.stoppedMs);
    await running.kill();
    await other.kill();
    for (const { snapshot } of [one, two]) await backend.snapshots.remove(snapshot.id);
  }
  return [
    row(switched(files), quiet, "the machine is switched over its frozen layer"),
    row(`stop, ${files} files, a process runs`, busy, "everything stands still while the layer is copied in memory"),
    row(`snapshot on disk, ${files} files`, disk, "until the whole call returns"),
  ];
}

async function forks(backend: NativeBackend, spec: SandboxSpec): Promise<Row> {
  const times: number[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    const sandbox = await filled(backend, spec, 1000);
    await sleep(SETTLE_MS);
    const start = performance.now();
    const results = await sandbox.fork(CHILDREN);
    times.push(performance.now() - start);
    await Promise.all([sandbox.kill(), ...results.map(async (result) => (result.ok ? result.sandbox.kill() : Promise.reject(result.error)))]);
  }
  return row(`fork of ${CHILDREN}, 1000 files`, times, "all children, from TypeScript");
}

async function pauses(backend: NativeBackend, spec: SandboxSpec): Promise<readonly Row[]> {
  const [down, up]: [number[], number[]] = [[], []];
  const sandbox = await filled(backend, spec, 1000);
  for (let i = 0; i < ROUNDS; i++) {
    await sleep(SETTLE_MS);
    const start = performance.now();
    await sandbox.pause();
    const paused = performance.now();
    await sandbox.resume();
    down.push(paused - start);
    up.push(performance.now() - paused);
  }
  await sandbox.kill();
  return [row("pause, 1000 files", down, "until its memory is given back"), row("resume, 1000 files", up, "until it takes commands")];
}

async function filled(backend: NativeBackend, spec: SandboxSpec, files: number): Promise<Sandbox> {
  const sandbox = await backend.create(spec);
  await sandbox.run({ command: `busybox mkdir /w; i=0; while [ $i -lt ${files} ]; do i=$((i+1)); echo $i > /w/$i; done` });
  return sandbox;
}

/** What many pauses and resumes leave behind: descriptors and mounts of the spawner, files of the store. */
async function growth(backend: NativeBackend, spec: SandboxSpec, home: string): Promise<number> {
  const spawner = readFileSync(join(home, "lock"), "utf8").trim();
  const count = (): number => {
    const files = (part: string): number => readdirSync(join(home, "snapshots", part)).length;
    // Layers of a chain are merged when there are eight.
    const kept = files("records") + files("work") + files("holds") + Math.max(0, files("layers") - 9);
    return kept + readdirSync(`/proc/${spawner}/fd`).length + readFileSync(`/proc/${spawner}/mountinfo`, "utf8").split("\n").length;
  };
  const sandbox = await filled(backend, spec, 10);
  await sandbox.pause();
  await sandbox.resume();
  await settled(count);
  const before = await settled(count);
  for (let i = 0; i < CYCLES; i++) {
    await sandbox.pause();
    await sandbox.resume();
  }
  const after = await settled(count);
  await sandbox.kill();
  return Math.max(0, after - before);
}

/** Once it no longer changes. */
async function settled(count: () => number): Promise<number> {
  const seen: number[] = [];
  for (;;) {
    seen.push(count());
    if (seen.length > 5 && percentile(seen.slice(-5), 0) === percentile(seen.slice(-5), 100)) return seen.at(-1) ?? 0;
    await sleep(SETTLE_MS);
  }
}

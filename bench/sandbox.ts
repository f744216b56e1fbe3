/**
 * The sandbox bench: this backend, bubblewrap, crun, runc and the bare host in one run, interleaved in rounds so that a noisy neighbour meets all of them.
 *
 * Peers are timed from C with their overlay mounted beforehand; the product is timed through its TypeScript interface, doing everything: private overlay, own
 * namespaces, cgroups, seccomp, and the way from Node to the machine and back.
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { openNativeBackend, type RootFilesystem, type Sandbox, type SandboxBackend } from "../src/sandbox/index.ts";
import { systemRuntime } from "../src/core/runtime.ts";
import { withWarmSandboxes, type WarmBackend } from "../src/sandbox/pool/warm-backend.ts";
import { makePeers } from "./peers.ts";
import { percentile, printTable, round, row, type Ratio, type Row } from "./statistics.ts";
import { busyboxRoot } from "./setup.ts";

const quick = process.argv.includes("--quick");
const ROUNDS = quick ? 4 : 20;
const PER_ROUND = 10;
/** In which the spawner has made what a round used up, and the kernel has taken down what the peers left to it: neither is to slow the other down. */
const SETTLE_MS = 200;
/** Beyond what the spawner has made beforehand. */
const DRAINED = 40;
const IDLE_MACHINES = quick ? 100 : 1000;
const CYCLES = quick ? 100 : 1000;

export async function sandboxBench(json: boolean): Promise<boolean> {
  const work = mkdtempSync(join(tmpdir(), "mw-bench-"));
  const timer = join(work, "timer");
  const driver = join(work, "driver");
  for (const program of [timer, driver]) execFileSync("cc", ["-O2", "-o", program, `bench/native/${basename(program)}.c`]);
  const root = busyboxRoot(join(work, "root"));
  const peers = makePeers(timer, join(work, "root"), join(work, "peers"));
  const backend = await openNativeBackend({ home: join(work, "home") });
  const samples = new Map<string, number[]>();
  const add = (name: string, values: readonly number[]): void => void samples.set(name, [...(samples.get(name) ?? []), ...values]);
  const does = new Map<string, string>(peers.peers.map((peer) => [peer.name, peer.does]));
  does.set("native create + first command", "from TypeScript: private overlay, all namespaces, own ids, cgroups, seccomp; create to exit of /bin/true; up to its root made beforehand");
  does.set(WARM, "the same from a pool that is warm: this kind of sandbox was made beforehand");
  does.set(DRAINED_ROW, "the same where nothing is made beforehand: creations one after the other, all kept, after the first twenty");
  does.set("native exec", "from TypeScript: /bin/true in a living machine, output and exit collected");
  does.set("native cycle", "from TypeScript: create, one command, kill until nothing is left");
  does.set("host vfork+exec", "from C: /bin/true on the host, no isolation");
  try {
    const resident = await backend.create({ root });
    for (let i = 0; i < 20; i++) await createAndRun(backend, root);
    for (let i = 0; i < ROUNDS; i++) {
      add("native create + first command", await repeat(PER_ROUND, () => createAndRun(backend, root)));
      add("native exec", await repeat(PER_ROUND, () => timeExec(resident)));
      await sleep(SETTLE_MS);
      add("host vfork+exec", hostTimes(timer, join(work, "root/bin/true"), PER_ROUND));
      for (const peer of peers.peers) add(peer.name, peer.measure(PER_ROUND));
      await sleep(SETTLE_MS);
      process.stderr.write(`\rround ${i + 1} of ${ROUNDS} `);
    }
    process.stderr.write("\n");
    await resident.kill();
    const pool = withWarmSandboxes(backend, { runtime: systemRuntime, most: 2 * PER_ROUND, log: (line) => process.stderr.write(`${line}\n`) });
    for (let i = 0; i < ROUNDS; i++) add(WARM, await warmTimes(pool, root));
    for (let i = 0; i < ROUNDS / 4; i++) add(DRAINED_ROW, await drainedTimes(backend, root));
    const cycles = await cycleRate(backend, root, CYCLES, 2);
    const cRate = driverRate(driver, work, CYCLES, 2);
    const idle = await idleMemory(backend, root, IDLE_MACHINES);
    const throughput = await stdoutRate(backend, root);
    const rows: Row[] = [...samples].map(([name, values]) => row(name, values, does.get(name) ?? ""));
    const ratios = judge(rows, { cycles, cRate, idle, throughput });
    if (json) console.log(JSON.stringify({ rows, ratios, missingPeers: peers.missing }, null, 1));
    else {
      printTable(rows, ratios);
      for (const missing of peers.missing) console.log(`left out: ${missing}`);
    }
    return Object.values(ratios).every(({ holds }) => holds);
  } finally {
    await backend.close();
    peers.close();
    rmSync(work, { recursive: true, force: true });
  }
}

async function createAndRun(backend: SandboxBackend, root: RootFilesystem): Promise<number> {
  const start = performance.now();
  const sandbox = await backend.create({ root });
  const result = await sandbox.run({ command: ["/bin/true"] });
  const took = performance.now() - start;
  if (result.code !== 0) throw new Error(`/bin/true ended with ${result.code}`);
  await sandbox.kill();
  return took;
}

const WARM = "native acquire + first command";
const DRAINED_ROW = "native drained create + first command";

/** As many as the pool has ready, one after the other. */
async function warmTimes(pool: WarmBackend, root: RootFilesystem): Promise<number[]> {
  while (pool.warm.ready < PER_ROUND) {
    // Asked for as often as it is to be ready.
    if (pool.warm.ready === 0) await Promise.all(Array.from({ length: PER_ROUND }, () => createAndRun(pool, root)));
    await sleep(SETTLE_MS);
  }
  const { missed } = pool.warm;
  const times = await repeat(PER_ROUND, () => createAndRun(pool, root));
  if (pool.warm.missed > missed) throw new Error("a sandbox of the warm pool was not ready");
  return times;
}

async function drainedTimes(backend: SandboxBackend, root: RootFilesystem): Promise<number[]> {
  const kept: Sandbox[] = [];
  const times = await repeat(DRAINED, async () => {
    const start = performance.now();
    const sandbox = await backend.create({ root });
    await sandbox.run({ command: ["/bin/true"] });
    kept.push(sandbox);
    return performance.now() - start;
  });
  await Promise.all(kept.map((sandbox) => sandbox.kill()));
  await sleep(SETTLE_MS);
  return times.slice(DRAINED / 2);
}

async function timeExec(sandbox: Sandbox): Promise<number> {
  const start = performance.now();
  await sandbox.run({ command: ["/bin/true"] });
  return performance.now() - start;
}

async function repeat(count: number, work: () => Promise<number>): Promise<number[]> {
  const values: number[] = [];
  for (let i = 0; i < count; i++) values.push(await work());
  return values;
}

function hostTimes(timer: string, command: string, count: number): number[] {
  return execFileSync(timer, [String(count), command], { encoding: "utf8" })
    .trim()
    .split("\n")
    .map((line) => Number(line) / 1000);
}

/** Machines created, used for one command and destroyed, per second, `width` at a time. */
async function cycleRate(backend: SandboxBackend, root: RootFilesystem, count: number, width: number): Promise<number> {
  const start = performance.now();
  let left = count;
  const worker = async (): Promise<void> => {
    while (left-- > 0) await createAndRun(backend, root);
  };
  await Promise.all(Array.from({ length: width }, worker));
  return count / ((performance.now() - start) / 1000);
}

/** The same cycle by a C program over the same spawner and init: what TypeScript could reach at best. */
function driverRate(driver: string, work: string, count: number, width: number): number {
  const data = join(work, "driver-home");
  mkdirSync(data);
  const args = [String(count), String(width), join(work, "root"), data, join(work, "mwbench"), resolve("dist-native")];
  return Number(execFileSync(driver, args, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }));
}

function availableBytes(): number {
  const match = /MemAvailable:\s+(\d+) kB/.exec(readFileSync("/proc/meminfo", "utf8"));
  return Number(match?.[1]) * 1024;
}

/** Fall of available memory by `count` idle machines, bytes each, after the machinery is warm. */
async function idleMemory(backend: SandboxBackend, root: RootFilesystem, count: number): Promise<number> {
  await settle();
  const before = availableBytes();
  const sandboxes: Sandbox[] = [];
  for (let i = 0; i < count; i++) sandboxes.push(await backend.create({ root }));
  await settle();
  const each = (before - availableBytes()) / count;
  while (sandboxes.length > 0) await Promise.all(sandboxes.splice(0, 16).map((sandbox) => sandbox.kill()));
  return each;
}

async function settle(): Promise<void> {
  globalThis.gc?.();
  await sleep(1000);
}

/** Megabytes per second from a command's stdout to Node. */
async function stdoutRate(backend: SandboxBackend, root: RootFilesystem): Promise<number> {
  const megabytes = 512;
  const sandbox = await backend.create({ root });
  try {
    const rates: number[] = [];
    for (let round = 0; round < 5; round++) {
      const start = performance.now();
      const exec = await sandbox.exec({ command: ["/bin/dd", "if=/dev/zero", "bs=64k", `count=${megabytes * 16}`], maxOutputBytes: megabytes << 21 });
      let bytes = 0;
      for await (const chunk of exec.output) if (chunk.stream === "stdout") bytes += chunk.data.length;
      await exec.exit;
      await exec.acknowledge();
      if (bytes !== megabytes << 20) throw new Error(`expected ${megabytes << 20} bytes, got ${bytes}`);
      rates.push(bytes / 1e6 / ((performance.now() - start) / 1000));
    }
    return percentile(rates, 50);
  } finally {
    await sandbox.kill();
  }
}

interface Rates {
  readonly cycles: number;
  readonly cRate: number;
  readonly idle: number;
  readonly throughput: number;
}

/** The figures that SPECIFICATION.md promises, each as a ratio within this run. A peer that is missing leaves its ratio out. */
function judge(rows: readonly Row[], rates: Rates): Record<string, Ratio> {
  const find = (name: string): Row | undefined => rows.find((candidate) => candidate.name === name);
  const ratios: Record<string, Ratio> = {};
  const atMost = (name: string, value: number, limit: number, unit = ""): void => {
    if (!Number.isNaN(value)) ratios[name] = { value: round(value), target: `<= ${limit}${unit}`, holds: value <= limit };
  };
  const atLeast = (name: string, value: number, limit: number, unit = ""): void => {
    ratios[name] = { value: round(value), target: `>= ${limit}${unit}`, holds: value >= limit };
  };
  const over = (a: string, b: string, key: "p50Ms" | "p99Ms"): number => (find(a)?.[key] ?? Number.NaN) / (find(b)?.[key] ?? Number.NaN);
  const create = "native create + first command";
  atMost("create p50 / bubblewrap p50", over(create, "bubblewrap run", "p50Ms"), 0.5);
  atMost("create p50 / crun p50", over(create, "crun run", "p50Ms"), 0.25);
  atMost("create p99 / bubblewrap p99", over(create, "bubblewrap run", "p99Ms"), 1);
  atMost("acquire from a warm pool, first command, p50", find(WARM)?.p50Ms ?? Number.NaN, 3, " ms");
  atMost("the same, p99", find(WARM)?.p99Ms ?? Number.NaN, 8, " ms");
  atMost("exec p50 / host vfork+exec p50", over("native exec", "host vfork+exec", "p50Ms"), 2);
  atMost("exec p50 / crun exec p50", over("native exec", "crun exec", "p50Ms"), 0.2);
  atLeast("cycles per second / C driver's", rates.cycles / rates.cRate, 0.6);
  atMost("idle machine", rates.idle / (1 << 20), 0.8, " MiB");
  atLeast("stdout to Node", rates.throughput, 300, " MB/s");
  ratios["cycles per second"] = { value: round(rates.cycles), target: "printed", holds: true };
  return ratios;
}

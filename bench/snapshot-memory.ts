/**
 * The part of the snapshot bench about processes: how long a machine stands still while they are kept, and how long another takes until they go on in it: of an idle machine, a shell
 * session, and a Python process by the memory that it holds; sixteen children of a shell session.
 */
import { join } from "node:path";
import { openImageStore } from "../src/image/index.ts";
import { openNativeBackend, type Exec, type NativeBackend, type Sandbox, type SandboxSpec } from "../src/sandbox/index.ts";
import { percentile, round, row, type Ratio, type Row } from "./statistics.ts";

const MIB = 1 << 20;
const CHILDREN = 16;

interface Case {
  readonly name: string;
  readonly command: readonly string[] | null;
  readonly stopMs?: number;
  readonly restoreMs?: number;
}

const python = (mib: number): readonly string[] => ["/usr/bin/python3", "-c", `import os,sys\nx=[os.urandom(1<<20) for _ in range(${mib})]\nprint("ready",flush=True)\nsys.stdin.read()`];
const SHELL = ["/bin/bash", "-c", "V=1; echo ready; read line"];
const CASES: readonly Case[] = [
  { name: "idle machine", command: null, stopMs: 80, restoreMs: 60 },
  { name: "bash session", command: SHELL, stopMs: 120, restoreMs: 150 },
  { name: "python with 0 MiB", command: python(0) },
  { name: "python with 50 MiB", command: python(50) },
  { name: "python with 200 MiB", command: python(200), stopMs: 250 },
];

interface Measured {
  readonly rows: readonly Row[];
  readonly ratios: Readonly<Record<string, Ratio>>;
}

/** Nothing where processes cannot be kept, which is said on stderr. */
export async function memoryBench(work: string, rounds: number): Promise<Measured> {
  const home = join(work, "memory");
  const backend = await openNativeBackend({ home });
  try {
    if (!backend.capabilities.memorySnapshot) {
      process.stderr.write(`Not measured: snapshots with processes (${backend.capabilities.missing["memorySnapshot"] ?? "?"})\n`);
      return { rows: [], ratios: {} };
    }
    const images = await openImageStore({ home, aliases: {}, cwd: work, env: process.env });
    const spec: SandboxSpec = { root: await images.rootFilesystem(await images.resolve("host")), checkpointable: true };
    const rows: Row[] = [];
    const ratios: Record<string, Ratio> = {};
    for (const one of CASES) await keepAndRestore(backend, spec, one, rounds, rows, ratios);
    await forks(backend, spec, rounds, rows, ratios);
    return { rows, ratios };
  } finally {
    await backend.close();
  }
}

async function keepAndRestore(backend: NativeBackend, spec: SandboxSpec, { name, command, stopMs, restoreMs }: Case, rounds: number, rows: Row[], ratios: Record<string, Ratio>): Promise<void> {
  const [stops, restores]: [number[], number[]] = [[], []];
  let bytes = 0;
  const sandbox = await backend.create(spec);
  if (command !== null) await ready(sandbox, command);
  // The first one finds out what this kernel can do.
  for (let i = -1; i < rounds; i++) {
    const { snapshot, stoppedMs } = await sandbox.snapshot({ memory: true });
    const start = performance.now();
    const restored = await backend.create({ ...spec, snapshot: snapshot.id });
    if (i >= 0) {
      restores.push(performance.now() - start);
      stops.push(stoppedMs);
    }
    bytes = snapshot.bytes;
    await restored.kill();
    await backend.snapshots.remove(snapshot.id);
  }
  await sandbox.kill();
  rows.push(row(`stop with processes, ${name}`, stops, `${round(bytes / MIB)} MiB on disk`), row(`restore, ${name}`, restores, "until the new machine takes commands"));
  const promise = (what: string, values: readonly number[], most: number | undefined): void => {
    const value = round(percentile(values, 50));
    if (most !== undefined) ratios[`${what} of ${name} with its processes, p50 ms`] = { value, target: `<= ${most}`, holds: value <= most };
  };
  promise("stop", stops, stopMs);
  promise("restore", restores, restoreMs);
}

async function forks(backend: NativeBackend, spec: SandboxSpec, rounds: number, rows: Row[], ratios: Record<string, Ratio>): Promise<void> {
  const times: number[] = [];
  const sandbox = await backend.create(spec);
  await ready(sandbox, SHELL);
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    const results = await sandbox.fork(CHILDREN, { memory: true });
    times.push(performance.now() - start);
    await Promise.all(results.map(async (result) => (result.ok ? result.sandbox.kill() : Promise.reject(result.error))));
  }
  await sandbox.kill();
  rows.push(row(`fork of ${CHILDREN} with processes`, times, "all children of a bash session"));
  const value = round(percentile(times, 50));
  ratios[`${CHILDREN} children of a bash session with its processes, all, p50 ms`] = { value, target: "<= 1800", holds: value <= 1800 };
}

async function ready(sandbox: Sandbox, command: readonly string[]): Promise<Exec> {
  const exec = await sandbox.exec({ command, openStdin: true });
  for await (const { data } of exec.output) if (Buffer.from(data).includes("ready")) break;
  return exec;
}

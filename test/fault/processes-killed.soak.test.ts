/**
 * CRIU killed at moments drawn from a seed while machines are paused, forked and resumed with their processes (keeping and restoring alone: test/soak/processes.test.ts). Nothing half-made
 * is listed or left, the source goes on or what was kept is whole, and the same works afterwards. `MW_FAULT_SEED` draws others.
 */
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend, type Exec, type NativeBackend, type RootFilesystem, type Sandbox } from "../../src/sandbox/index.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";
import { delays, killing } from "../support/helper-kills.ts";
import { leftoversAfter } from "../support/leftovers.ts";

const BUILD = fileURLToPath(new URL("../../scripts/build-criu.mjs", import.meta.url));
const SEED = Number(process.env["MW_FAULT_SEED"] ?? 5);
/** Longer than CRIU is at work on most hosts; where it was done before it could be struck, it is struck earlier. */
const MOST_MS = 60;
const KILLS = 6;
const ROUNDS_MOST = 30;

let base = "";
let home = "";
let backend: NativeBackend;
let root: RootFilesystem;
const made: Sandbox[] = [];

beforeAll(async () => {
  const built = spawnSync(process.execPath, [BUILD], { encoding: "utf8" });
  expect(built.status, built.stderr).toBe(0);
  process.env["MW_CRIU"] = built.stdout.trim();
  base = mkdtempSync(join(tmpdir(), "mw-criu-kills-"));
  home = join(base, "home");
  mkdirSync(home);
  const images = await openImageStore({ home, aliases: {}, cwd: base, env: process.env });
  root = await images.rootFilesystem(await images.resolve("host"));
  backend = await openNativeBackend({ home, log: () => undefined });
  expect(backend.capabilities.missing["memorySnapshot"]).toBe("");
}, 1_800_000);
afterEach(nothingLeft);
afterAll(async () => {
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

/** A machine in which a program counts: it has gone on where a number above the last one is written. */
async function counting(): Promise<{ readonly sandbox: Sandbox; readonly exec: Exec }> {
  const sandbox = await backend.create({ root, checkpointable: true, memoryBytes: 256 << 20 });
  made.push(sandbox);
  const exec = await sandbox.exec({ command: 'i=0; while :; do i=$((i+1)); echo "$i kept" > /tmp/next; mv /tmp/next /tmp/count; sleep 0.01; done' });
  await until("it counts", async () => (await count(sandbox)) > 0);
  return { sandbox, exec };
}

async function count(sandbox: Sandbox): Promise<number> {
  return Number(/^(\d+) kept$/m.exec((await sh(sandbox, "cat /tmp/count 2> /dev/null; true")).out)?.[1] ?? 0);
}

async function goesOn(sandbox: Sandbox, from: number): Promise<void> {
  await until("it counts on", async () => (await count(sandbox)) > from);
}

/** Whether the program goes on. Where CRIU was killed while its code ran in the program, that ends, as is told of any other. */
async function survives({ sandbox, exec }: { readonly sandbox: Sandbox; readonly exec: Exec }): Promise<boolean> {
  const over = Promise.race([exec.exit, sandbox.ended]).then(() => false);
  const on = count(sandbox).then((now) => goesOn(sandbox, now)).then(() => true, (error: unknown) => (sandbox.state === "running" && error instanceof Error && error.message.startsWith("Not in") ? Promise.reject(error) : over));
  return await Promise.race([over, on]);
}

async function nothingLeft(): Promise<void> {
  await Promise.all(made.splice(0).map((sandbox) => sandbox.kill()));
  await expect.poll(() => backend.list()).toEqual([]);
  for (const { id } of await backend.snapshots.list()) await backend.snapshots.remove(id);
  await backend.snapshots.settled();
  await backend.snapshots.collect();
  for (const part of ["records", "layers", "memory", "work", "holds"]) await expect.poll(() => readdirSync(join(home, "snapshots", part)), { timeout: 30_000, message: part }).toEqual([]);
}

type Attempt = (afterMs: number) => Promise<{ readonly killed: boolean; readonly survived: boolean }>;

const ATTEMPTS: Readonly<Record<string, Attempt>> = {
  pause: async (afterMs) => {
    const machine = await counting();
    const { sandbox } = machine;
    const before = await count(sandbox);
    const { killed, result } = await killing(home, "criu", afterMs, () => sandbox.pause({ memory: true }));
    if (result.status === "rejected") {
      if (!killed) throw result.reason;
      expect(result.reason).toMatchObject({ code: "sandbox_failed", message: expect.stringContaining("killed") });
      expect(sandbox.state).toBe("running");
      expect(await backend.snapshots.list()).toEqual([]);
      if (!(await survives(machine))) return { killed, survived: false };
      await sandbox.pause({ memory: true });
    }
    expect((await backend.snapshots.list()).map(({ pausedSandbox, memory }) => [pausedSandbox, memory])).toEqual([[sandbox.id, true]]);
    await sandbox.resume();
    await goesOn(sandbox, before);
    return { killed, survived: true };
  },
  fork: async (afterMs) => {
    const machine = await counting();
    const { sandbox } = machine;
    const before = await count(sandbox);
    const { killed, result } = await killing(home, "criu", afterMs, () => sandbox.fork(2, { memory: true }));
    const children = result.status === "fulfilled" ? result.value : [];
    if (result.status === "rejected" && !killed) throw result.reason;
    const copies = children.flatMap((child) => (child.ok ? [child.sandbox] : []));
    made.push(...copies);
    if (!killed) expect(copies).toHaveLength(2);
    // Of a copy that failed nothing is there.
    await expect.poll(async () => (await backend.list()).map(({ id }) => id).filter((id) => id !== sandbox.id).toSorted()).toEqual(copies.map(({ id }) => id).toSorted());
    expect(await backend.snapshots.list()).toEqual([]);
    for (const child of copies) await goesOn(child, before);
    if (!(await survives(machine))) return { killed, survived: false };
    for (const child of await sandbox.fork(1, { memory: true })) {
      if (!child.ok) throw child.error;
      made.push(child.sandbox);
      await goesOn(child.sandbox, before);
    }
    return { killed, survived: true };
  },
  resume: async (afterMs) => {
    const { sandbox } = await counting();
    const before = await count(sandbox);
    await sandbox.pause({ memory: true });
    const { killed, result } = await killing(home, "criu", afterMs, () => sandbox.resume());
    if (result.status === "rejected") {
      if (!killed) throw result.reason;
      // What was kept stays, and is whole.
      expect(sandbox.state).toBe("paused");
      expect((await backend.snapshots.list()).map(({ pausedSandbox, memory }) => [pausedSandbox, memory])).toEqual([[sandbox.id, true]]);
      await sandbox.resume();
    }
    await goesOn(sandbox, before);
    expect(await backend.snapshots.list()).toEqual([]);
    return { killed, survived: true };
  },
};

for (const [operation, attempt] of Object.entries(ATTEMPTS)) {
  test(`CRIU is killed at any moment of a ${operation} with processes`, { timeout: 900_000 }, async () => {
    const delay = delays(`killing CRIU in a ${operation}`, SEED);
    let [killed, survived, mostMs] = [0, 0, MOST_MS];
    for (let round = 0; round < ROUNDS_MOST && (killed < KILLS || survived === 0); round++) {
      const afterMs = delay(mostMs);
      const end = await attempt(afterMs).catch((error: unknown) => Promise.reject(new Error(`round ${round}, after ${afterMs.toFixed(1)} ms: ${String(error)}`, { cause: error })));
      if (end.killed) killed++;
      else mostMs /= 2;
      if (end.killed && end.survived) survived++;
      await nothingLeft();
    }
    process.stdout.write(`${operation}: killed ${killed}, went on ${survived}\n`);
    expect(killed).toBeGreaterThanOrEqual(KILLS);
    expect(survived).toBeGreaterThan(0);
  });
}

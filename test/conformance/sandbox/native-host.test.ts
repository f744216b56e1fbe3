/** What the host sees of the native backend: nothing is left of machines, whoever dies and how. */
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { openNativeBackend, runDirectory, type NativeBackend, type Sandbox } from "../../../src/sandbox/index.ts";
import { leftovers, leftoversAfter } from "../../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../../support/rootfs.ts";
import { sh, sleep, until } from "./fixture.ts";
import { mortal } from "../../support/mortal.ts";

let base = "";
let image: TestRoot;
let homes = 0;
const opened: NativeBackend[] = [];

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-host-"));
  image = makeTestRoot(base);
});
afterEach(async () => {
  await Promise.all(opened.splice(0).map((backend) => backend.close()));
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

const freshHome = (): string => {
  const home = join(base, `home-${homes++}`);
  mkdirSync(home);
  return home;
};

async function open(home: string): Promise<NativeBackend> {
  const backend = await openNativeBackend({ home, log: () => undefined });
  opened.push(backend);
  return backend;
}

function spawnerPid(home: string): number {
  return Number(readFileSync(join(home, "lock"), "utf8"));
}

const lives = (pid: number): boolean => readdirSync("/proc").includes(String(pid));

test("100 machines with commands, files, services and background processes leave nothing, and no descriptor", async () => {
  const home = freshHome();
  const backend = await open(home);
  const descriptors = (): number => readdirSync(`/proc/${spawnerPid(home)}/fd`).length;
  const round = async (): Promise<void> => {
    const sandboxes = await Promise.all(Array.from({ length: 10 }, () => backend.create({ root: image.root, services: [{ port: 80, target: "/nowhere" }] })));
    await Promise.all(sandboxes.map(async (sandbox, i) => {
      await sh(sandbox, "setsid sleep 1000 >/dev/null 2>&1 & echo x > /f; (nc 127.0.0.1 80 &) ; exit 0");
      await sandbox.files.write("/g", "y");
      if (i % 3 === 0) await (await sandbox.seal()).release();
      else await sandbox.kill();
    }));
  };
  /** The spawner has made what it makes beforehand: the directory of a machine is there before its descriptors are. */
  const prepared = (): Promise<boolean> =>
    until("the spawner is idle", async () => {
      const open = descriptors();
      await sleep(100);
      return descriptors() === open && readdirSync(runDirectory(home)).filter((name) => name.startsWith(".sbx-")).length === 16;
    });
  await round();
  await prepared();
  const [before, mine] = [descriptors(), readdirSync("/proc/self/fd").length];
  for (let i = 0; i < 9; i++) await round();
  await prepared();
  expect(leftovers(home)).toEqual([]);
  expect(descriptors()).toBeLessThanOrEqual(before + 4);
  expect(readdirSync("/proc/self/fd").length).toBeLessThanOrEqual(mine + 4);
});

test("the spawner is killed: its machines are lost at once, the next creation works, nothing is left", async () => {
  const home = freshHome();
  const backend = await open(home);
  const [one, two] = [await backend.create({ root: image.root }), await backend.create({ root: image.root, key: "k" })];
  const running = await one.exec({ command: "sleep 500" });
  const workspaceOf = await backend.create({ root: image.root });
  const workspace = await workspaceOf.seal();
  process.kill(spawnerPid(home), "SIGKILL");
  expect(await one.ended).toMatchObject({ reason: "lost" });
  expect(await two.ended).toMatchObject({ reason: "lost" });
  expect((await running.exit).ended).toBe("lost");
  await expect(one.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_gone" });
  await one.kill();
  const three = await backend.create({ root: image.root, key: "k" });
  expect(three.id).not.toBe(two.id);
  expect((await sh(three, "echo back")).out).toBe("back\n");
  await expect(workspace.changes()).rejects.toMatchObject({ code: expect.stringMatching(/sandbox_/) });
  await workspace.release();
  await expect(backend.create({ root: image.root, workspace })).rejects.toMatchObject({ code: "sandbox_gone" });
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
});

describe("a machine whose PID 1 is gone", () => {
  const initOf = (home: string, id: string): number => Number(readFileSync(join(runDirectory(home), id, "record"), "utf8").split(/\s/)[0]);
  /** A machine that was out of memory once, as many are, and then dies. */
  const dead = async (home: string, backend: NativeBackend, spec: { readonly hungry: boolean; readonly ttlMs?: number }): Promise<Sandbox> => {
    const { hungry, ...rest } = spec;
    const sandbox = await backend.create({ root: image.root, ...(hungry ? { memoryBytes: 32 << 20 } : {}), ...rest });
    await sh(sandbox, "echo mine > /mine");
    if (hungry) expect((await sh(sandbox, ["/bin/probe", "anon", "200", "hold"])).cause).toBe("oom_killed");
    process.kill(initOf(home, sandbox.id), "SIGKILL");
    expect(await sandbox.ended).toMatchObject({ reason: "died", kept: hungry });
    return sandbox;
  };

  test("after its memory was used up: files are kept until they are sealed, or killed, or the lease ends", async (context) => {
    const home = freshHome();
    const backend = await open(home);
    if (!backend.capabilities.isolation.enforced.memory) {
      await context.annotate("memory limits are absent here");
      return;
    }
    const [sealed, killed, left] = await Promise.all([dead(home, backend, { hungry: true }), dead(home, backend, { hungry: true }), dead(home, backend, { hungry: true, ttlMs: 10_000 })]);
    const workspace = await sealed.seal();
    const next = await backend.create({ root: image.root, workspace });
    expect((await sh(next, "cat /mine")).out).toBe("mine\n");
    await expect(sealed.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_gone" });
    await next.kill();
    await sealed.kill();
    expect((await workspace.changes()).length).toBeGreaterThan(0);
    await workspace.release();
    await killed.kill();
    await expect(killed.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await until("the lease of the last has ended", () => leftovers(home).length === 0);
    await expect(left.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await left.kill();
  });

  test("for another reason: nothing is left of it", async () => {
    const home = freshHome();
    const backend = await open(home);
    const sandbox = await dead(home, backend, { hungry: false });
    await expect(sandbox.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    expect(leftovers(home)).toEqual([]);
  });
});

test("creations that wait while the spawner dies are refused or made, never left hanging", async () => {
  const home = freshHome();
  const backend = await open(home);
  const creations = Array.from({ length: 30 }, () => backend.create({ root: image.root }));
  const first = await Promise.any(creations);
  process.kill(spawnerPid(home), "SIGKILL");
  const outcomes = await Promise.allSettled(creations);
  for (const outcome of outcomes) if (outcome.status === "rejected") expect(outcome.reason).toMatchObject({ code: expect.stringMatching(/sandbox_/) });
  expect(await first.ended).toMatchObject({ reason: "lost" });
  expect((await sh(await backend.create({ root: image.root }), "echo back")).out).toBe("back\n");
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
});

test("the controller is killed: machines, groups, sockets and the spawner go with it", async () => {
  const home = freshHome();
  const script = join(base, "controller.mjs");
  const index = new URL("../../../dist/sandbox/index.js", import.meta.url).pathname;
  writeFileSync(script, `const { openNativeBackend } = await import(${JSON.stringify(index)});
    const backend = await openNativeBackend({ home: process.argv[2] });
    const root = JSON.parse(process.argv[3]);
    const machines = await Promise.all([1, 2, 3].map(() => backend.create({ root })));
    for (const machine of machines) await machine.exec({ command: "setsid sleep 500 & sleep 500" });
    await machines[0].seal();
    console.log("ready"); setInterval(() => {}, 1000);`);
  const child = mortal(spawn(process.execPath, [script, home, JSON.stringify(image.root)], { stdio: ["ignore", "pipe", "inherit"] }));
  await new Promise<void>((resolve, reject) => {
    child.stdout.once("data", () => resolve());
    child.once("exit", (code) => reject(new Error(`the controller ended with ${code}`)));
  });
  expect(leftovers(home).length).toBeGreaterThan(0);
  await expect(openNativeBackend({ home })).rejects.toMatchObject({ code: "busy", facts: { pid: spawnerPid(home) } });
  const pid = spawnerPid(home);
  child.kill("SIGKILL");
  expect(await leftoversAfter(home)).toEqual([]);
  await until("the spawner is gone", () => !lives(pid));
  // The lock is free again.
  expect((await sh(await (await open(home)).create({ root: image.root }), "echo next")).out).toBe("next\n");
});

test("both are killed: machines end themselves, the next controller finds and leaves nothing", async () => {
  const home = freshHome();
  const first = await open(home);
  await Promise.all([1, 2, 3].map(() => first.create({ root: image.root })));
  const pid = spawnerPid(home);
  process.kill(pid, "SIGKILL");
  await until("the spawner is gone", () => !lives(pid));
  const second = await open(home);
  await until("the sweep is complete", () => leftovers(home).length === 0);
  expect(await second.epoch).toBeGreaterThan(1);
  await second.close();
  expect(readdirSync(join(runDirectory(home), "..")).includes(runDirectory(home).split("/").at(-1) ?? "")).toBe(false);
});

test("a second backend on one data directory is refused and disturbs nothing", async () => {
  const home = freshHome();
  const sandbox = await (await open(home)).create({ root: image.root });
  for (let i = 0; i < 3; i++) await expect(openNativeBackend({ home })).rejects.toMatchObject({ code: "busy" });
  expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
});

test("closing twice, and creating after it", async () => {
  const backend = await open(freshHome());
  const sandbox = await backend.create({ root: image.root });
  await Promise.all([backend.close(), backend.close()]);
  expect((await sandbox.ended).reason).toMatch(/killed|lost/);
  await expect(backend.create({ root: image.root })).rejects.toMatchObject({ code: "sandbox_gone" });
});

test("memory that is filled before the spawner comes to look takes programs smaller than init, and not init", async () => {
  const home = freshHome();
  const backend = await open(home);
  const sandbox = await backend.create({ root: image.root, memoryBytes: 64 << 20, diskBytes: 64 << 20 });
  process.kill(spawnerPid(home), "SIGSTOP");
  // Continued in any case: what is stopped outlives its controller.
  const started = sandbox.exec({ command: "cat /dev/zero > /zero; exec eater" });
  await Promise.allSettled([started, sleep(1000)]);
  process.kill(spawnerPid(home), "SIGCONT");
  const eating = await started;
  await eating.kill("SIGKILL");
  // By the kernel, or by us where the kernel has slowed it down until then.
  expect((await eating.exit).ended).not.toBe("lost");
  await sandbox.files.remove("/zero");
  expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
});

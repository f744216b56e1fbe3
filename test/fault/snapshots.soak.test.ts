/** Killed in every phase, and out of room: what is listed is whole, nothing is left over, and a sandbox that was only to be kept lives. */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { toMwError } from "../../src/core/errors.ts";
import { openNativeBackend, type NativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";
import { mortal } from "../support/mortal.ts";

const DIST = fileURLToPath(new URL("../../dist/sandbox/index.js", import.meta.url));
let base = "";
let image: TestRoot;
let homes = 0;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-snapfault-"));
  chmodSync(base, 0o755);
  image = makeTestRoot(base);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

const freshHome = (): string => {
  const home = join(base, `h${homes++}`);
  mkdirSync(home);
  return home;
};
const names = (path: string): readonly string[] => (existsSync(path) ? readdirSync(path) : []);
const store = (home: string, part: string): readonly string[] => names(join(home, "snapshots", part));

/** A controller that keeps, forks, pauses and resumes a machine without end. */
function controller(home: string): ChildProcess {
  const script = `
    const { openNativeBackend } = await import(${JSON.stringify(DIST)});
    const backend = await openNativeBackend({ home: ${JSON.stringify(home)}, log: () => undefined });
    const sandbox = await backend.create({ root: ${JSON.stringify(image.root)} });
    await sandbox.run({ command: "mkdir /w; i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i > /w/$i; done; head -c 3000000 /dev/urandom > /w/big; md5sum /w/big > /w/sum" });
    console.log("ready");
    for (let round = 0; ; round++) {
      await sandbox.run({ command: "echo " + round + " >> /w/rounds" });
      await sandbox.snapshot(round % 2 ? { name: "named" } : {});
      console.log("snapshot");
      const busy = await sandbox.exec({ command: "while :; do echo x >> /w/busy; done" });
      await sandbox.snapshot();
      for (const child of await sandbox.fork(2)) if (child.ok) await child.sandbox.kill();
      console.log("fork");
      await sandbox.pause();
      console.log("pause");
      await sandbox.resume();
      console.log("resume");
    }`;
  return mortal(spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: ["ignore", "pipe", "ignore"] }));
}

/** Whatever is listed can be used, and holds what it should. */
async function checkWhole(home: string): Promise<void> {
  // The spawner of a dead controller needs a moment to take its machines away.
  const backend = await until("the data directory is free", () => openNativeBackend({ home, log: () => undefined }).catch((error: unknown) => (toMwError(error).code === "busy" ? null : Promise.reject(toMwError(error)))));
  if (backend === null) return;
  try {
    for (const snapshot of await backend.snapshots.list()) {
      const sandbox = snapshot.pausedSandbox === null ? await backend.create({ root: image.root, snapshot: snapshot.id }) : await backend.adoptPaused(snapshot.pausedSandbox, { root: image.root });
      await sandbox.resume();
      expect((await sh(sandbox, "cd /w && md5sum -c sum && ls | grep -c '^[0-9]'")).out).toBe("/w/big: OK\n600\n");
      const rounds = (await sh(sandbox, "cat /w/rounds")).out.trimEnd().split("\n");
      expect(rounds).toEqual(rounds.map((_, index) => String(index)));
      await sandbox.kill();
    }
    for (const { id } of await backend.snapshots.list()) await backend.snapshots.remove(id);
    await backend.snapshots.collect();
    for (const part of ["records", "layers", "memory", "work", "holds"]) expect(store(home, part), part).toEqual([]);
  } finally {
    await backend.close();
  }
  expect(await leftoversAfter(home)).toEqual([]);
}

/** The moments at which somebody dies, as they can be seen from outside. */
const PHASES: readonly (readonly [name: string, reached: (home: string, said: readonly string[]) => boolean])[] = [
  ["before the first", (_, said) => said.includes("ready")],
  ["while a layer is written", (home) => store(home, "work").some((name) => names(join(home, "snapshots/work", name)).length > 0)],
  ["when a layer is there and its record may not be", (home) => store(home, "layers").length > 0],
  ["when the first snapshot exists", (home) => store(home, "records").length > 0],
  ["when several do", (_, said) => said.includes("fork")],
  ["while it is paused", (_, said) => said.includes("pause")],
  ["after it was resumed", (_, said) => said.includes("resume")],
];

describe("killed", () => {
  for (const [phase, reached] of PHASES) {
    for (const victim of ["the controller", "the spawner"] as const) {
      test(`${victim}, ${phase}`, async () => {
        const home = freshHome();
        const process_ = controller(home);
        const ended = new Promise((resolve) => process_.once("exit", resolve));
        const said: string[] = [];
        process_.stdout?.on("data", (data: Buffer) => said.push(...data.toString().trim().split("\n")));
        await until(phase, () => reached(home, said), 120_000);
        if (victim === "the spawner") process.kill(Number(readFileSync(join(home, "lock"), "utf8")), "SIGKILL");
        process_.kill("SIGKILL");
        await ended;
        await checkWhole(home);
      });
    }
  }
});

test("the spawner dies while a machine is kept: the request fails, what was kept before stays", async () => {
  const home = freshHome();
  const backend = await openNativeBackend({ home, log: () => undefined });
  const sandbox = await backend.create({ root: image.root });
  await sandbox.files.write("/f", "kept");
  const { snapshot } = await sandbox.snapshot();
  const underWay = Promise.allSettled([sandbox.snapshot(), sandbox.fork(4), sandbox.pause()]);
  process.kill(Number(readFileSync(join(home, "lock"), "utf8")), "SIGKILL");
  await underWay;
  await sandbox.kill();
  const again = await backend.create({ root: image.root, snapshot: snapshot.id });
  expect(Buffer.from(await again.files.read("/f")).toString()).toBe("kept");
  await backend.close();
});

test("a machine that is sealed, alone on its layers, has them until they are read", async () => {
  const home = freshHome();
  const backend = await openNativeBackend({ home, log: () => undefined });
  for (let round = 0; round < 6; round++) {
    const sandbox = await backend.create({ root: image.root });
    await sandbox.files.write("/below", "kept");
    await sandbox.pause();
    await sandbox.resume();
    const workspace = await sandbox.seal();
    expect(Buffer.from((await workspace.read("/below", 100)) ?? "").toString()).toBe("kept");
    await workspace.release();
  }
  await backend.snapshots.settled();
  await backend.snapshots.collect();
  expect(store(home, "layers")).toEqual([]);
  await backend.close();
});

describe.runIf(process.getuid?.() === 0)("a full disk", () => {
  let home = "";
  let backend: NativeBackend;
  beforeAll(async () => {
    home = freshHome();
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=4m,nr_inodes=3000", "tmpfs", home]);
    backend = await openNativeBackend({ home, log: () => undefined });
  });
  afterAll(async () => {
    await backend.close();
    execFileSync("umount", [home]);
  });

  async function refused(sandbox: Sandbox): Promise<void> {
    await expect(sandbox.snapshot({ name: "full" })).rejects.toMatchObject({ code: "host_exhausted" });
    expect(await backend.snapshots.list()).toEqual([]);
    expect([...store(home, "work"), ...store(home, "layers")]).toEqual([]);
  }

  for (const [what, fill] of [["bytes", "head -c 6000000 /dev/urandom > /big"], ["inodes", "mkdir /many; i=0; while [ $i -lt 4000 ]; do i=$((i+1)); : > /many/$i; done"]] as const) {
    test(`no ${what} left: nothing is half-made, the sandbox lives, a pause that fails lets its processes go on`, async () => {
      const sandbox = await backend.create({ root: image.root });
      await sh(sandbox, fill);
      await refused(sandbox);
      expect((await sh(sandbox, "ls / | grep -c -e big -e many")).out).toBe("1\n");
      if (backend.capabilities.freeze) {
        const running = await sandbox.exec({ command: "i=0; while :; do i=$((i+1)); echo $i > /i; done" });
        await refused(sandbox);
        await expect(sandbox.pause()).rejects.toMatchObject({ code: "host_exhausted" });
        expect(sandbox.state).toBe("running");
        const before = (await sh(sandbox, "cat /i")).out;
        await until("it goes on", async () => (await sh(sandbox, "cat /i")).out !== before);
        await running.kill("SIGKILL");
      }
      // What needs no room on disk is done all the same.
      const [child] = await sandbox.fork(1);
      expect(child?.ok).toBe(true);
      if (child?.ok === true) await child.sandbox.kill();
      // With room, it is kept after all.
      await sh(sandbox, "rm -rf /big /many");
      const { snapshot } = await sandbox.snapshot();
      await backend.snapshots.remove(snapshot.id);
      await sandbox.kill();
    });
  }
});

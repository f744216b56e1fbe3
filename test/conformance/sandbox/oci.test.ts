/** The backend of OCI runtimes, with each runtime that the project names; one that is not installed fails the tests. And what the host sees of it, whoever dies and how. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { openOciBackend } from "../../../src/sandbox/index.ts";
import { leftovers, leftoversAfter } from "../../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../../support/rootfs.ts";
import { sh, text, until } from "./fixture.ts";
import { sandboxConformance, type Group } from "./suite.ts";

const RUNTIMES = ["runc", "crun"] as const;
let base = "";
let image: TestRoot;
let homes = 0;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-oci-"));
  chmodSync(base, 0o755);
  image = makeTestRoot(base);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

const freshHome = (): string => {
  const home = join(base, `home-${homes++}`);
  mkdirSync(home);
  return home;
};

/** Of each runtime what depends on it most; the whole suite with both is `test/soak/oci.test.ts`. */
const GROUPS: Readonly<Record<(typeof RUNTIMES)[number], readonly Group[]>> = {
  runc: ["exec", "image defaults", "layers", "limits", "network", "workspace", "snapshots", "neighbours", "attackers"],
  crun: ["image defaults", "workspace"],
};

for (const program of RUNTIMES) {
  sandboxConformance(`oci backend with ${program}`, { open: () => openOciBackend({ home: freshHome(), program }), root: () => image.root, scratch: freshHome, only: GROUPS[program] });
}

describe.each(RUNTIMES)("what is left of machines of %s", (program) => {
  const controllers: ChildProcess[] = [];
  afterEach(() => controllers.splice(0).forEach((child) => child.kill("SIGKILL")));
  /** A controller of its own, with machines in which something runs, one of them sealed. */
  const controller = async (home: string): Promise<() => Promise<void>> => {
    const script = join(base, "controller.mjs");
    const index = new URL("../../../dist/sandbox/index.js", import.meta.url).pathname;
    writeFileSync(script, `const { openOciBackend } = await import(${JSON.stringify(index)});
      const backend = await openOciBackend({ home: process.argv[2], program: process.argv[4] });
      const machines = await Promise.all([1, 2, 3].map(() => backend.create({ root: JSON.parse(process.argv[3]), services: [{ port: 80, target: "/nowhere" }] })));
      for (const machine of machines) await machine.exec({ command: "setsid sleep 500 & sleep 500" });
      await (await machines[0].seal()).changes();
      console.log("ready"); setInterval(() => {}, 1000);`);
    const child = spawn(process.execPath, [script, home, JSON.stringify(image.root), program], { stdio: ["ignore", "pipe", "inherit"] });
    controllers.push(child);
    await new Promise<void>((resolve, reject) => {
      child.stdout.once("data", () => resolve());
      child.once("exit", (code) => reject(new Error(`the controller ended with ${code}`)));
    });
    return async () => {
      const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
      child.kill("SIGKILL");
      await gone;
    };
  };
  /** Processes that run machines of a data directory: the runtime's, which may be copies of its file, or those of our program `oci`, which carry services to a controller. */
  const runtimesOf = (home: string, name = "the runtime"): readonly number[] =>
    readdirSync("/proc").filter((pid) => /^\d+$/.test(pid)).filter((pid) => {
      try {
        return (basename(readlinkSync(`/proc/${pid}/exe`)) === "oci") === (name === "oci") && readFileSync(`/proc/${pid}/cmdline`, "latin1").includes(`--bundle\0${home}/`);
      } catch {
        return false;
      }
    }).map(Number);
  /** The first process of the machine's control group. */
  const initOf = (id: string): number => Number(execFileSync("sh", ["-c", `find /sys/fs/cgroup -path '*/manyworlds-oci-*/${id}/cgroup.procs' | head -1 | xargs head -1`], { encoding: "utf8" }));
  const nextTakesAway = async (home: string): Promise<void> => {
    const next = await openOciBackend({ home, program });
    expect((await sh(await next.create({ root: image.root }), "echo next")).out).toBe("next\n");
    await next.close();
    expect(await leftoversAfter(home)).toEqual([]);
  };

  test("the controller is killed: processes, groups and mounts go with it, files with the next one", async () => {
    const home = freshHome();
    const kill = await controller(home);
    const living = await openOciBackend({ home, program });
    const sandbox = await living.create({ root: image.root });
    await kill();
    await until("all runtimes but the living controller's have ended", () => runtimesOf(home).length === 1);
    await nextTakesAwayBeside(home);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
    await living.close();
    expect(await leftoversAfter(home)).toEqual([]);

    async function nextTakesAwayBeside(place: string): Promise<void> {
      const before = readdirSync(join(place, "oci")).length;
      await (await openOciBackend({ home: place, program })).close();
      expect(readdirSync(join(place, "oci")).length).toBe(before - 1);
    }
  });

  test("controller and runtimes are killed at once: what they left is swept", async () => {
    const home = freshHome();
    const kill = await controller(home);
    const pids = runtimesOf(home);
    expect(pids.length).toBe(2);
    for (const pid of pids) process.kill(pid, "SIGKILL");
    await kill();
    await nextTakesAway(home);
  });

  test.each(["the runtime", "oci"])("%s is killed: its machine is lost, and nothing of it is left", async (killed) => {
    const home = freshHome();
    const backend = await openOciBackend({ home, program });
    const sandbox = await backend.create({ root: image.root, services: [{ port: 80, target: "/nowhere" }] });
    const running = await sandbox.exec({ command: "sleep 500" });
    const pids = runtimesOf(home, killed);
    expect(pids.length).toBe(1);
    for (const pid of pids) process.kill(pid, "SIGKILL");
    expect(await sandbox.ended).toMatchObject({ reason: "lost", kept: false });
    expect((await running.exit).ended).toBe("lost");
    await expect(sandbox.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_gone" });
    await until("nothing of it is left", () => leftovers(home).every((line) => line.startsWith("controller's directory")) && runtimesOf(home).length + runtimesOf(home, "oci").length === 0);
    await backend.close();
    expect(await leftoversAfter(home)).toEqual([]);
  });

  test("init of a machine with a memory limit is killed, as the kernel does for memory: the files are kept until they are sealed", async () => {
    const home = freshHome();
    const backend = await openOciBackend({ home, program });
    const [limited, other] = await Promise.all([backend.create({ root: image.root, memoryBytes: 64 << 20 }), backend.create({ root: image.root })]);
    for (const sandbox of [limited, other]) {
      await sh(sandbox, "echo mine > /mine");
      process.kill(initOf(sandbox.id), "SIGKILL");
    }
    expect(await limited.ended).toMatchObject({ reason: "died", kept: true, limits: { oom_killed: 1 } });
    expect(await other.ended).toMatchObject({ reason: "died", kept: false, limits: { oom_killed: 0 } });
    const workspace = await limited.seal();
    expect(text((await workspace.read("/mine", 100)) ?? new Uint8Array())).toBe("mine\n");
    const next = await backend.create({ root: image.root, workspace });
    expect((await sh(next, "cat /mine")).out).toBe("mine\n");
    for (const sandbox of [limited, other]) await expect(sandbox.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await backend.close();
    expect(await leftoversAfter(home)).toEqual([]);
  });
});

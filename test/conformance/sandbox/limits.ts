/** Limits bite inside, name their cause, spare the machine's init, and leave the neighbours alone. A limit that cannot be enforced is refused. */
import { availableParallelism } from "node:os";
import { expect, test } from "vitest";
import type { SandboxSpec } from "../../../src/sandbox/sandbox.ts";
import { fixture, pidsOf, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

const MiB = 1 << 20;
type Limit = "cpu" | "memory" | "pids" | "disk";

export function limitSuite(options: ConformanceOptions): void {
  const { machine, backend } = fixture(options);

  /** Runs the body when the limits are enforced, else asserts that asking for it is refused. A limit of the disk beside it is left out where there is none. */
  function limited(name: string, limits: Limit | readonly Limit[], spec: Partial<SandboxSpec>, body: (spec: Partial<SandboxSpec>) => Promise<void>, timeoutMs = 180_000): void {
    test(name, async (context) => {
      const limit = [limits].flat().find((one) => !backend().capabilities.isolation.enforced[one]);
      if (limit !== undefined) {
        await expect(machine(spec)).rejects.toMatchObject({ code: "unsupported", message: expect.stringContaining(limit) });
        expect(backend().capabilities.missing[limit]).toBeTruthy();
        await context.annotate(`${limit} limits are absent here: asserted as refused`);
        return;
      }
      const { diskBytes, ...others } = spec;
      const disk = diskBytes !== undefined && backend().capabilities.isolation.enforced.disk;
      if (diskBytes !== undefined && !disk) await context.annotate("disk limits are absent here: without one");
      await body(disk ? spec : others);
    }, timeoutMs);
  }

  limited("memory: a hog is killed, the cause is named, the machine goes on", "memory", { memoryBytes: 96 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    const result = await sh(sandbox, ["/bin/probe", "anon", "400", "hold"]);
    expect(result).toMatchObject({ code: 137, signal: "SIGKILL", ended: "exited", cause: "oom_killed" });
    expect(await sh(sandbox, "echo alive")).toMatchObject({ out: "alive\n", cause: null });
    expect((await sandbox.metrics()).limits.oom_killed).toBeGreaterThan(0);
    expect((await sh(sandbox, ["/bin/probe", "anon", "40"])).out).toBe("ok 0\n");
  });

  test("cpu: machines without a limit share the processors evenly, however many sessions of processes each has", async (context) => {
    if (!backend().capabilities.isolation.enforced.cpu) {
      await context.annotate("control groups for processor time are absent here: shares go by process");
      return;
    }
    const [crowd, single] = [await machine(), await machine()];
    // Sessions, because the kernel may share by those.
    await sh(crowd, "for i in $(seq 24); do setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & done");
    await single.exec({ command: "while :; do :; done" });
    const used = async (): Promise<readonly [number, number]> => {
      const [a, b] = await Promise.all([crowd.metrics(), single.metrics()]);
      return [a.cpuMs ?? 0, b.cpuMs ?? 0];
    };
    const [crowdBefore, singleBefore] = await used();
    // Until both together have used so much: a busy host only makes it take longer.
    await until("they have computed", async () => (await used()).reduce((sum, ms) => sum + ms, 0) - crowdBefore - singleBefore > 3000);
    const [crowdAfter, singleAfter] = await used();
    // Its one process cannot use more than one processor; of two it then gets half, of more its whole one.
    const fair = 1 / Math.max(2, availableParallelism());
    expect((singleAfter - singleBefore) / (singleAfter - singleBefore + crowdAfter - crowdBefore)).toBeGreaterThan(fair / 2);
  });

  limited("memory: wherever the use stands at the moment when it is looked at", "memory", { memoryBytes: 4 * MiB, diskBytes: 16 * MiB }, async (spec) => {
    // Each hog crosses the limit anew, and about one in a hundred is seen exactly at it.
    await Promise.all(Array.from({ length: 8 }, async () => {
      const sandbox = await machine(spec);
      for (let i = 0; i < 40; i++) expect(await sh(sandbox, ["/bin/probe", "anon", "8", "creep"], { timeoutMs: 60_000 })).toMatchObject({ ended: "exited", signal: "SIGKILL", cause: "oom_killed" });
    }));
  });

  limited("memory: many small hogs do not reach init", "memory", { memoryBytes: 64 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    await sh(sandbox, "for i in 1 2 3 4 5 6 7 8; do probe anon 300 hold & done; wait");
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  limited("memory: programs smaller than init, which hold it as files, do not take init along", ["memory", "disk"], { memoryBytes: 64 * MiB, diskBytes: 64 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    // The disk first, so that the whole use comes near the hard limit. `exec`: no shell stays that would be larger.
    const eating = await sandbox.exec({ command: "cat /dev/zero > /zero; exec eater" });
    await until("the limit is felt", async () => (await sandbox.metrics()).limits.oom_killed > 0);
    // Time for more of it.
    await sleep(2000);
    await eating.kill("SIGKILL");
    expect((await eating.exit).ended).not.toBe("lost");
    await sandbox.killProcesses();
    await sandbox.files.remove("/zero");
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  limited("memory: filled with what no kill frees, the machine may die as a whole, and its files can still be sealed", ["memory", "disk"], { memoryBytes: 8 * MiB, diskBytes: 64 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    // Inodes and names are the kernel's memory, charged to the machine; the last bytes are taken by a program smaller than what the next command needs.
    await sh(sandbox, "mkdir /work /d; echo done > /work/out; cd /d; n=$(printf %0200d 0); i=0; while [ $i -lt 15500 ]; do : > $n$i; i=$((i+1)); done; exec filler");
    for (let i = 0; i < 5; i++) await sandbox.run({ command: ["/bin/filler"], timeoutMs: 30_000 }).catch(() => undefined);
    const alive = await sandbox.metrics().then(() => true, () => false);
    if (!alive) expect(await sandbox.ended).toMatchObject({ reason: "died", limits: { oom_killed: expect.any(Number) }, kept: true });
    const workspace = await sandbox.seal();
    expect(text((await workspace.read("/work/out", 100)) ?? new Uint8Array())).toBe("done\n");
    const next = await machine({ workspace, diskBytes: 64 * MiB });
    expect((await sh(next, "cat /work/out; ls /d | wc -l")).out.replace(/ /g, "")).toBe("done\n15500\n");
    await next.kill();
    await workspace.release();
    await expect(sandbox.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await sandbox.kill();
  });

  test("shared memory and queues do not outlive those who made them", async () => {
    const sandbox = await machine();
    const shmget = process.arch === "arm64" ? 194 : 29;
    expect((await sh(sandbox, ["/bin/probe", "sys", String(shmget), "1", String(64 * MiB), String(0o1600)])).out).toMatch(/^ok/);
    expect((await sh(sandbox, "tail -n +2 /proc/sysvipc/shm | wc -l; cat /proc/sys/kernel/msgmni")).out.split("\n").slice(0, 2)).toEqual(["0", "256"]);
  });

  for (const [what, command] of [["/dev/shm", "head -c 400000000 /dev/zero > /dev/shm/hog"], ["memfd", "probe memfd 400 hold"], ["a tmpfs of ours", "head -c 400000000 /dev/zero > /dev/hog"]] as const) {
    limited(`memory: ${what} cannot hold more than the machine may`, "memory", { memoryBytes: 96 * MiB, diskBytes: 64 * MiB }, async (spec) => {
      const sandbox = await machine(spec);
      const result = await sh(sandbox, command);
      // Killed or refused, either is right; succeeding is not.
      expect(result.code).not.toBe(0);
      expect(result.out).not.toContain("ok");
      expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
      const { memoryBytes } = await sandbox.metrics();
      expect(memoryBytes ?? 0).toBeLessThan(200 * MiB);
    });
  }

  limited("memory: files on disk do not count as memory", "memory", { memoryBytes: 96 * MiB, diskBytes: 400 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    const result = await sh(sandbox, "head -c 250000000 /dev/zero > /big && wc -c < /big && rm /big", { timeoutMs: 60_000 });
    expect(result).toMatchObject({ code: 0, out: "250000000\n", cause: null });
    expect((await sandbox.metrics()).limits.oom_killed).toBe(0);
  });

  limited("pids: a fork bomb is contained, named, and the machine goes on", "pids", { pids: 64 }, async (spec) => {
    const sandbox = await machine(spec);
    const counted = await sh(sandbox, "probe forks 500; echo over >&2");
    expect(counted).toMatchObject({ out: expect.stringMatching(/^made \d+ errno 11/), cause: "pids" });
    expect(Number(/made (\d+)/.exec(counted.out)?.[1])).toBeLessThan(64);
    const bomb = await sandbox.exec({ command: ["/bin/probe", "bomb"] });
    await sleep(500);
    // What the machine did to itself is a command that failed, not a failure of the machinery.
    const during = await sh(sandbox, "echo through");
    if (during.code !== 0) expect(during).toMatchObject({ out: "", cause: "pids" });
    await sandbox.killProcesses();
    await bomb.exit;
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
    expect((await sandbox.metrics()).limits.pids).toBeGreaterThan(0);
    expect((await sandbox.metrics()).pids).toBeLessThan(64);
  });

  limited("pids: killing a machine in the middle of a fork bomb", "pids", { pids: 200 }, async (spec) => {
    const sandbox = await machine(spec);
    await sandbox.exec({ command: ["/bin/probe", "bomb"] });
    await sleep(300);
    await sandbox.kill();
    expect(await sandbox.ended).toMatchObject({ reason: "killed" });
  });

  limited("disk: writes past the limit are ENOSPC inside, named, and no memory kill", "disk", { diskBytes: 32 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    const result = await sh(sandbox, "dd if=/dev/zero of=/big bs=65536 count=2000; echo rc=$?; wc -c < /big");
    expect(result.out).toMatch(/rc=1\n/);
    expect(result.err).toContain("No space left on device");
    expect(result.cause).toBe("disk_full");
    expect(Number(result.out.trim().split("\n").at(-1))).toBeLessThanOrEqual(32 * MiB);
    const { limits, diskBytes } = await sandbox.metrics();
    expect(limits).toMatchObject({ oom_killed: 0 });
    expect(limits.disk_full).toBeGreaterThan(0);
    expect(diskBytes).toBeGreaterThan(20 * MiB);
    // Room comes back when files go.
    expect(await sh(sandbox, "rm /big; echo x > /small; cat /small")).toMatchObject({ out: "x\n", cause: null });
    expect((await sh(sandbox, "for d in /tmp /var/tmp /root /home; do head -c 50000000 /dev/zero > $d/f 2>/dev/null && echo no limit in $d; rm -f $d/f; done")).out).toBe("");
  });

  limited("disk: many empty files and deep directories are bounded too", "disk", { diskBytes: 16 * MiB }, async (spec) => {
    const sandbox = await machine(spec);
    const result = await sh(sandbox, "i=0; while [ $i -lt 400 ]; do mkdir /d$i || break; j=0; while [ $j -lt 500 ]; do : > /d$i/$j || exit 9; j=$((j+1)); done; i=$((i+1)); done 2>/dev/null; echo $i");
    expect(result.code).not.toBe(0);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  limited("cpu: a quota holds", "cpu", { cpus: 0.2 }, async (spec) => {
    const sandbox = await machine(spec);
    const cpuMs = async (): Promise<number> => (await sandbox.metrics()).cpuMs ?? 0;
    const before = await cpuMs();
    const started = performance.now();
    await sandbox.exec({ command: "probe spin 100000 & probe spin 100000 & wait" });
    await until("the quota has been used for a while", async () => (await cpuMs()) - before > 500);
    const used = (await cpuMs()) - before;
    // 0.2 CPUs and a period or two, however long it took.
    expect(used).toBeLessThan(0.2 * (performance.now() - started) + 300);
  });

  test("metrics say what is used", async () => {
    const sandbox = await machine();
    const { isolation } = backend().capabilities;
    const hog = await sandbox.exec({ command: ["/bin/sh", "-c", "head -c 20000000 /dev/urandom > /f; x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 1000 & echo ready; wait"] });
    for await (const _ of hog.output) break;
    const metrics = await sandbox.metrics();
    if (isolation.enforced.memory) {
      expect(metrics.memoryBytes).toBeGreaterThan(10 * MiB);
      expect(metrics.memoryPeakBytes).toBeGreaterThanOrEqual(metrics.memoryBytes ?? 0);
    }
    if (isolation.enforced.disk) expect(metrics.diskBytes).toBeGreaterThan(19_000_000);
    if (isolation.enforced.pids) expect(metrics.pids).toBeGreaterThanOrEqual(3);
    if (isolation.enforced.cpu) expect(metrics.cpuMs).toBeGreaterThan(0);
    expect(metrics.limits).toEqual({ oom_killed: 0, pids: 0, disk_full: 0 });
    await hog.kill("SIGKILL");
    await until("the hog is gone", async () => (await pidsOf(sandbox, "sleep 1000")).length === 0);
  });

  test("limits that make no sense are refused before anything starts", async () => {
    for (const spec of [{ memoryBytes: -1 }, { memoryBytes: 1.5 }, { cpus: 0 }, { cpus: Number.NaN }, { pids: 0 }, { diskBytes: 10 }, { ttlMs: -5 }] as const) {
      await expect(machine(spec), JSON.stringify(spec)).rejects.toMatchObject({ code: "invalid_input" });
    }
  });
}

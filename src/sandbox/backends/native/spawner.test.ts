/** Real machines, made by the real spawner. They need root; the ordinary user's are in spawner-user.test.ts. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { PROGRAMS } from "../../../../test/support/native/bare-machine.ts";
import { MiB, NOTHING, alive, bare, base, create, get, nextEnd, options, prepared, sh, spare, spawnerTests, start, traces, until } from "../../../../test/support/native/spawner-fixture.ts";

spawnerTests();

describe("a machine", () => {
  test("is root over its own ids, files and processes, and over nothing else", async () => {
    await start();
    const created = await create({ id: "a", hostname: "box" });
    expect(created.uidBase).toBeGreaterThanOrEqual(1_000_000_000);
    const script = [
      "id -u; hostname; cat /proc/self/uid_map",
      "ls /proc | grep -c '^[0-9]'",
      "touch /f && chown 7:8 /f && stat -c '%u:%g' /f",
      "mount -t tmpfs x /tmp && echo MOUNTED; umount /dev && echo UNMOUNTED; mknod /n b 8 0 && echo MADE",
      "echo 1 > /proc/sys/kernel/panic && echo WROTE; hostname evil && echo RENAMED; echo x > /dev/.mw/init && echo WROTE",
      "cat /proc/self/status | head -60",
      "cat /proc/self/cgroup /proc/self/oom_score_adj",
    ].join("; ");
    const output = await sh("a", script);
    expect(output).toContain(`0\nbox\n         0 ${created.uidBase}      65536\n`);
    expect(output).toContain("7:8");
    expect(output).not.toMatch(/MOUNTED|UNMOUNTED|MADE|WROTE|RENAMED/);
    expect(output).toMatch(/CapBnd:\s+00000000a80425fb/);
    expect(output).toMatch(/NoNewPrivs:\s+1/);
    expect(output).not.toContain("manyworlds");
    expect(output).toMatch(/^500$/m);
    expect(readFileSync(`/proc/${get().hello.pid}/oom_score_adj`, "utf8")).not.toBe("500\n");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });

  test("has neighbours that it cannot see, with ids of their own", async () => {
    await start();
    const [one, two] = await Promise.all([create({ id: "a" }), create({ id: "b" })]);
    expect(Math.abs(one.uidBase - two.uidBase)).toBeGreaterThanOrEqual(65536);
    await sh("a", "echo secret > /secret; echo secret > /dev/shm/secret; echo secret > /tmp/secret");
    expect(await sh("b", "ls / /tmp /dev/shm")).not.toContain("secret");
    expect(readdirSync(bare.root)).not.toContain("secret");
  });

  test("cannot be left by its root, neither by climbing nor with a mount namespace of its own", async () => {
    await start();
    for (const profile of ["userns", "namespaces"] as const) {
      await create({ id: profile, profile });
      const output = await sh(profile, "/bin/escape");
      expect(output).toContain("tried");
      expect(output).not.toContain("ESCAPED");
      // The attempts must have been possible at all: no filter is loaded here.
      expect(output.match(/own namespace/g)).toHaveLength(4);
    }
  });

  test("listens on low ports", async () => {
    await start();
    await create({ id: "a" });
    expect(await sh("a", "echo hello | nc -l -p 80 & until nc 127.0.0.1 80 </dev/null; do sleep 0.1; done")).toContain("hello");
  });

  test("in the namespaces profile has no user namespace, and /proc is closed", async () => {
    await start();
    const created = await create({ id: "a", profile: "namespaces" });
    expect(created.uidBase).toBe(0);
    const output = await sh("a", "cat /proc/self/uid_map; echo 1 > /proc/sys/kernel/panic && echo WROTE; head -c 1 /proc/kcore | wc -c; touch /f && echo TOUCHED; head -c 1 /proc/keys | wc -c");
    expect(output).toContain("4294967295");
    expect(output).toContain("TOUCHED");
    expect(output).not.toContain("WROTE");
    expect(output.match(/^0$/gm)).toHaveLength(2);
  });

  test("refuses what does not make sense, and leaves nothing of it", async () => {
    await start();
    await expect(create({ id: "../x" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", layers: [] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", layers: ["/nowhere/at/all"] })).rejects.toMatchObject({ code: "not_found", message: expect.stringContaining("/nowhere/at/all") });
    await expect(create({ id: "a", workspace: "none" })).rejects.toMatchObject({ code: "not_found" });
    await expect(create({ id: "a", parts: [{ target: "/usr/../etc", layers: ["/usr"] }] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", services: [{ port: 80, target: "relative" }] })).rejects.toMatchObject({ code: "invalid_input" });
    await create({ id: "a" });
    await expect(create({ id: "a" })).rejects.toMatchObject({ code: "conflict" });
    await expect(get().metrics("b")).rejects.toMatchObject({ code: "sandbox_gone" });
    await get().kill("a");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });
});

describe("limits", () => {
  test("disk: a full scratch is ENOSPC, counted, and not the host's", async () => {
    await start();
    await create({ id: "a", diskBytes: 8 * MiB });
    expect(await sh("a", "dd if=/dev/zero of=/big bs=1M count=64")).toContain("No space left");
    const metrics = await get().metrics("a");
    expect(metrics.limits.disk_full).toBe(1);
    expect(metrics.diskBytes).toBeGreaterThan(7 * MiB);
    expect(metrics.diskBytes).toBeLessThanOrEqual(8 * MiB);
  });

  test("memory: files do not count, processes do", async () => {
    await start();
    await create({ id: "a", memoryBytes: 32 * MiB, diskBytes: 128 * MiB });
    expect(await sh("a", "dd if=/dev/zero of=/big bs=1M count=100 && echo WRITTEN")).toContain("WRITTEN");
    await sleep(200);
    expect((await get().metrics("a")).limits.oom_killed).toBe(0);
    // The kernel and the spawner may both see it: it dies once, and the shell that began it does not die for it.
    for (let i = 0; i < 8; i++) expect(await sh("a", "tail -c 100000000 /dev/zero; echo status $?")).toContain("status 137");
    expect((await get().metrics("a")).limits.oom_killed).toBeGreaterThan(0);
    expect(await sh("a", "echo ALIVE")).toContain("ALIVE");
  });

  test("processes: a fork bomb is held and counted", async () => {
    await start();
    await create({ id: "a", pids: 20 });
    const output = await sh("a", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 1000 </dev/null >/dev/null 2>&1 & done; echo done");
    expect(output).toMatch(/can't fork|Resource temporarily/i);
    const ended = nextEnd("a");
    await get().kill("a");
    expect((await ended).limits.pids).toBeGreaterThan(0);
    expect(traces()).toEqual(NOTHING);
  });

  test("cpu: a quota holds", async () => {
    await start();
    await create({ id: "a", cpus: 0.2 });
    void sh("a", "while true; do :; done").catch(() => undefined);
    const started = performance.now();
    const used = async (): Promise<number> => Number((await get().metrics("a")).cpuMs);
    await until(async () => (await used()) > 300, "it has used some time");
    expect(await used()).toBeLessThan(0.2 * (performance.now() - started) + 300);
  });
});

describe("the end of a machine", () => {
  test("a frozen machine stands still, thaws, and can be killed frozen", async () => {
    await start();
    await create({ id: "a" });
    void sh("a", "while true; do echo x >> /ticks; sleep 0.01; done").catch(() => undefined);
    const ticks = async (): Promise<number> => Number((await get().metrics("a")).cpuMs);
    await until(async () => (await ticks()) > 0, "it ticks");
    await get().freeze("a");
    const before = await ticks();
    await sleep(150);
    expect(await ticks()).toBe(before);
    await get().thaw("a");
    await until(async () => (await ticks()) > before, "it ticks again");
    await get().freeze("a");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });

  test("a lease that is not renewed ends it; a renewed one does not", async () => {
    await start();
    await create({ id: "short", ttlMs: 60_000 });
    await create({ id: "long", ttlMs: 3000 });
    expect(await get().renew(["long", "nobody"], 600_000)).toEqual(["nobody"]);
    const ended = nextEnd("short");
    expect(await get().renew(["short"], 150)).toEqual([]);
    expect((await ended).reason).toBe("expired");
    await sleep(3000);
    expect((await get().list()).running).toEqual(["long"]);
  });

  test("an init that ends is reported as died", async () => {
    await start();
    const { pid } = await create({ id: "a" });
    const ended = nextEnd("a");
    process.kill(pid, "SIGKILL");
    expect((await ended).reason).toBe("died");
    expect(traces()).toEqual(NOTHING);
  });

  test("those made beforehand that were killed are given to nobody", async () => {
    await start();
    await prepared();
    const records = readdirSync(options.runDirectory).filter(spare).map((name) => readFileSync(join(options.runDirectory, name, "record"), "utf8"));
    const pids = records.map((record) => Number(record.split(" ")[0]));
    expect(pids).toHaveLength(16);
    for (const pid of pids) process.kill(pid, "SIGKILL");
    await until(() => pids.every((pid) => !alive(pid)), "they are gone");
    // Some are made now, one after the other, with others beside them.
    const ids = Array.from({ length: 20 }, (_, i) => `m${i}`);
    await Promise.all(ids.map((id) => create({ id, hostname: id })));
    expect(await Promise.all(ids.map((id) => sh(id, "hostname")))).toEqual(ids.map((id) => `${id}\n`));
    await Promise.all(ids.map((id) => get().kill(id)));
    await prepared();
    expect(traces()).toEqual(NOTHING);
  });

  test("200 machines leave nothing, neither in the spawner", async () => {
    await start();
    const open = (): number => readdirSync(`/proc/${get().hello.pid}/fd`).length;
    await create({ id: "warm" });
    await get().kill("warm");
    await prepared();
    const before = open();
    const mounts = (): string[] =>
      readFileSync(`/proc/${get().hello.pid}/mountinfo`, "utf8")
        .split("\n")
        .filter((line) => line.includes(options.runDirectory) && !spare(/\/([^/ ]+)\/s /.exec(line)?.[1] ?? ""));
    expect(mounts()).toEqual([]);
    for (let i = 0; i < 200; i++) {
      await create({ id: `m${i}`, memoryBytes: 64 * MiB, services: [{ port: 8080, target: "/tmp/none" }] });
      await get().kill(`m${i}`);
    }
    await prepared();
    expect(open()).toBe(before);
    expect(mounts()).toEqual([]);
    expect(traces()).toEqual(NOTHING);
    await get().close();
    expect(traces()).toEqual(NOTHING);
    expect(existsSync(options.runDirectory)).toBe(false);
  });
});

test("a host without descriptors refuses machines, loses none, and makes some again when there are", async () => {
  await start();
  await get().close();
  const program = join(base, "few-files");
  writeFileSync(program, `#!/bin/sh\nulimit -n 1024\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
  await start({ program });
  const made: string[] = [];
  const codes = new Set<string>();
  // What waits ready-made is given up with a failed creation, so the first failure need not be the last creation.
  for (let i = 0, failures = 0; failures < 20; i++) {
    expect(i).toBeLessThan(500);
    try {
      await create({ id: `m${i}` });
      made.push(`m${i}`);
      failures = 0;
    } catch (error) {
      codes.add((error as { readonly code: string }).code);
      failures++;
    }
  }
  expect([...codes]).toEqual(["host_exhausted"]);
  expect(made.length).toBeGreaterThan(100);
  for (const id of made.slice(0, 10)) await get().kill(id);
  for (let i = 0; i < 5; i++) await create({ id: `again${i}` });
  expect(await sh("again4", "echo ok")).toBe("ok\n");
  expect(await sh(made.at(-1) ?? "", "echo ok")).toBe("ok\n");
});

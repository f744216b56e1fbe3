/** What outlives a machine of the real spawner, and what does not: sealed workspaces, and whoever dies. */
import { spawn as spawnProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { describe, expect, test } from "vitest";
import { PROGRAMS } from "../../../../test/support/native/bare-machine.ts";
import { NOTHING, alive, bare, base, create, get, options, sh, spawnerTests, start, traces, until } from "../../../../test/support/native/spawner-fixture.ts";
import { Spawner } from "./spawner.ts";

spawnerTests();

describe("sealed workspaces", () => {
  test("hold the files and start the next machine, under other ids", async () => {
    await start();
    const first = await create({ id: "a" });
    await sh("a", "mkdir /work; echo one > /work/f; chown 7:8 /work/f; rm /etc -r; ls -ln /work");
    expect((await get().seal("a")).bytes).toBeGreaterThan(0);
    expect(traces().processes).toEqual([]);
    expect((await get().list()).sealed).toEqual(["a"]);
    const second = await create({ id: "b", workspace: "a" });
    expect(second.uidBase).not.toBe(first.uidBase);
    expect(await sh("b", "cat /work/f; stat -c '%u:%g' /work/f; ls /; echo two > /work/f; cat /work/f")).toMatch(/one\n7:8\n[^]*two/);
    const third = create({ id: "c", workspace: "a" });
    await third;
    expect(await sh("c", "cat /work/f")).toBe("one\n");
    await get().releaseWorkspace("a");
    await expect(get().releaseWorkspace("a")).rejects.toMatchObject({ code: "sandbox_gone" });
    expect(await sh("b", "cat /work/f")).toBe("two\n");
    await get().seal("b");
    await create({ id: "d", workspace: "b" });
    expect(await sh("d", "cat /work/f")).toBe("two\n");
    for (const id of ["c", "d"]) await get().kill(id);
    await get().releaseWorkspace("b");
    expect(traces()).toEqual(NOTHING);
  });

  test("with a link on the way to a part's place do not show the host's files there", async () => {
    await start();
    mkdirSync(join(base, "secret", "inside"), { recursive: true });
    writeFileSync(join(base, "secret", "inside", "marker"), "the host's\n");
    await create({ id: "a" });
    await sh("a", `ln -s ${join(base, "secret")} /deep`);
    await get().seal("a");
    await create({ id: "b", workspace: "a", parts: [{ target: "/deep/inside", layers: [join(bare.root, "bin")] }] });
    const seen = await sh("b", "ls /deep/inside");
    expect(seen).toContain("busybox");
    expect(seen).not.toContain("marker");
    await get().kill("b");
    await get().releaseWorkspace("a");
  });
});

describe("deaths", () => {
  test("the controller's end of file ends every machine and the spawner", async () => {
    await start();
    const pids = await Promise.all(["a", "b", "c"].map(async (id) => (await create({ id })).pid));
    await get().seal("c");
    await get().close();
    expect(pids.filter(alive)).toEqual([]);
    expect(traces()).toEqual(NOTHING);
    expect(existsSync(options.runDirectory)).toBe(false);
  });

  test("a controller that closes ends its machines, whatever grace they would have had without one", async () => {
    await start({ graceMs: 4000 });
    const { pid } = await create({ id: "a" });
    await get().close();
    expect(alive(pid)).toBe(false);
    expect(traces()).toEqual(NOTHING);
  });

  test("kill -9 of the spawner ends the machines; the next one sweeps and counts on", async () => {
    await start();
    const pids = await Promise.all(["a", "b"].map(async (id) => (await create({ id })).pid));
    await create({ id: "w" });
    await get().seal("w");
    const { epoch, pid } = get().hello;
    process.kill(pid, "SIGKILL");
    await get().exited;
    await expect(create({ id: "d" })).rejects.toMatchObject({ code: "sandbox_failed" });
    await until(() => pids.filter(alive).length === 0, "the machines are dead");
    await start();
    expect(get().hello.epoch).toBe(epoch + 1);
    expect(traces()).toEqual(NOTHING);
    await create({ id: "a" });
    expect(await sh("a", "echo ok")).toBe("ok\n");
  });

  test("machines that survive their spawner are swept", async () => {
    await start();
    const { pid } = await create({ id: "a" });
    // A stopped init cannot see the end of its lifeline.
    process.kill(pid, "SIGSTOP");
    process.kill(get().hello.pid, "SIGKILL");
    await get().exited;
    expect(alive(pid)).toBe(true);
    await start();
    expect(alive(pid)).toBe(false);
    expect(traces()).toEqual(NOTHING);
  });

  test("a killed spawner is over although what it left behind holds its stderr", async () => {
    const place = mkdtempSync(join(tmpdir(), "mw-holder-"));
    const program = join(place, "spawn");
    writeFileSync(program, `#!/bin/sh\nsleep 300 &\necho $! >${place}/pid\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
    await start({ program });
    const holder = Number(readFileSync(join(place, "pid"), "utf8"));
    try {
      process.kill(get().hello.pid, "SIGKILL");
      await get().exited;
      expect(alive(holder)).toBe(true);
    } finally {
      process.kill(holder, "SIGKILL");
      rmSync(place, { recursive: true, force: true });
    }
  });

  test("SIGTERM ends it in order", async () => {
    await start();
    await create({ id: "a" });
    process.kill(get().hello.pid, "SIGTERM");
    await get().exited;
    expect(traces()).toEqual(NOTHING);
  });

  test("a second spawner of the same data directory is told who is there", async () => {
    await start();
    const { pid } = get().hello;
    await expect(Spawner.start(options)).rejects.toMatchObject({ code: "busy", facts: { pid } });
    await create({ id: "a" });
  });

  test("garbage on its socket ends the connection and nothing worse", async () => {
    await start();
    for (const garbage of ["ffffffff0102", "0b00000001010000000100ffffff7f", "00000000", "0400000001000000"]) {
      const flags = ["--data", join(base, "other"), "--run", "/run/manyworlds/garbage", "--init", bare.init];
      const child = spawnProcess(PROGRAMS.spawn, flags, { stdio: ["ignore", "ignore", "pipe", "pipe"] });
      const channel = child.stdio[3] as Duplex;
      await once(channel, "data");
      channel.on("error", () => undefined).write(Buffer.from(garbage, "hex"));
      const [code] = await once(child, "exit");
      expect(code).toBe(0);
    }
  });
});

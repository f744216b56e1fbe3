/** Birth by key, leases, freezing, the ends that a machine can come to, and that nothing of it is left. */
import { expect, test } from "vitest";
import { newId } from "../../../src/core/ids.ts";
import { systemRuntime } from "../../../src/core/runtime.ts";
import { fixture, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function lifeSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const layered = having("layers", async () => {
    await expect(machine({ layers: [{ path: options.scratch() }] })).rejects.toMatchObject({ code: "unsupported" });
  });

  test("two creates with one key are one machine while it lives, and another afterwards", async () => {
    const [one, two] = await Promise.all([machine({ key: "k1" }), machine({ key: "k1" })]);
    expect(one.id).toBe(two.id);
    expect((await machine({ key: "k1" })).id).toBe(one.id);
    expect((await machine({ key: "k2" })).id).not.toBe(one.id);
    await one.kill();
    expect((await machine({ key: "k1" })).id).not.toBe(one.id);
  });

  test("a create that failed does not hold its key", async () => {
    await expect(machine({ key: "k3", workspace: { id: newId("sbx", systemRuntime) } })).rejects.toMatchObject({ code: "sandbox_gone" });
    expect((await sh(await machine({ key: "k3" }), "echo up")).out).toBe("up\n");
  });

  test("list and get know the living, with their labels", async () => {
    const sandbox = await machine({ labels: { task: "demo" } });
    const listed = (await backend().list()).find((entry) => entry.id === sandbox.id);
    expect(listed?.labels).toEqual({ task: "demo" });
    expect(Math.abs((listed?.createdAt ?? 0) - Date.now())).toBeLessThan(60_000);
    expect(backend().get(sandbox.id)).toBe(sandbox);
    await sandbox.kill();
    expect((await backend().list()).some((entry) => entry.id === sandbox.id)).toBe(false);
    expect(backend().get(sandbox.id)).toBeNull();
  });

  test("kill is idempotent, from several sides at once, and says why it ended", async () => {
    const sandbox = await machine();
    await Promise.all([sandbox.kill(), sandbox.kill()]);
    await sandbox.kill();
    expect(await sandbox.ended).toMatchObject({ reason: "killed", limits: { oom_killed: 0, pids: 0, disk_full: 0 } });
    await expect(sandbox.metrics()).rejects.toMatchObject({ code: "sandbox_gone" });
    await expect(sandbox.freeze()).rejects.toMatchObject({ code: "sandbox_gone" });
    await expect(sandbox.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await expect(sandbox.renew(5000)).rejects.toMatchObject({ code: "sandbox_gone" });
  });

  test("a lease that nobody renews ends the machine; its owner's renewing keeps it, and so does the backend's while its controller lives", async () => {
    // Longer than a busy host stands still.
    const LEASE_MS = 10_000;
    const [short, kept, own] = [await machine({ ttlMs: 60_000 }), await machine({ ttlMs: 60_000 }), await machine({ ttlMs: LEASE_MS })];
    await short.renew(1000);
    await kept.renew(LEASE_MS);
    await kept.renew(300_000);
    expect(await short.ended).toMatchObject({ reason: "expired" });
    await sleep(LEASE_MS + 2000);
    for (const sandbox of [kept, own]) expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
    await expect(short.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_gone" });
  });

  test("freeze stops everything inside, thaw goes on, kill works on a frozen one", async (context) => {
    const sandbox = await machine();
    if (!backend().capabilities.freeze) {
      await expect(sandbox.freeze()).rejects.toMatchObject({ code: "unsupported" });
      await context.annotate("no freezer here: asserted as refused");
      return;
    }
    const ticking = await sandbox.exec({ command: "while :; do echo t; sleep 0.02; done" });
    let ticks = 0;
    const reading = (async () => {
      for await (const { data } of ticking.output) ticks += text(data).length;
    })();
    await until("it ticks", () => ticks > 0);
    await sandbox.freeze();
    await sandbox.freeze();
    let frozen = -1;
    await until("what was on its way has arrived", async () => {
      frozen = ticks;
      await sleep(500);
      return frozen === ticks;
    });
    await sleep(500);
    expect(ticks).toBe(frozen);
    await sandbox.thaw();
    await sandbox.thaw();
    await until("it ticks again", () => ticks > frozen);
    await sandbox.freeze();
    await sandbox.kill();
    await reading.catch(() => null);
    expect((await ticking.exit).ended).toBe("lost");
  });

  test("init is not to be killed from inside", async (context) => {
    const sandbox = await machine();
    const killing = sh(sandbox, "kill -9 1; kill -TERM 1; kill -SEGV 1; kill -9 -1; true");
    if (backend().capabilities.guarded) await killing;
    else {
      // Then it is another one that answers; what was under way is an error, never a result.
      await killing.catch((error: unknown) => expect(error).toMatchObject({ code: "sandbox_failed" }));
      await context.annotate(`not guarded: ${backend().capabilities.missing["guarded"]}`);
    }
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  test("impossible wishes are refused with what, where and why", async () => {
    const root = options.root();
    await expect(machine({ root: { ...root, layers: ["/no/such/layer"] } })).rejects.toMatchObject({ code: expect.stringMatching(/invalid_/), message: expect.stringContaining("/no/such/layer") });
    await expect(machine({ root: { ...root, layers: [] } })).rejects.toMatchObject({ code: expect.stringMatching(/invalid_/) });
    await expect(machine({ root: { ...root, layers: ["relative"] } })).rejects.toMatchObject({ code: expect.stringMatching(/invalid_/) });
    await expect(machine({ hostname: "a b" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(machine({ env: { "A=B": "x" } })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(machine({ user: "no-such-user" }).then((sandbox) => sandbox.run({ command: "true" }))).rejects.toMatchObject({ code: expect.stringMatching(/invalid_input|unsupported/) });
  });

  layered("odd layer paths: commas, colons, backslashes, spaces", async () => {
    const { mkdtempSync, mkdirSync, writeFileSync, chmodSync } = await import("node:fs");
    const { join } = await import("node:path");
    const base = mkdtempSync(join(options.scratch(), "odd-"));
    chmodSync(base, 0o755);
    const path = join(base, "a,b:c\\d e=f");
    mkdirSync(path);
    chmodSync(path, 0o755);
    writeFileSync(join(path, "from-odd"), "odd");
    expect((await sh(await machine({ layers: [{ path }] }), "cat /from-odd")).out).toBe("odd");
  });

  test("a hundred in a row, ten at a time", async () => {
    for (let round = 0; round < 10; round++) {
      const sandboxes = await Promise.all(Array.from({ length: 10 }, () => machine()));
      expect(new Set(sandboxes.map((sandbox) => sandbox.id)).size).toBe(10);
      const outs = await Promise.all(sandboxes.map((sandbox, i) => sh(sandbox, `echo ${i} > /mine; cat /mine`)));
      outs.forEach(({ out }, i) => expect(out).toBe(`${i}\n`));
      await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    }
  });
}

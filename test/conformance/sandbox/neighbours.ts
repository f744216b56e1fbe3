/** Two machines from one image, side by side: neither sees anything of the other. */
import { expect, test } from "vitest";
import { fixture, sh, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function neighbourSuite(options: ConformanceOptions): void {
  const { machine, backend } = fixture(options);

  test("files, also in what looks shared", async () => {
    const [a, b] = [await machine(), await machine()];
    await sh(a, "for d in / /tmp /dev/shm /var/tmp /root /run /etc /home/agent; do echo secret > $d/of-a 2>/dev/null; done; echo x > /etc/marker");
    expect((await sh(b, "find / -xdev -name of-a 2>/dev/null; ls /dev/shm /run /tmp; cat /etc/marker")).out.replaceAll(/^\/.*:\n|^\n/gm, "")).toBe("image\n");
    expect((await sh(b, "ls /dev/shm/of-a /run/of-a /tmp/of-a")).out).toBe("");
  });

  test("processes", async () => {
    const [a, b] = [await machine(), await machine()];
    await sh(a, "setsid sleep 4242 >/dev/null 2>&1 &");
    expect((await sh(b, "ps; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).out).not.toContain("4242");
    // Its own machinery and the command itself: far from what a host runs.
    expect(Number((await sh(b, "ls -d /proc/[0-9]* | wc -l")).out)).toBeLessThan(backend().capabilities.guarded ? 8 : 14);
    await sh(b, "for p in $(seq 2 300); do kill -9 $p 2>/dev/null; done; true").catch(() => null);
    expect((await sh(a, "ps")).out).toContain("4242");
  });

  test("ports, abstract sockets", async () => {
    const [a, b] = [await machine(), await machine()];
    await a.exec({ command: "while :; do echo of-a | nc -l -p 7100; done" });
    await a.exec({ command: ["/bin/probe", "listen-abstract", "meet"] });
    await until("both listen", async () => (await sh(a, "nc -w 2 127.0.0.1 7100 < /dev/null")).out === "of-a\n" && (await sh(a, ["/bin/probe", "abstract", "meet"])).out === "ok 0\n");
    expect((await sh(b, "nc -w 1 127.0.0.1 7100 < /dev/null")).out).toBe("");
    expect((await sh(b, ["/bin/probe", "abstract", "meet"])).out).toBe("errno 111\n");
  });

  test("System V and POSIX objects, key rings", async () => {
    const [a, b] = [await machine(), await machine()];
    const holder = await a.exec({ command: ["/bin/probe", "shm", "4711", "of-a"] });
    await until("the segment is there", async () => (await sh(a, ["/bin/probe", "shm", "4711"])).out === "shm of-a\n");
    expect((await sh(b, ["/bin/probe", "shm", "4711"])).out).toBe("errno 2\n");
    expect((await sh(b, "tail -n +2 /proc/sysvipc/shm | wc -l")).out.trim()).toBe("0");
    await holder.kill("SIGKILL");
    // add_key and keyctl answer as a kernel without key rings.
    const [addKey, keyctl] = process.arch === "arm64" ? ["217", "219"] : ["248", "250"];
    expect((await sh(a, ["/bin/probe", "sys", addKey, "s:user", "s:mw", "s:secret", "6", "0xfffffffd"])).out).toBe("errno 38\n");
    expect((await sh(b, ["/bin/probe", "sys", keyctl, "0", "0xfffffffd", "0"])).out).toBe("errno 38\n");
    // Nothing but an empty session ring of its own.
    expect((await sh(b, "grep -v ' _ses: empty$' /proc/keys")).out).toBe("");
  });

  test("host names, and what the kernel tells of others", async () => {
    const named = backend().capabilities.hostname;
    if (!named) await expect(machine({ hostname: "alpha" })).rejects.toMatchObject({ code: "unsupported" });
    const [a, b] = [await machine(named ? { hostname: "alpha" } : {}), await machine(named ? { hostname: "beta" } : {})];
    if (named) expect((await sh(a, "hostname")).out).toBe("alpha\n");
    if (named) expect((await sh(b, "hostname")).out).toBe("beta\n");
    const { out } = await sh(b, "cat /proc/self/mountinfo /proc/self/cgroup /proc/mounts 2>/dev/null");
    expect(out).not.toContain(a.id);
    expect(out).not.toContain(b.id);
  });
}

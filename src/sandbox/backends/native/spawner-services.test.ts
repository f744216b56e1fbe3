/** What machines of the real spawner are connected to: ports that lead out, public networks. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import { PROGRAMS } from "../../../../test/support/native/bare-machine.ts";
import { MiB, NOTHING, base, create, get, nextEnd, outsideAddresses, sh, slirps, spawnerTests, start, traces, until } from "../../../../test/support/native/spawner-fixture.ts";

spawnerTests();

describe("services", () => {
  const servers: Server[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) server.close();
  });

  function target(name: string, onConnection: Parameters<typeof createServer>[1]): Promise<string> {
    const path = join(base, name);
    return new Promise((resolve) => {
      const server = createServer({ allowHalfOpen: true }, onConnection);
      servers.push(server);
      server.listen(path, () => resolve(path));
    });
  }

  test("carry bytes both ways, name the machine, and keep half-closed directions open", async () => {
    await start();
    const seen: string[] = [];
    const path = await target("echo.sock", (socket) => {
      let text = "";
      socket.setEncoding("utf8");
      socket.on("data", (chunk: string) => {
        text += chunk;
      });
      socket.on("error", () => undefined);
      socket.on("end", () => {
        seen.push(text.slice(0, text.indexOf("\n")));
        socket.end(`got ${text.length - text.indexOf("\n") - 1}\n`);
      });
    });
    await create({ id: "a", services: [{ port: 8080, target: path }, { port: 81, target: path }] });
    expect(await sh("a", "head -c 3000000 /dev/zero | nc 127.0.0.1 8080; echo x | nc 127.0.0.1 81")).toBe("got 3000000\ngot 2\n");
    expect(seen).toEqual(["MW1 a 8080", "MW1 a 81"]);
  });

  test("a slow reader inside holds the sender back, and a machine's end closes its connections", async () => {
    await start();
    let sent = 0;
    const state = { closed: false };
    const path = await target("flood.sock", (socket) => {
      const chunk = Buffer.alloc(65536, 120);
      const pump = (): void => {
        while (!state.closed && socket.write(chunk)) sent += chunk.length;
      };
      socket.on("drain", pump);
      socket.on("error", () => undefined);
      socket.on("close", () => {
        state.closed = true;
      });
      socket.resume();
      pump();
    });
    await create({ id: "a", services: [{ port: 8080, target: path }] });
    void sh("a", "nc 127.0.0.1 8080 | sleep 100").catch(() => undefined);
    await until(() => sent > 0, "bytes flow");
    let before = -1;
    await until(async () => {
      const same = before === sent;
      before = sent;
      await sleep(500);
      return same && before === sent;
    }, "the buffers are full");
    expect(sent).toBeLessThan(32 * MiB);
    await get().kill("a");
    await until(() => state.closed, "the connection is closed");
    expect(traces()).toEqual(NOTHING);
  });

  test("machines that hold all the connections they get leave neighbours theirs, and files to make machines with", async () => {
    const program = join(base, "few-files");
    writeFileSync(program, `#!/bin/sh\nulimit -n 1024\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
    await start({ program });
    const held = new Map<string, number>();
    const path = await target("held.sock", (socket) => {
      socket.on("error", () => undefined);
      socket.once("data", (line: Buffer) => {
        const machine = line.toString().split(" ")[1] ?? "";
        held.set(machine, (held.get(machine) ?? 0) + 1);
        if (machine === "neighbour") socket.end("served\n");
      });
    });
    const services = [{ port: 8080, target: path }];
    const greedy = ["a", "b", "c", "d"];
    for (const id of greedy) {
      await create({ id, services });
      void sh(id, "i=0; while [ $i -lt 300 ]; do sleep 1000 | nc 127.0.0.1 8080 & i=$((i+1)); done; touch /asked; wait").catch(() => undefined);
    }
    for (const id of greedy) await sh(id, "while ! test -e /asked; do sleep 0.1; done");
    await until(() => greedy.every((id) => (held.get(id) ?? 0) >= 16), "each has what it is assured of");
    await create({ id: "neighbour", services });
    for (let round = 0; round < 20; round++) expect(await sh("neighbour", "echo x | nc 127.0.0.1 8080")).toBe("served\n");
    const all = greedy.reduce((sum, id) => sum + (held.get(id) ?? 0), 0);
    expect(all).toBeLessThanOrEqual(128 + 4 * 16);
  });

  test("a target that is not there is a reset, not a hang", async () => {
    await start();
    await create({ id: "a", services: [{ port: 8080, target: "/tmp/nobody-listens-here" }] });
    expect(await sh("a", "echo x | nc 127.0.0.1 8080; echo over")).toContain("over");
  });
});

describe("a public network", () => {
  const slirp = ["/usr/bin/slirp4netns", "/usr/local/bin/slirp4netns"].find((path) => existsSync(path));

  test("is up when creation is answered, reaches the host's addresses but not its loopback, and ends with the machine", async () => {
    expect(slirp, "apt-get install slirp4netns").toBeDefined();
    await start({ slirp: slirp ?? "" });
    expect(get().hello.publicNetwork).toBe(true);
    const server = createServer((socket) => socket.on("error", () => undefined).end("hello from outside\n"));
    const port = await new Promise<number>((resolve) => server.listen(0, "0.0.0.0", () => resolve((server.address() as AddressInfo).port)));
    try {
      await create({ id: "a", network: "public" });
      const output = await sh("a", `ip addr show tap0; cat /etc/resolv.conf; nc -w 2 10.0.2.2 ${port} </dev/null || echo LOOPBACK-REFUSED`);
      expect(output).toContain("inet 10.0.2.100/24");
      expect(output).toContain("nameserver 10.0.2.3");
      expect(output).not.toContain("hello from outside");
      for (const address of outsideAddresses()) expect(await sh("a", `nc -w 60 ${address} ${port} </dev/null`)).toBe("hello from outside\n");
      expect(slirps()).toHaveLength(1);
      await get().kill("a");
      expect(slirps()).toEqual([]);
      expect(traces().files).toEqual(["resolv.conf"]);
    } finally {
      server.close();
    }
  });

  test("that breaks ends the machine, which was promised one", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a", network: "public" });
    const ended = nextEnd("a");
    expect(slirps()).toHaveLength(1);
    for (const pid of slirps()) process.kill(pid, "SIGKILL");
    expect((await ended).reason).toBe("lost");
  });

  test("starts whatever a workspace has for its resolver's configuration", async () => {
    await start({ slirp: slirp ?? "" });
    for (const [index, made] of ["ln -s /dev/null /etc/resolv.conf", "ln -s /dev/.mw/init /etc/resolv.conf", "ln -s /proc/1/comm /etc/resolv.conf", "mkdir /etc/resolv.conf", "ln -s resolv.conf /etc/resolv.conf", "mv /etc /gone; touch /etc"].entries()) {
      await create({ id: `a${index}` });
      await sh(`a${index}`, `rm -rf /etc/resolv.conf; ${made}`);
      await get().seal(`a${index}`);
      await create({ id: `b${index}`, workspace: `a${index}`, network: "public" });
      expect(await sh(`b${index}`, "echo ALIVE > /dev/null; echo ALIVE"), made).toBe("ALIVE\n");
      await get().kill(`b${index}`);
      await get().releaseWorkspace(`a${index}`);
    }
  });

  test("is carried by a process that has given up the host's files and root's power", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a", network: "public" });
    const [pid] = slirps();
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    expect(BigInt(`0x${/^CapEff:\s*(\w+)/m.exec(status)?.[1]}`) & ~0x400n).toBe(0n);
    expect(status).toMatch(/^Seccomp:\s*2$/m);
    expect(existsSync(`/proc/${pid}/root/usr`)).toBe(false);
  });

  test("is refused without slirp4netns, with the command that installs it", async () => {
    await start();
    expect(get().hello.missing["public"]).toContain("apt-get install slirp4netns");
    await expect(create({ id: "a", network: "public" })).rejects.toMatchObject({ code: "unsupported" });
  });

  test("none: there is only loopback", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a" });
    expect(await sh("a", "ip link | grep -c mtu; nc -w 1 10.0.2.2 80 </dev/null || echo UNREACHABLE")).toMatch(/^1\n[^]*UNREACHABLE/);
  });
});

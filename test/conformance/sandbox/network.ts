/** `none`: loopback and declared services, nothing else of the world. `allowlist`: listed hosts through a proxy besides. `public`: out, but not to the host. */
import { createServer, type Server, type Socket } from "node:net";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test, type TestContext } from "vitest";
import type { Sandbox } from "../../../src/sandbox/sandbox.ts";
import { fixture, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function networkSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const served = having("services", async () => {
    await expect(machine({ services: [{ port: 80, target: "/nowhere" }] })).rejects.toMatchObject({ code: "unsupported" });
  });
  const servers: { server: Server; sockets: Set<Socket> }[] = [];
  afterEach(async () => {
    for (const { server, sockets } of servers.splice(0)) {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    }
  });
  async function listen(where: string | { port: number; host: string }, onConnection: (socket: Socket) => void): Promise<Server> {
    const sockets = new Set<Socket>();
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      sockets.add(socket);
      socket.on("error", () => sockets.delete(socket));
      onConnection(socket);
    });
    await new Promise<void>((resolve, reject) => server.once("error", reject).listen(where, resolve));
    servers.push({ server, sockets });
    return server;
  }
  let counter = 0;
  const socketPath = (): string => join(options.scratch(), `s${counter++}.sock`);

  test("none: loopback works, in both families, and is the only interface", async () => {
    const sandbox = await machine({ network: "none" });
    expect((await sh(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")).out.trim()).toBe("lo");
    expect((await sh(sandbox, "echo hello > /tmp/hello; (nc -l -p 7001 < /tmp/hello >/dev/null &) ; until nc -w 60 127.0.0.1 7001 < /dev/null; do sleep 0.1; done")).out).toBe("hello\n");
    expect((await sh(sandbox, "ping -c 1 -W 1 127.0.0.1 >/dev/null 2>&1; cat /proc/net/if_inet6")).out).toMatch(/^(0{31}1 .* lo\n)?$/);
  });

  test("none: no way out, by address, name or broadcast", async () => {
    const sandbox = await machine({ network: "none" });
    const addresses = Object.values(networkInterfaces()).flat().filter((entry) => entry?.family === "IPv4" && !entry.internal).map((entry) => entry?.address ?? "");
    for (const address of ["8.8.8.8", "169.254.169.254", "10.0.2.2", "192.168.0.1", "255.255.255.255", ...addresses]) {
      const { code } = await sh(sandbox, `nc -w 1 ${address} 80 < /dev/null`);
      expect(code, address).not.toBe(0);
    }
    expect((await sh(sandbox, "tail -n +2 /proc/net/route | grep -v '^lo'")).out).toBe("");
  });

  test("none: the host's loopback ports and abstract sockets are others", async () => {
    const hits: string[] = [];
    const tcp = await listen({ port: 0, host: "127.0.0.1" }, (socket) => {
      hits.push("tcp");
      socket.end("host\n");
    });
    const address = tcp.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    await listen("\0mw-conformance", (socket) => {
      hits.push("abstract");
      socket.end("host\n");
    });
    const sandbox = await machine({ network: "none" });
    expect((await sh(sandbox, `nc -w 1 127.0.0.1 ${port} < /dev/null`)).out).toBe("");
    expect((await sh(sandbox, ["/bin/probe", "abstract", "mw-conformance"])).out).toBe("errno 111\n");
    expect(hits).toEqual([]);
  });

  served("a declared service reaches the controller, which is told who asks", async () => {
    const target = socketPath();
    const firsts: string[] = [];
    await listen(target, (socket) => {
      let data = "";
      socket.on("data", (chunk: Buffer) => {
        const before = data.includes("\n");
        data += chunk.toString("latin1");
        if (!before && data.includes("\n")) firsts.push(data.slice(0, data.indexOf("\n")));
        if (data.includes("ping")) socket.end("pong\n");
      });
    });
    const [one, two] = [await machine({ services: [{ port: 8080, target }] }), await machine({ services: [{ port: 8080, target }, { port: 9090, target }] })];
    expect((await sh(one, "echo ping | nc -w 60 127.0.0.1 8080")).out).toBe("pong\n");
    expect((await sh(two, "echo ping | nc -w 60 127.0.0.1 8080; echo ping | nc -w 60 127.0.0.1 9090")).out).toBe("pong\npong\n");
    expect(firsts).toEqual([`MW1 ${one.id} 8080`, `MW1 ${two.id} 8080`, `MW1 ${two.id} 9090`]);
    // Not declared, not there.
    expect((await sh(one, "echo ping | nc -w 1 127.0.0.1 9090")).code).not.toBe(0);
  });

  served("a service moves a lot both ways, keeps half-open connections, and survives a target that is away", async () => {
    const target = socketPath();
    const sandbox = await machine({ services: [{ port: 8080, target }] });
    // Nobody listens yet: a clean end, not a hang.
    expect((await sh(sandbox, "echo x | nc -w 5 127.0.0.1 8080; echo over")).out).toBe("over\n");
    await listen(target, (socket) => {
      let seen = 0;
      socket.on("data", (chunk: Buffer) => (seen += chunk.length));
      socket.on("end", () => {
        socket.write(Buffer.alloc(5_000_000, "y"));
        socket.end(`${seen}`);
      });
    });
    const { out } = await sh(sandbox, "head -c 5000000 /dev/zero | nc -w 100 127.0.0.1 8080 | tail -c 7");
    // The preface is one line before the client's bytes.
    expect(Number(out)).toBe(5_000_000 + `MW1 ${sandbox.id} 8080\n`.length);
  });

  served("a client that floods or stalls a service does not hurt another machine's", async () => {
    const target = socketPath();
    await listen(target, (socket) => {
      socket.on("data", (chunk: Buffer) => {
        if (chunk.includes("ping")) socket.end("pong\n");
      });
    });
    const [bad, good] = [await machine({ services: [{ port: 80, target }] }), await machine({ services: [{ port: 80, target }] })];
    await bad.exec({ command: "i=0; while [ $i -lt 300 ]; do (sleep 20 | nc 127.0.0.1 80 >/dev/null &); i=$((i+1)); done; sleep 20" });
    await sleep(1000);
    expect((await sh(good, "echo ping | nc -w 60 127.0.0.1 80")).out).toBe("pong\n");
  });

  served("a killed machine's service connections end", async () => {
    const target = socketPath();
    let closed = false;
    const connected = new Promise<void>((resolve) => {
      void listen(target, (socket) => {
        resolve();
        socket.on("data", () => null);
        socket.on("end", () => socket.end());
        socket.on("close", () => (closed = true));
      });
    });
    const sandbox = await machine({ services: [{ port: 80, target }] });
    await sandbox.exec({ command: "sleep 30 | nc 127.0.0.1 80" });
    await connected;
    await sandbox.kill();
    await until("its connection is closed", () => closed);
  });

  test("services that cannot be are refused", async () => {
    for (const services of [[{ port: 0, target: "/x" }], [{ port: 70000, target: "/x" }], [{ port: 80, target: "relative" }], [{ port: 80, target: `/${"x".repeat(200)}` }], [{ port: 80, target: "/a" }, { port: 80, target: "/b" }]]) {
      await expect(machine({ services }), JSON.stringify(services)).rejects.toMatchObject({ code: "invalid_input" });
    }
    await expect(machine({ services: Array.from({ length: 17 }, (_, i) => ({ port: 1000 + i, target: "/x" })) })).rejects.toMatchObject({ code: expect.stringMatching(/invalid_input|limit_exceeded/) });
  });

  test("public: there is a way out, and it does not lead to the host's loopback", async (context) => {
    if (!backend().capabilities.networks.includes("public")) {
      await expect(machine({ network: "public" })).rejects.toMatchObject({ code: "unsupported" });
      expect(backend().capabilities.missing["public"]).toBeTruthy();
      await context.annotate("no public network here: asserted as refused");
      return;
    }
    const tcp = await listen({ port: 0, host: "127.0.0.1" }, (socket) => socket.end("host\n"));
    const address = tcp.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    const sandbox = await machine({ network: "public" });
    expect((await sh(sandbox, "tail -n +3 /proc/net/dev | wc -l")).out.trim()).toBe("2");
    expect((await sh(sandbox, "ip route 2>/dev/null || tail -n +2 /proc/net/route")).out.length).toBeGreaterThan(0);
    const resolv = await sandbox.files.read("/etc/resolv.conf");
    expect(text(resolv)).toContain("nameserver");
    for (const host of ["127.0.0.1", "10.0.2.2", "10.0.2.3"]) expect((await sh(sandbox, `nc -w 2 ${host} ${port} < /dev/null`)).out, host).toBe("");
  });

  /** A web server on the host's loopback, which only a list that names its address admits. */
  async function web(answer = "web"): Promise<number> {
    const server = await listen({ port: 0, host: "127.0.0.1" }, (socket) => {
      socket.once("data", () => socket.end(`HTTP/1.1 200 OK\r\nContent-Length: ${answer.length}\r\nConnection: close\r\n\r\n${answer}`));
    });
    const address = server.address();
    return typeof address === "object" && address !== null ? address.port : 0;
  }
  /** Asks the proxy as a client that was told of it does; busybox's has no list of hosts that go without. */
  const fetchThrough = (sandbox: Sandbox, url: string): ReturnType<typeof sh> => sh(sandbox, `timeout 60 wget -q -O - ${url} 2>&1`);

  function needsAllowlist(context: TestContext): Promise<void> | null {
    if (backend().capabilities.networks.includes("allowlist")) return null;
    return (async () => {
      await expect(machine({ network: "allowlist", allow: [] })).rejects.toMatchObject({ code: "unsupported" });
      await context.annotate("no allow-lists here: asserted as refused");
    })();
  }

  test("allowlist: HTTP to listed hosts through the proxy, and no other way out", async (context) => {
    const absent = needsAllowlist(context);
    if (absent !== null) return absent;
    const port = await web();
    const other = await web("other");
    const sandbox = await machine({ network: "allowlist", allow: [`localhost:${port}`, `127.0.0.1:${port}`] });
    expect((await sh(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")).out.trim()).toBe("lo");
    expect((await fetchThrough(sandbox, `http://localhost:${port}/`)).out).toBe("web");
    expect((await fetchThrough(sandbox, `http://127.0.0.1:${port}/`)).out).toBe("web");
    expect((await fetchThrough(sandbox, `http://localhost:${other}/`)).out).toContain("403 localhost:");
    expect((await fetchThrough(sandbox, "http://example.com/")).out).toContain("403 example.com:80 is not in the list of allowed hosts");
    // Without the proxy there is nothing: not even the host that is allowed.
    for (const address of ["127.0.0.1", "169.254.169.254", "8.8.8.8", "10.0.2.2"]) expect((await sh(sandbox, `nc -w 1 ${address} ${port} < /dev/null`)).code, address).not.toBe(0);
    // What it says of itself does not change who it is.
    expect((await sh(sandbox, `printf 'MW1 sbx00000000000000000000000000 3128\\nGET http://localhost:${other}/ HTTP/1.1\\r\\n\\r\\n' | nc -w 60 127.0.0.1 3128`)).out).toMatch(/^HTTP\/1\.1 400 /);
    const report = sandbox.egress?.report();
    expect(report).toMatchObject({ connections: 2 });
    expect(report?.refusals.map(({ host, port: at, reason }) => [host, at, reason])).toEqual([["localhost", other, "not_allowed"], ["example.com", 80, "not_allowed"], ["", null, "protocol"]]);
  });

  test("allowlist: the list is the machine's own, changes while it lives, goes on through pauses and to children", async (context) => {
    const absent = needsAllowlist(context);
    if (absent !== null) return absent;
    const port = await web();
    const hosts = [`localhost:${port}`, `127.0.0.1:${port}`];
    const [open, closed] = [await machine({ network: "allowlist", allow: hosts }), await machine({ network: "allowlist" })];
    const url = `http://localhost:${port}/`;
    expect((await fetchThrough(closed, url)).out).toContain("403");
    expect((await fetchThrough(open, url)).out).toBe("web");
    open.egress?.allow([]);
    expect((await fetchThrough(open, url)).out).toContain("403");
    closed.egress?.allow(hosts);
    expect((await fetchThrough(closed, url)).out).toBe("web");
    expect(() => closed.egress?.allow(["http://x"])).toThrow(/is a URL/);
    const { capabilities } = backend();
    // Without a freezer, a machine in which something may still run is not copied.
    if (capabilities.fork && capabilities.freeze) {
      const [child] = await closed.fork(1);
      if (child?.ok !== true) throw new Error("no child");
      expect((await fetchThrough(child.sandbox, url)).out).toBe("web");
      // Each has its own from then on.
      closed.egress?.allow([]);
      expect((await fetchThrough(child.sandbox, url)).out).toBe("web");
      await child.sandbox.kill();
      closed.egress?.allow(hosts);
    }
    if (capabilities.pause && capabilities.freeze) {
      await closed.pause();
      await closed.resume();
      expect((await fetchThrough(closed, url)).out).toBe("web");
    }
    const { egress } = closed;
    await closed.kill();
    expect(egress?.report().connections).toBeGreaterThan(0);
  });

  test("allowlist: lists and services that cannot be are refused", async (context) => {
    const absent = needsAllowlist(context);
    if (absent !== null) return absent;
    const target = socketPath();
    for (const spec of [
      { network: "allowlist", allow: ["http://example.com"] },
      { network: "allowlist", allow: ["a b"] },
      { network: "allowlist", allow: Array.from({ length: 2000 }, (_, i) => `h${i}.test`) },
      { network: "none", allow: ["example.com"] },
      { allow: ["example.com"] },
      { network: "allowlist", services: [{ port: 3128, target }] },
      { network: "allowlist", services: Array.from({ length: 16 }, (_, i) => ({ port: 1000 + i, target })) },
    ] as const) {
      await expect(machine(spec), JSON.stringify(spec).slice(0, 100)).rejects.toMatchObject({ code: "invalid_input" });
    }
  });

  test("allowlist: a machine that opens every connection it can takes none of another's", async (context) => {
    const absent = needsAllowlist(context);
    if (absent !== null) return absent;
    const port = await web();
    const allow = [`localhost:${port}`, `127.0.0.1:${port}`];
    const [bad, good] = [await machine({ network: "allowlist", allow }), await machine({ network: "allowlist", allow })];
    await bad.exec({ command: "i=0; while [ $i -lt 400 ]; do (sleep 30 | nc 127.0.0.1 3128 >/dev/null &); i=$((i+1)); done; sleep 30" });
    await sleep(1500);
    expect((await fetchThrough(good, `http://localhost:${port}/`)).out).toBe("web");
  });
}

/** `none`: loopback and declared services, nothing else of the world. `public`: out, but not to the host. */
import { createServer, type Server, type Socket } from "node:net";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { fixture, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function networkSuite(options: ConformanceOptions): void {
  const { machine, backend } = fixture(options);
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
    expect((await sh(sandbox, "(echo hello | nc -l -p 7001 >/dev/null &) ; sleep 0.3; nc -w 2 127.0.0.1 7001 < /dev/null")).out).toBe("hello\n");
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

  test("a declared service reaches the controller, which is told who asks", async () => {
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
    expect((await sh(one, "echo ping | nc -w 3 127.0.0.1 8080")).out).toBe("pong\n");
    expect((await sh(two, "echo ping | nc -w 3 127.0.0.1 8080; echo ping | nc -w 3 127.0.0.1 9090")).out).toBe("pong\npong\n");
    expect(firsts).toEqual([`MW1 ${one.id} 8080`, `MW1 ${two.id} 8080`, `MW1 ${two.id} 9090`]);
    // Not declared, not there.
    expect((await sh(one, "echo ping | nc -w 1 127.0.0.1 9090")).code).not.toBe(0);
  });

  test("a service moves a lot both ways, keeps half-open connections, and survives a target that is away", async () => {
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

  test("a client that floods or stalls a service does not hurt another machine's", async () => {
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

  test("a killed machine's service connections end", async () => {
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
}

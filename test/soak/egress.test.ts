/** Thousands of connections through the egress proxy, ended in every way there is: the controller then holds what it held before, and meanwhile never more than its bounds. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterAll, expect, it } from "vitest";
import { LIMITS } from "../../src/core/limits.ts";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";

const base = mkdtempSync(join(tmpdir(), "mw-soak-egress-"));
const home = join(base, "home");
afterAll(() => rmSync(base, { recursive: true, force: true }));
/** Descriptors that are opened when they are first needed, and kept. One connection in a hundred that left its own would be ten times as many. */
const OPENED_ONCE = 12;
setFlagsFromString("--expose_gc");
for (const flag of ["--no-opt", "--no-sparkplug"]) setFlagsFromString(flag);
const collect = runInNewContext("gc") as () => void;
const files = (): number => readdirSync("/proc/self/fd").length;
const heapBytes = (): number => {
  collect();
  return process.memoryUsage().heapUsed;
};

/** Of one machine: `THREADS` at once, each connection in one of eight ways. Prints how each ended, by kind. */
const CLIENT = `
import collections, socket, sys, threading
total, threads, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ended, lock = collections.Counter(), threading.Lock()
HELLO = bytes([22, 3, 1, 0, 5, 1, 0, 0, 1, 0])
KINDS = ["whole", "kept", "half", "refused", "tunnel", "hello", "cut", "nonsense"]
def one(at):
    kind = KINDS[at % len(KINDS)]
    s = socket.create_connection(("127.0.0.1", 3128), 60)
    s.settimeout(60)
    get = lambda host, more="": ("GET http://%s/%d HTTP/1.1\\r\\nHost: %s\\r\\n%s\\r\\n" % (host, at, host, more)).encode()
    web = "web.test:%d" % port
    if kind == "whole": s.sendall(get(web, "Connection: close\\r\\n")); said = read(s)
    elif kind == "kept":
        for _ in range(3): s.sendall(get(web)); said = s.recv(65536)
    elif kind == "half": s.sendall(get(web)[:20]); said = b"sent"
    elif kind == "refused": s.sendall(get("no-%d.test" % at, "Connection: close\\r\\n")); said = read(s)
    elif kind == "tunnel": s.sendall(("CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (web, web)).encode()); said = s.recv(4096)
    elif kind == "hello": s.sendall(("CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (web, web)).encode()); s.recv(4096); s.sendall(HELLO); said = b"sent"
    elif kind == "cut": s.sendall(get(web + "/large", "Connection: close\\r\\n")); said = s.recv(100)
    else: s.sendall(bytes(range(256)) * 4); said = read(s)
    s.close()
    return kind, said[:12].decode("latin1")
def read(s):
    got = b""
    while True:
        part = s.recv(65536)
        if not part: return got
        got += part
def work(first):
    for at in range(first, total, threads):
        try: key = one(at)
        except OSError as e: key = (KINDS[at % len(KINDS)], type(e).__name__)
        with lock: ended[key] += 1
all = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for t in all: t.start()
for t in all: t.join()
print(repr(dict(ended)))
`;

it("12,000 connections of four machines", async () => {
  const large = Buffer.alloc(1 << 20, "x");
  const web = createServer((request, response) => response.end(request.url?.includes("large") === true ? large : "web"));
  await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve));
  const { port } = web.address() as AddressInfo;
  const backend = await openNativeBackend({ home, resolve: async (name) => (name === "web.test" ? ["127.0.0.1"] : []) });
  try {
    const images = await openImageStore({ home });
    const root = await images.rootFilesystem(await images.resolve("host"));
    const living: Sandbox[] = await Promise.all(Array.from({ length: 4 }, () => backend.create({ root, network: "allowlist", allow: [`web.test:${port}`, "127.0.0.1:*"] })));
    for (const sandbox of living) await sandbox.files.write("/tmp/client.py", Buffer.from(CLIENT));
    const wave = async (each: number): Promise<void> => {
      await Promise.all(living.map(async (sandbox) => {
        const { code, stdout, stderr } = await sandbox.run({ command: ["python3", "/tmp/client.py", String(each), "12", String(port)], timeoutMs: 1_800_000 });
        expect(code, Buffer.from(stderr).toString()).toBe(0);
        const said = Buffer.from(stdout).toString();
        // Clients that go away at once are noticed a little later than they come again: some are told that there are too many, none is told anything else.
        const times = (kind: string, answer: string): number => Number(new RegExp(`\\('${kind}', '${answer}'\\): (\\d+)`).exec(said)?.[1] ?? 0);
        for (const [kind, answer] of [["whole", "HTTP/1.1 200"], ["kept", "HTTP/1.1 200"], ["refused", "HTTP/1.1 403"], ["nonsense", "HTTP/1.1 400"]] as const) expect(times(kind, answer), said).toBeGreaterThan(each / 16);
        expect([...said.matchAll(/'(?:HTTP\/1\.1 )?(\w+)'\)/g)].map((match) => match[1] ?? "").filter((end) => !["200", "403", "400", "503", "sent", "ConnectionResetError"].includes(end)), said).toEqual([]);
      }));
    };
    await wave(400);
    const [filesBefore, heapBefore] = [files(), heapBytes()];
    let mostFiles = 0;
    const watch = setInterval(() => (mostFiles = Math.max(mostFiles, files())), 50);
    await wave(3_000).finally(() => clearInterval(watch));
    await expect.poll(files, { timeout: 120_000, interval: 500 }).toBeLessThanOrEqual(filesBefore + OPENED_ONCE);
    const heapAfter = heapBytes();
    process.stdout.write(`12,000 connections: ${filesBefore} descriptors before, ${mostFiles} at most, ${files()} after; heap ${(heapBefore / 2 ** 20).toFixed(1)} -> ${(heapAfter / 2 ** 20).toFixed(1)} MiB\n`);
    // A connection of a machine, the one outside, and the web server's end of it, which is here too.
    expect(mostFiles - filesBefore).toBeLessThanOrEqual(3 * living.length * LIMITS.egressFlowsPerSandbox);
    // The least that a connection could leave behind, a closed socket, would be thousands of bytes.
    expect((heapAfter - heapBefore) / 12_000).toBeLessThan(300);
    for (const sandbox of living) expect(sandbox.egress?.report().refusals.length).toBe(LIMITS.egressRefusalsKept);
  } finally {
    await backend.close();
    web.close();
  }
  expect(await leftoversAfter(home, machines)).toEqual([]);
});

it("a machine that opens more than it may have is told so, and takes nothing from another", async () => {
  const hanging = createServer(() => undefined);
  await new Promise<void>((resolve) => hanging.listen(0, "127.0.0.1", resolve));
  const { port } = hanging.address() as AddressInfo;
  const backend = await openNativeBackend({ home: join(base, "hog"), resolve: async () => ["127.0.0.1"] });
  try {
    const images = await openImageStore({ home: join(base, "hog") });
    const root = await images.rootFilesystem(await images.resolve("host"));
    const [hog, other] = await Promise.all([0, 1].map(() => backend.create({ root, network: "allowlist", allow: ["127.0.0.1:*", `web.test:${port}`] })));
    if (hog === undefined || other === undefined) throw new Error("no machines");
    const before = files();
    const script = `import socket\nopen, refused = [], 0\nfor n in range(600):\n  s = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(0.2)\n  s.sendall(b"GET http://web.test:${port}/ HTTP/1.1\\r\\nHost: web.test:${port}\\r\\n\\r\\n")\n  open.append(s)\nfor s in open:\n  s.settimeout(20 if refused < 400 else 0.5)\n  try: refused += b"503" in s.recv(100)\n  except OSError: pass\nprint(refused)\nimport time; time.sleep(3600)`;
    const running = await hog.exec({ command: ["python3", "-c", script] });
    await expect.poll(() => hog.egress?.report().refused ?? 0, { timeout: 300_000 }).toBeGreaterThanOrEqual(1);
    await expect.poll(() => hog.egress?.report().connections ?? 0, { timeout: 300_000 }).toBeGreaterThanOrEqual(LIMITS.egressFlowsPerSandbox / 2);
    expect(hog.egress?.report().connections).toBeLessThanOrEqual(LIMITS.egressFlowsPerSandbox);
    expect(files() - before).toBeLessThanOrEqual(3 * LIMITS.egressFlowsPerSandbox + 600);
    const answer = await other.run({ command: "curl -sS --max-time 60 -o /dev/null -w '%{http_code}' http://none.test/", timeoutMs: 120_000 });
    expect(Buffer.from(answer.stdout).toString()).toBe("403");
    await running.kill("SIGKILL");
    await expect.poll(files, { timeout: 120_000 }).toBeLessThanOrEqual(before + 2);
  } finally {
    await backend.close();
    hanging.closeAllConnections();
    hanging.close();
  }
});

/** Networks over the server's interfaces: lists that are read and changed, ports that are published, and what no machine reaches whatever its network. */
import { mkdtempSync, rmSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { connect, createServer, type AddressInfo, type Server } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { asking, otherOwner } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-server-network-"));
const home = join(base, "home");
const KEY = "the-first-key-of-all";
const ask = asking(() => server, KEY);
const servers: Server[] = [];
let server: Served;
let other: Record<string, string>;
let web = 0;
beforeAll(async () => {
  server = await serve({ home, key: KEY, args: ["--warm", "0"], env: { MW_E2B_NETWORK: "allowlist", MW_E2B_ALLOW: "pypi.test *.hosted.test" } });
  other = otherOwner(home);
  web = await listening(createHttpServer((_request, response) => response.end("web")));
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  for (const each of servers) each.close();
  rmSync(base, { recursive: true, force: true });
});

async function listening(made: Server, host = "127.0.0.1"): Promise<number> {
  servers.push(made);
  await new Promise<void>((resolve, reject) => made.once("error", reject).listen(0, host, resolve));
  return (made.address() as AddressInfo).port;
}

async function create(more: Record<string, unknown>, key?: Record<string, string>): Promise<string> {
  const { status, body } = await ask("POST", "/v1/sandboxes", { ttl_ms: 600_000, ...more }, key);
  expect(status, JSON.stringify(body)).toBe(201);
  return body.id as string;
}

async function sh(id: string, command: string): Promise<string> {
  const { status, body } = await ask("POST", `/v1/sandboxes/${id}/run`, { command: `{ ${command}\n} 2>&1`, timeout_ms: 120_000 });
  expect(status, JSON.stringify(body)).toBe(200);
  return body.stdout as string;
}

describe("lists of hosts", () => {
  it("are read with what was refused, and replaced while the machine lives", async () => {
    const id = await create({ network: "allowlist", allow: [`127.0.0.1:${web}`] });
    const get = `curl -sS --noproxy '' --max-time 20 http://127.0.0.1:${web}/`;
    expect(await sh(id, get)).toBe("web");
    expect(await sh(id, "curl -sS --max-time 20 http://example.test/")).toContain("is not in the list");
    expect((await ask("GET", `/v1/sandboxes/${id}/network`)).body).toMatchObject({ network: "allowlist", egress: { allow: [`127.0.0.1:${web}`], connections: 1, refused: 1, refusals: [{ reason: "not_allowed", host: "example.test", port: 80, count: 1 }] } });
    expect((await ask("PUT", `/v1/sandboxes/${id}/network`, { allow: ["example.test"] })).body.egress.allow).toEqual(["example.test"]);
    expect((await ask("GET", `/v1/sandboxes/${id}`)).body.allow).toEqual(["example.test"]);
    expect(await sh(id, get)).toContain("is not in the list");
    for (const [body, field] of [[{ allow: ["https://x.test"] }, "is a URL"], [{}, "allow"], [{ allow: [], deny: [] }, "deny"]] as const) {
      const refused = await ask("PUT", `/v1/sandboxes/${id}/network`, body);
      expect([refused.status, refused.body.detail as string], JSON.stringify(body)).toEqual([422, expect.stringContaining(field)]);
    }
    await ask("DELETE", `/v1/sandboxes/${id}`);
    expect((await ask("GET", `/v1/sandboxes/${id}/network`)).status).toBe(404);
  });

  it("last through a pause, and there is none where the network is another", async () => {
    const id = await create({ network: "allowlist", allow: ["a.test"] });
    await ask("PUT", `/v1/sandboxes/${id}/network`, { allow: ["b.test"] });
    expect((await ask("POST", `/v1/sandboxes/${id}/pause`, {})).status).toBe(200);
    expect((await ask("PUT", `/v1/sandboxes/${id}/network`, { allow: [] })).status).toBe(409);
    expect((await ask("GET", `/v1/sandboxes/${id}/network`)).body.egress.allow).toEqual(["b.test"]);
    await ask("DELETE", `/v1/sandboxes/${id}`);
    const none = await create({});
    expect((await ask("GET", `/v1/sandboxes/${none}/network`)).body).toEqual({ network: "none", egress: null });
    expect((await ask("PUT", `/v1/sandboxes/${none}/network`, { allow: ["a.test"] })).body).toMatchObject({ status: 422, code: "unsupported" });
    await ask("DELETE", `/v1/sandboxes/${none}`);
  });

  it("of owners who do not run the server open nothing that is inside, in whatever spelling", async () => {
    const id = await create({ network: "allowlist", allow: ["example.test", "*", "0.0.0.0/0", "1.1.1.1"] }, other);
    const own = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []).map(({ address }) => address.split("%")[0] ?? "");
    expect(own.length).toBeGreaterThan(0);
    for (const host of ["127.0.0.1", `127.0.0.1:${server.port}`, "127.0.0.0/8", "::1", "[::1]:*", "::ffff:127.0.0.1", "[::ffff:7f00:1]:80", "0.0.0.0", "::", "10.0.0.0/8", "10.1.2.3", "169.254.169.254", "192.168.0.0/24", "fd00::1", "fe80::1", "64:ff9b::7f00:1", ...own]) {
      for (const answer of [await ask("POST", "/v1/sandboxes", { network: "allowlist", allow: ["example.test", host] }, other), await ask("PUT", `/v1/sandboxes/${id}/network`, { allow: [host] }, other)]) expect([answer.status, answer.body.code], host).toEqual([403, "forbidden"]);
    }
    expect((await ask("GET", `/v1/sandboxes/${id}/network`, undefined, other)).body.egress.allow).toEqual(["example.test", "*", "0.0.0.0/0", "1.1.1.1"]);
    // What they may say does not mean it either.
    for (const host of ["127.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", ...own.map((address) => (address.includes(":") ? `[${address}]` : address))]) {
      const { body } = await ask("POST", `/v1/sandboxes/${id}/run`, { command: `curl -sS -o /dev/null -w '%{http_code}' --noproxy '' --max-time 20 http://${host}:${server.port}/version` }, other);
      expect(body.stdout, host).toBe("403");
    }
    await ask("DELETE", `/v1/sandboxes/${id}`, undefined, other);
  });

  it("are the default of E2B's clients where the server says so; fields that are not taken are refused", async () => {
    const made = await ask("POST", "/sandboxes", { templateID: "host", timeout: 60 });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    const id = made.body.sandboxID as string;
    expect((await ask("GET", `/v1/sandboxes/${id}/network`)).body.egress.allow).toEqual(["pypi.test", "*.hosted.test"]);
    await ask("DELETE", `/v1/sandboxes/${id}`);
    for (const network of [{ rules: {} }, { egressProxy: { address: "a:1" } }, { allowOut: ["1.1.1.1"], denyOut: ["0.0.0.0/0"] }, { httpsPorts: [443] }, { unknown: true }]) expect((await ask("POST", "/v2/sandboxes", { templateID: "host", network })).status, JSON.stringify(network)).toBe(400);
  });
});

describe("published ports", () => {
  const SERVER = "cd /tmp && exec python3 -c 'import http.server as h\nclass A(h.BaseHTTPRequestHandler):\n  def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b\"inside\")\nh.HTTPServer((\"127.0.0.1\", 8000), A).serve_forever()'";
  const reached = (port: number): Promise<string> => fetch(`http://127.0.0.1:${port}/`, { headers: { connection: "close" } }).then((response) => response.text(), () => "");

  it("are reached until they are ended, or the sandbox is", async () => {
    const id = await create({});
    const at = `/v1/sandboxes/${id}/ports`;
    await ask("POST", `/v1/sandboxes/${id}/execs`, { command: SERVER });
    const { status, body } = await ask("POST", at, { port: 8000 });
    expect([status, body]).toEqual([201, { port: 8000, address: "127.0.0.1", host_port: expect.any(Number) as number }]);
    const port = body.host_port as number;
    await expect.poll(() => reached(port), { timeout: 60_000 }).toBe("inside");
    expect([(await ask("POST", at, { port: 8000 })).status, (await ask("POST", at, { port: 8000, host_port: port })).status, (await ask("POST", at, { port: 8000, address: "127.0.0.2" })).status]).toEqual([200, 200, 409]);
    expect((await ask("POST", at, { port: 8001, host_port: web })).body).toMatchObject({ status: 409, code: "conflict" });
    for (const wrong of [{ port: 0 }, { port: 8002, address: "localhost" }, { port: 8002, host: "127.0.0.1" }, { port: 8002, host_port: 70_000 }]) expect((await ask("POST", at, wrong)).status, JSON.stringify(wrong)).toBe(422);
    const second = (await ask("POST", at, { port: 80 })).body.host_port as number;
    expect((await ask("GET", at)).body.ports).toEqual([{ port: 80, address: "127.0.0.1", host_port: second }, body]);
    expect([(await ask("DELETE", `${at}/8000`)).status, (await ask("DELETE", `${at}/8000`)).status]).toEqual([204, 404]);
    expect(await reached(port)).toBe("");
    await ask("DELETE", `/v1/sandboxes/${id}`);
    await expect.poll(() => refuses(second), { timeout: 60_000 }).toBe(true);
  });

  it("wake a paused sandbox that wakes for requests; at most 32 of one", async () => {
    const id = await create({ on_timeout: "pause", auto_resume: true });
    const { host_port: port } = (await ask("POST", `/v1/sandboxes/${id}/ports`, { port: 8000 })).body as { host_port: number };
    await ask("POST", `/v1/sandboxes/${id}/pause`, {});
    await reached(port);
    await expect.poll(async () => (await ask("GET", `/v1/sandboxes/${id}`)).body.state as string, { timeout: 60_000 }).toBe("running");
    for (let inside = 1; inside < 32; inside++) expect((await ask("POST", `/v1/sandboxes/${id}/ports`, { port: inside })).status).toBe(201);
    expect((await ask("POST", `/v1/sandboxes/${id}/ports`, { port: 100 })).body.code).toBe("limit_exceeded");
    await ask("DELETE", `/v1/sandboxes/${id}`);
  });

  it("take addresses and ports of the host from nobody but who runs the server", async () => {
    const id = await create({}, other);
    for (const more of [{ host_port: 18_000 }, { address: "0.0.0.0" }, { address: "::" }]) expect((await ask("POST", `/v1/sandboxes/${id}/ports`, { port: 80, ...more }, other)).status).toBe(403);
    expect((await ask("POST", `/v1/sandboxes/${id}/ports`, { port: 80 }, other)).status).toBe(201);
    expect((await ask("GET", `/v1/sandboxes/${id}/ports`)).status).toBe(404);
    await ask("DELETE", `/v1/sandboxes/${id}`, undefined, other);
  });
});

function refuses(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(false)).once("error", () => resolve(true));
    socket.once("connect", () => socket.destroy());
  });
}

describe("a machine with the network of the host", () => {
  it("reaches no service of the host's loopback, by any address", async () => {
    let touched = 0;
    const count = (): Server => createServer((socket) => {
      touched++;
      socket.end("HTTP/1.0 200 OK\r\n\r\nloopback");
    });
    const ports = [server.port, await listening(count()), await listening(count(), "::1")];
    const own = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []).filter(({ internal }) => !internal).map(({ address }) => address.split("%")[0] ?? "");
    const outside = own.find((address) => !address.includes(":"));
    if (outside === undefined) throw new Error("this host has no IPv4 address but loopback: there is no network to test");
    const open = await listening(createHttpServer((_request, response) => response.end("open")), outside);
    const id = await create({ network: "public" });
    // That it has a network at all: a service at an address of the host.
    expect(await sh(id, `curl -sS --max-time 30 http://${outside}:${open}/`)).toBe("open");
    const hosts = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.2.1", "10.0.2.2", "10.0.2.3", "10.0.2.15", "10.0.2.100", "10.0.2.255", "255.255.255.255", "localhost", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:10.0.2.2]", "[::ffff:0.0.0.0]", "[64:ff9b::7f00:1]", "[fd00::2]", "[fd00::3]", "[fe80::2%25tap0]", "0x7f.1", "2130706433", "$(hostname)", ...own.map((address) => (address.includes(":") ? `[${address}]` : address))];
    const answers = await sh(id, `for port in ${ports.join(" ")}; do for host in ${hosts.map((host) => (host.startsWith("$") ? host : `'${host}'`)).join(" ")}; do (curl -s --noproxy '*' --max-time 20 "http://$host:$port/version" && echo " through $host:$port") & done; done; wait`);
    expect(answers.split("\n").filter((line) => line.includes("through"))).toEqual([]);
    // Nor does another source address inside, or a bound interface, lead there.
    for (const flags of ["--interface tap0", "--interface lo", "--local-port 1-1000"]) expect(await sh(id, `curl -s ${flags} --max-time 10 http://127.0.0.1:${server.port}/version || echo no`), flags).toBe("no\n");
    expect(touched).toBe(0);
    await ask("DELETE", `/v1/sandboxes/${id}`);
  });
});

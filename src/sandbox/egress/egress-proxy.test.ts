/** The egress proxy as an attacker in a machine meets it: over the forwarder's socket, with servers on this host's loopback that the list has to name. */
import { mkdtempSync, rmSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as tlsConnect } from "node:tls";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { newId, type SandboxId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import { systemRuntime } from "../../core/runtime.ts";
import type { RefusalReason } from "../sandbox.ts";
import { type EgressProxy, openEgressProxy } from "./egress-proxy.ts";
import type { MachineEgress } from "./machine-egress.ts";

const MINE = newId("sbx", systemRuntime);
const OTHER = newId("sbx", systemRuntime);

let place = "";
let proxy: EgressProxy;
let machine: MachineEgress;
let web: Server;
let port = 0;
/** Whole requests that the web server has got. */
let seen: { readonly method: string; readonly url: string; readonly host: string; readonly body: string; readonly headers: NodeJS.Dict<string | string[]> }[] = [];
let lookups: string[] = [];
const names: Record<string, readonly string[]> = {};
const open: Socket[] = [];
const servers: Server[] = [];

beforeAll(() => {
  place = mkdtempSync(join(tmpdir(), "mw-egress-"));
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

beforeEach(async () => {
  seen = [];
  lookups = [];
  for (const name of Object.keys(names)) delete names[name];
  names["ok.test"] = ["127.0.0.1"];
  web = createHttpServer((request, response) => {
    let body = "";
    request.on("data", (chunk: Buffer) => (body += chunk.toString("latin1")));
    request.on("end", () => {
      seen.push({ method: request.method ?? "", url: request.url ?? "", host: request.headers.host ?? "", body, headers: request.headers });
      if (request.url === "/away") response.writeHead(302, { location: "http://evil.test/" }).end();
      else response.writeHead(200, { "x-from": "web" }).end(`web ${request.url}`);
    });
  });
  port = await listening(web);
  proxy = await openEgressProxy({
    socketPath: join(place, "egress"),
    runtime: systemRuntime,
    resolve: async (name) => {
      lookups.push(name);
      return names[name] ?? [];
    },
  });
  machine = proxy.admit(MINE, [`ok.test:${port}`, `*.wild.test:${port}`, `127.0.0.1:${port}`]);
});
afterEach(async () => {
  for (const socket of open.splice(0)) socket.destroy();
  await proxy.close();
  for (const server of [web, ...servers.splice(0)]) {
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      if ("closeAllConnections" in server && typeof server.closeAllConnections === "function") server.closeAllConnections();
    });
  }
});

async function listening(server: Server, host = "127.0.0.1"): Promise<number> {
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(0, host, resolve));
  return (server.address() as AddressInfo).port;
}

/** A server of bytes that keeps what it got. */
async function rawServer(onConnection: (socket: Socket) => void = () => undefined): Promise<{ readonly port: number; readonly connections: Buffer[][] }> {
  const connections: Buffer[][] = [];
  const server = createServer((socket) => {
    const chunks: Buffer[] = [];
    connections.push(chunks);
    open.push(socket);
    socket.on("error", () => undefined).on("data", (chunk: Buffer) => chunks.push(chunk));
    onConnection(socket);
  });
  servers.push(server);
  return { port: await listening(server), connections };
}

/** A connection as the forwarder makes it for a machine. */
function dial(id: SandboxId = MINE): Socket {
  const socket = connect(proxy.socketPath);
  open.push(socket);
  socket.on("error", () => undefined);
  socket.write(`MW1 ${id} 3128\n`);
  return socket;
}

/** What comes back until the other side ends, or so many milliseconds. */
async function said(socket: Socket, untilMs = 60_000): Promise<string> {
  let text = "";
  socket.on("data", (chunk: Buffer) => (text += chunk.toString("latin1")));
  await Promise.race([new Promise((resolve) => socket.once("close", resolve).once("end", resolve)), new Promise((resolve) => setTimeout(resolve, untilMs).unref())]);
  return text;
}

async function ask(bytes: string, id: SandboxId = MINE): Promise<string> {
  const socket = dial(id);
  socket.write(bytes);
  return said(socket);
}

const get = (url: string, more = ""): string => `GET ${url} HTTP/1.1\r\nHost: whatever.test\r\nConnection: close\r\n${more}\r\n`;
const statusOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1] ?? 0);
const reasons = (): readonly RefusalReason[] => machine.report().refusals.map(({ reason }) => reason);

/** Reads until a pattern has come; the rest stays with its listeners. */
function until(socket: Socket, pattern: RegExp): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const onData = (chunk: Buffer): void => {
      text += chunk.toString("latin1");
      if (!pattern.test(text)) return;
      socket.off("data", onData);
      resolve(text);
    };
    socket.on("data", onData).once("close", () => reject(new Error(`closed after ${JSON.stringify(text)}`)));
  });
}

async function tunnel(target: string): Promise<Socket> {
  const socket = dial();
  socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
  expect(await until(socket, /\r\n\r\n/)).toMatch(/^HTTP\/1\.1 200 /);
  return socket;
}

test("an allowed name is reached, with the host that was decided on, whatever else the client writes", async () => {
  const answer = await ask(get(`http://OK.test.:${port}/a?b=%2e#c`, "Proxy-Authorization: secret\r\nX-Mine: 1\r\nX-Hop: 1\r\nConnection: x-hop\r\n"));
  expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
  expect(answer).toContain("web /a?b=%2e");
  expect(seen).toEqual([{ method: "GET", url: "/a?b=%2e", host: `ok.test:${port}`, body: "", headers: { host: `ok.test:${port}`, "x-mine": "1", connection: "close" } }]);
  expect(machine.report()).toMatchObject({ connections: 1, refused: 0, refusals: [] });
});

test("bodies pass in both framings, and come as one request each", async () => {
  expect(statusOf(await ask(`POST http://ok.test:${port}/l HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello`))).toBe(200);
  expect(statusOf(await ask(`GET http://ok.test:${port}/c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n`))).toBe(200);
  expect(seen.map(({ url, body }) => [url, body])).toEqual([["/l", "hello"], ["/c", "hello"]]);
});

test.each([
  ["another name", "http://evil.test/", "not_allowed"],
  ["another port", "http://ok.test/", "not_allowed"],
  ["the name below a wildcard itself", "http://wild.test/", "not_allowed"],
  ["a name that only ends alike", "http://notwild.test/", "not_allowed"],
  ["a longer name", "http://ok.test.evil.test/", "not_allowed"],
  ["the metadata address", "http://169.254.169.254/latest/meta-data", "not_allowed"],
  ["an address as one number", "http://2852039166/", "not_allowed"],
  ["an address in hexadecimal", "http://0xa9fea9fe/", "not_allowed"],
  ["IPv6 in which an address hides", "http://[::ffff:169.254.169.254]/", "not_allowed"],
  ["IPv6 loopback", "http://[::1]/", "not_allowed"],
  ["a public address", "http://8.8.8.8/", "not_allowed"],
] as const)("refused: %s", async (_what, url, reason) => {
  const answer = await ask(get(url));
  expect(statusOf(answer)).toBe(403);
  // Status line and body both say what, and the body what to do.
  expect(answer).toMatch(/^HTTP\/1\.1 403 .*not in the list of allowed hosts/);
  expect(answer).toContain("--allow HOST");
  expect(reasons()).toEqual([reason]);
  // A question to a name server would be a message to whoever runs it.
  expect(lookups).toEqual([]);
});

test.each([
  ["a user in front", "http://ok.test@evil.test/"],
  ["an allowed user in front", "http://evil.test\\@ok.test/"],
  ["percent signs", "http://ok%2etest/"],
  ["a path", "/etc/passwd"],
  ["ftp", "ftp://ok.test/"],
  ["nothing", "http:///"],
  ["port 0", "http://ok.test:0/"],
  ["a port too large", "http://ok.test:65536/"],
  ["two ports", "http://ok.test:80:81/"],
  ["a zone", "http://[fe80::1%25eth0]/"],
  ["letters beyond ASCII", "http://\u00e9vil.test/"],
] as const)("not understood: %s", async (_what, url) => {
  expect(statusOf(await ask(get(url)))).toBe(400);
  expect(seen).toEqual([]);
  expect(lookups).toEqual([]);
});

test.each([
  ["127.0.0.2"],
  ["169.254.169.254"],
  ["::ffff:127.0.0.2"],
  ["::ffff:7f00:2"],
  ["64:ff9b::a9fe:a9fe"],
  ["0.0.0.0"],
  ["::"],
  ["::1"],
  ["fd00:ec2::254"],
  ["fe80::1"],
  ["10.0.0.1"],
  ["100.100.100.200"],
  ["2002:7f00:1::"],
  ["224.0.0.1"],
])("a name that leads to %s is refused, although the name is allowed", async (address) => {
  names["in.wild.test"] = [address];
  const answer = await ask(get(`http://in.wild.test:${port}/`));
  expect(answer).toMatch(/^HTTP\/1\.1 403 in\.wild\.test leads to .*not in the list/);
  expect(reasons()).toEqual(["address"]);
  expect(seen).toEqual([]);
});

test("what is connected to is what was checked: a name that leads somewhere else the next time, or there and elsewhere, does not get there", async () => {
  const inside = await rawServer();
  const answers = [["127.0.0.1"], ["127.0.0.2"]];
  machine.allow([`flip.test:${port}`, `127.0.0.1:${port}`, `both.test:${inside.port}`, "127.0.0.3"]);
  await proxy.close();
  proxy = await openEgressProxy({ socketPath: join(place, "egress"), runtime: systemRuntime, resolve: async () => answers.shift() ?? ["127.0.0.1"] });
  machine = proxy.admit(MINE, [`flip.test:${port}`, `127.0.0.1:${port}`, `both.test:${inside.port}`]);
  expect(statusOf(await ask(get(`http://flip.test:${port}/`)))).toBe(200);
  expect(statusOf(await ask(get(`http://flip.test:${port}/`)))).toBe(403);
  expect(statusOf(await ask(get(`http://both.test:${inside.port}/`)))).toBe(403);
  expect(inside.connections).toEqual([]);
  expect(seen).toHaveLength(1);
});

test("this host's own addresses are meant for its neighbours, not for its machines", async () => {
  const { networkInterfaces } = await import("node:os");
  const own = Object.values(networkInterfaces()).flat().find((entry) => entry?.family === "IPv4" && !entry.internal)?.address;
  names["own.test"] = [own ?? "127.0.0.1"];
  machine.allow(["*:*"]);
  expect(statusOf(await ask(get(`http://own.test:${port}/`)))).toBe(403);
  expect(statusOf(await ask(get(`http://${own ?? "127.0.0.1"}:${port}/`)))).toBe(403);
  expect(statusOf(await ask(get(`http://127.0.0.1:${port}/`)))).toBe(403);
});

test("each request of a kept connection is decided on by itself, pipelined or not", async () => {
  const socket = dial();
  const keep = (url: string, last = false): string => `GET ${url} HTTP/1.1\r\nHost: ok.test:${port}\r\n${last ? "Connection: close\r\n" : ""}\r\n`;
  socket.write(keep(`http://ok.test:${port}/1`) + keep(`http://evil.test:${port}/2`) + keep(`http://ok.test:${port}/3`) + keep("http://[::1]/4", true));
  const answers = await said(socket);
  expect([...answers.matchAll(/HTTP\/1\.1 (\d{3})/g)].map(([, status]) => status)).toEqual(["200", "403", "200", "403"]);
  expect(seen.map(({ url }) => url).toSorted()).toEqual(["/1", "/3"]);
});

test("a redirect is the client's to follow, and where it leads is decided on then", async () => {
  const answer = await ask(get(`http://ok.test:${port}/away`));
  expect(answer).toMatch(/^HTTP\/1\.1 302 /);
  expect(answer).toMatch(/location: http:\/\/evil\.test\//i);
  expect(statusOf(await ask(get("http://evil.test/")))).toBe(403);
});

test.each([
  ["length and chunks", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
  ["two lengths", "Content-Length: 4\r\nContent-Length: 40\r\n", "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
  ["a length in a list", "Content-Length: 4, 40\r\n", "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
  ["chunks in disguise", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
  ["chunks twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
  ["a folded header", "X: a\r\n Content-Length: 4\r\n", ""],
  ["a blank before the colon", "Content-Length : 4\r\n", "abcd"],
  ["a bare line feed", "X: a\nContent-Length: 4\r\n", "abcd"],
  ["a sign before the length", "Content-Length: +4\r\n", "abcd"],
  ["a length of a GET without a body behind it", "Content-Length: 40\r\n", "GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"],
])("smuggling: %s", async (_what, headers, body) => {
  const socket = dial();
  socket.write(`GET http://ok.test:${port}/first HTTP/1.1\r\nHost: ok.test\r\n${headers}\r\n${body}`);
  const answer = await said(socket, 1500);
  expect(seen.filter(({ url, host }) => url.includes("smuggled") || host !== `ok.test:${port}`)).toEqual([]);
  if (statusOf(answer) !== 200) expect(seen.filter(({ body: got }) => got !== "")).toEqual([]);
});

test("a tunnel carries TLS to the server that it was asked for, byte for byte", async () => {
  const raw = await rawServer((socket) => socket.once("data", () => socket.end("answer")));
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`]);
  const socket = await tunnel(`OK.test:${raw.port}`);
  const sent: Buffer[] = [];
  const write = socket.write.bind(socket);
  socket.write = ((chunk: Buffer, ...rest: never[]) => (sent.push(Buffer.from(chunk)), write(chunk, ...rest))) as typeof socket.write;
  const tls = tlsConnect({ socket, servername: "ok.test", rejectUnauthorized: false });
  tls.on("error", () => undefined);
  await new Promise((resolve) => tls.once("close", resolve));
  expect(Buffer.concat(raw.connections[0] ?? []).subarray(0, 1)[0]).toBe(22);
  expect(machine.report()).toMatchObject({ connections: 1, refused: 0, receivedBytes: 6 });
  expect(machine.report().sentBytes).toBe(Buffer.concat(raw.connections[0] ?? []).length);
});

test.each([
  ["another server", "evil.test", "server_name"],
  ["no server", "", "server_name"],
] as const)("a tunnel whose TLS names %s is refused, and nothing gets through", async (_what, servername, reason) => {
  const raw = await rawServer();
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`]);
  const socket = await tunnel(`ok.test:${raw.port}`);
  const tls = tlsConnect({ socket, ...(servername === "" ? {} : { servername }), rejectUnauthorized: false });
  await new Promise((resolve) => tls.on("error", resolve).once("close", resolve));
  expect(reasons()).toEqual([reason]);
  expect(Buffer.concat(raw.connections.flat())).toHaveLength(0);
});

test.each([
  ["plain HTTP to another host", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
  ["anything else", "SSH-2.0-x\r\n"],
  ["a TLS record that is no hello", Buffer.from([22, 3, 1, 0, 4, 2, 0, 0, 0])],
  ["a record of nothing", Buffer.from([22, 3, 1, 0, 0])],
  ["an endless hello", Buffer.concat([Buffer.from([22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff]), Buffer.alloc(16_380)])],
  ["an alert", Buffer.from([21, 3, 1, 0, 2, 1, 0])],
] as const)("a tunnel for %s is refused in words", async (_what, bytes) => {
  const raw = await rawServer();
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`]);
  const socket = await tunnel(`ok.test:${raw.port}`);
  socket.write(bytes);
  expect(await said(socket)).toMatch(/^HTTP\/1\.1 403 the tunnel to ok\.test:\d+ is for TLS/);
  expect(reasons()).toEqual(["protocol"]);
  expect(Buffer.concat(raw.connections.flat())).toHaveLength(0);
});

test("what is sent behind CONNECT, before the answer, is judged like the rest", async () => {
  const raw = await rawServer();
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`]);
  const answer = await ask(`CONNECT ok.test:${raw.port} HTTP/1.1\r\nHost: x\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n`);
  expect(answer).toMatch(/^HTTP\/1\.1 200 Connection established\r\n\r\nHTTP\/1\.1 403 /);
  expect(Buffer.concat(raw.connections.flat())).toHaveLength(0);
});

test.each([["evil.test:443"], ["ok.test:443"], ["[::1]:443"], ["2130706433:443"], ["127.1:443"]])("CONNECT %s is refused, and the status line says why", async (target) => {
  const answer = await ask(`CONNECT ${target} HTTP/1.1\r\nHost: ok.test:${port}\r\n\r\n`);
  expect(answer).toMatch(/^HTTP\/1\.1 403 \S+:443 is not in the list of allowed hosts/);
});

test.each([["ok.test"], ["http://ok.test:443"], ["ok.test:443/x"], ["*"], ["a b:1"], ["u@ok.test:443"], [""]])("CONNECT %j is no tunnel", async (target) => {
  expect(statusOf(await ask(`CONNECT ${target} HTTP/1.1\r\nHost: ok.test:${port}\r\n\r\n`))).toBe(400);
});

test("an answer to CONNECT amid answers that are still to come is not one", async () => {
  const slow = await rawServer();
  machine.allow([`ok.test:*`, `127.0.0.1:*`]);
  const answer = await ask(`GET http://ok.test:${slow.port}/ HTTP/1.1\r\nHost: x\r\n\r\nCONNECT ok.test:${slow.port} HTTP/1.1\r\nHost: x\r\n\r\n`);
  expect(answer).toBe("");
});

test("heads that are too long, garbage and nothing at all", async () => {
  expect(statusOf(await ask(get(`http://ok.test:${port}/`, `X: ${"x".repeat(LIMITS.egressHeadBytes)}\r\n`)))).toBe(431);
  expect(statusOf(await ask(get(`http://ok.test:${port}/${"x".repeat(LIMITS.egressHeadBytes)}`)))).toBe(431);
  expect(statusOf(await ask("\0\0\0 garbage\r\n\r\n"))).toBe(400);
  expect(statusOf(await ask("GET http://ok.test/ HTTP/9.9\r\n\r\n"))).toBe(400);
  expect(seen).toEqual([]);
});

test("a machine that is not known, or writes its own first line, is not served", async () => {
  expect(await ask(get(`http://ok.test:${port}/`), OTHER)).toBe("");
  const socket = connect(proxy.socketPath);
  open.push(socket.on("error", () => undefined));
  socket.write(get(`http://ok.test:${port}/`));
  expect(await said(socket)).toBe("");
  // A second line of the same kind is no HTTP.
  expect(statusOf(await ask(`MW1 ${OTHER} 3128\n${get(`http://ok.test:${port}/`)}`))).toBe(400);
  expect(seen).toEqual([]);
});

test("one machine's list is not another's", async () => {
  const other = proxy.admit(OTHER, []);
  expect(statusOf(await ask(get(`http://ok.test:${port}/`), OTHER))).toBe(403);
  expect(statusOf(await ask(get(`http://ok.test:${port}/`)))).toBe(200);
  expect(other.report().refused).toBe(1);
  expect(machine.report().refused).toBe(0);
});

test("a list that changes holds at once: what is open and no longer allowed ends", async () => {
  const raw = await rawServer();
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`]);
  const socket = await tunnel(`ok.test:${raw.port}`);
  tlsConnect({ socket, servername: "ok.test", rejectUnauthorized: false }).on("error", () => undefined);
  while (Buffer.concat(raw.connections.flat()).length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  const pending = dial();
  pending.write(get(`http://ok.test:${raw.port}/`));
  while (raw.connections.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  machine.allow([`ok.test:${raw.port}`, `127.0.0.1:${raw.port}`, "more.test"]);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect([socket.destroyed, pending.destroyed]).toEqual([false, false]);
  machine.allow([]);
  for (const one of [socket, pending]) while (!one.destroyed) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(statusOf(await ask(get(`http://ok.test:${port}/`)))).toBe(403);
});

test("refusals are told once for each destination, counted always, and kept in a bounded number", async () => {
  const told: string[] = [];
  machine.onRefusal(({ host }) => told.push(host));
  for (let i = 0; i < 3; i++) await ask(get("http://again.test/"));
  const socket = dial();
  for (let i = 0; i < LIMITS.egressRefusalsKept + 20; i++) {
    socket.write(`GET http://n${i}.test/ HTTP/1.1\r\nHost: x\r\n\r\n`);
    await until(socket, /allowed_hosts in the task.*\n/);
  }
  const report = machine.report();
  expect(report.refusals[0]).toMatchObject({ host: "again.test", port: 80, reason: "not_allowed", count: 3 });
  expect(report.refusals).toHaveLength(LIMITS.egressRefusalsKept);
  expect(report.refused).toBe(3 + LIMITS.egressRefusalsKept + 20);
  expect(told).toHaveLength(LIMITS.egressRefusalsKept);
});

test("a machine that opens all it can gets no more, and leaves its neighbours theirs", async () => {
  const hold = await rawServer();
  machine.allow([`ok.test:*`, `127.0.0.1:*`]);
  const many = Array.from({ length: LIMITS.egressFlowsPerSandbox }, () => {
    const socket = dial();
    socket.write(get(`http://ok.test:${hold.port}/`));
    return socket;
  });
  while (hold.connections.length < many.length) await new Promise((resolve) => setTimeout(resolve, 10));
  const answer = await ask(get(`http://ok.test:${port}/`));
  expect(answer).toMatch(/^HTTP\/1\.1 503 this sandbox has as many connections/);
  expect(reasons()).toEqual(["busy"]);
  proxy.admit(OTHER, [`ok.test:${port}`, `127.0.0.1:${port}`]);
  expect(statusOf(await ask(get(`http://ok.test:${port}/`), OTHER))).toBe(200);
  for (const socket of many) socket.destroy();
  // What its clients have given up is free again.
  for (let status = 503; status !== 200; status = statusOf(await ask(get(`http://ok.test:${port}/`)))) await new Promise((resolve) => setTimeout(resolve, 10));
});

test("a flood of pipelined requests ends the connection, not the proxy", async () => {
  const hold = await rawServer();
  machine.allow([`ok.test:*`, `127.0.0.1:*`]);
  const socket = dial();
  socket.write(`GET http://ok.test:${hold.port}/ HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(5000));
  expect(await said(socket)).toBe("");
  expect(hold.connections.length).toBeLessThanOrEqual(LIMITS.egressPipelined);
  expect(statusOf(await ask(get(`http://ok.test:${port}/`)))).toBe(200);
});

test("slow heads are given up; a client that reads nothing holds nothing but itself", async () => {
  const slow = dial();
  const timer = setInterval(() => slow.write("X: y\r\n"), 500);
  slow.write(`GET http://ok.test:${port}/ HTTP/1.1\r\n`);
  const silent = await tunnel(`ok.test:${port}`);
  const [first, second] = await Promise.all([said(slow), said(silent)]);
  clearInterval(timer);
  expect(statusOf(first)).toBe(408);
  expect(second).toMatch(/no TLS began within 10 seconds/);
  expect(statusOf(await ask(get(`http://ok.test:${port}/`)))).toBe(200);
});

test("servers that are away, hang up or talk nonsense are told as such", async () => {
  const hangUp = await rawServer((socket) => socket.once("data", () => socket.destroy()));
  const nonsense = await rawServer((socket) => socket.once("data", () => socket.end("hello\r\n\r\n")));
  const half = await rawServer((socket) => socket.once("data", () => socket.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", () => socket.destroy())));
  const away = createServer();
  const awayPort = await listening(away);
  await new Promise((resolve) => away.close(resolve));
  machine.allow(["ok.test:*", "127.0.0.1:*", "none.test"]);
  expect(statusOf(await ask(get(`http://ok.test:${awayPort}/`)))).toBe(504);
  expect(await ask(get(`http://none.test/`))).toMatch(/^HTTP\/1\.1 502 none\.test has no address/);
  expect(statusOf(await ask(get(`http://ok.test:${hangUp.port}/`)))).toBe(502);
  expect(statusOf(await ask(get(`http://ok.test:${nonsense.port}/`)))).toBe(502);
  const cut = await ask(`GET http://ok.test:${half.port}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
  expect(cut).toMatch(/half$/);
  expect(machine.report().refused).toBe(0);
});

test("a machine that is forgotten has nothing open any more", async () => {
  const hold = await rawServer();
  machine.allow([`ok.test:*`, `127.0.0.1:*`]);
  const socket = dial();
  socket.write(get(`http://ok.test:${hold.port}/`));
  while (hold.connections.length < 1) await new Promise((resolve) => setTimeout(resolve, 5));
  const idle = dial();
  await new Promise((resolve) => setTimeout(resolve, 50));
  proxy.forget(MINE);
  await Promise.all([said(socket), said(idle)]);
  expect(await ask(get(`http://ok.test:${port}/`))).toBe("");
});

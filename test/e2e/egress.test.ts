/** Programs that people use, in a machine whose network is a list: curl, Python and busybox of this host, against servers of this host that have names of their own. */
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import type { AddressInfo, Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend, runDirectory, type NativeBackend } from "../../src/sandbox/index.ts";
import type { RootFilesystem, Sandbox } from "../../src/sandbox/sandbox.ts";

let place = "";
let backend: NativeBackend;
let root: RootFilesystem;
let sandbox: Sandbox;
const ports = { http: 0, https: 0 };
const servers: Server[] = [];
const asked: string[] = [];

const ADDRESSES: Readonly<Record<string, string>> = { "web.test": "127.0.0.1", "a.wild.test": "127.0.0.1", "inside.wild.test": "127.0.0.3", "metadata.wild.test": "169.254.169.254" };

beforeAll(async () => {
  place = mkdtempSync(join(tmpdir(), "mw-e2e-egress-"));
  const home = join(place, "home");
  execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=web.test", "-addext", "subjectAltName=DNS:web.test,DNS:other.test", "-keyout", join(place, "key"), "-out", join(place, "cert")], { stdio: "ignore" });
  const answer: Parameters<typeof createHttpServer>[1] = (request, response) => {
    asked.push(`${request.method} ${request.headers.host} ${request.url}`);
    let bytes = 0;
    request.on("data", (chunk: Buffer) => (bytes += chunk.length));
    request.on("end", () => {
      if (request.url === "/away") response.writeHead(302, { location: "http://evil.test/" }).end();
      else if (request.url === "/large") response.end(Buffer.alloc(20_000_000, "x"));
      else response.end(`hello ${bytes}`);
    });
  };
  ports.http = await listening(createHttpServer(answer));
  ports.https = await listening(createHttpsServer({ key: readFileSync(join(place, "key")), cert: readFileSync(join(place, "cert")) }, answer));
  backend = await openNativeBackend({ home, resolve: async (name) => (ADDRESSES[name] === undefined ? [] : [ADDRESSES[name]]) });
  const images = await openImageStore({ home });
  root = await images.rootFilesystem(await images.resolve("host"));
  const here = Object.values(ports).flatMap((port) => [`web.test:${port}`, `*.wild.test:${port}`, `127.0.0.1:${port}`]);
  sandbox = await backend.create({ root, network: "allowlist", allow: here });
  await sandbox.files.write("/tmp/ca", readFileSync(join(place, "cert")));
  const busybox = ["/bin/busybox", "/usr/bin/busybox"].find((path) => existsSync(path));
  if (busybox === undefined) throw new Error("busybox is needed (Debian: apt-get install busybox-static)");
  await sandbox.files.write("/tmp/busybox", readFileSync(busybox), { mode: 0o755 });
});
afterAll(async () => {
  await backend.close();
  for (const server of servers) server.close();
  rmSync(place, { recursive: true, force: true });
});

async function listening(server: Server): Promise<number> {
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

async function sh(command: string): Promise<{ readonly code: number; readonly out: string }> {
  const { code, stdout } = await sandbox.run({ command: `{ ${command}\n} 2>&1`, timeoutMs: 60_000 });
  return { code, out: Buffer.from(stdout).toString() };
}

const python = (code: string): string => `python3 - <<'END'\n${code}\nEND`;

test("curl: HTTP, HTTPS through a tunnel, bodies, large answers; redirects out of the list are refused", async () => {
  expect(await sh(`curl -sS http://web.test:${ports.http}/a`)).toEqual({ code: 0, out: "hello 0" });
  expect(await sh(`curl -sS --cacert /tmp/ca https://web.test:${ports.https}/b`)).toEqual({ code: 0, out: "hello 0" });
  expect(await sh(`head -c 3000000 /dev/zero | curl -sS -T - http://web.test:${ports.http}/c`)).toEqual({ code: 0, out: "hello 3000000" });
  expect(await sh(`head -c 3000000 /dev/zero | curl -sS --cacert /tmp/ca --data-binary @- https://web.test:${ports.https}/d`)).toEqual({ code: 0, out: "hello 3000000" });
  for (const url of [`http://web.test:${ports.http}`, `https://a.wild.test:${ports.https}`]) expect((await sh(`curl -sSk ${url}/large | wc -c`)).out.trim()).toBe("20000000");
  expect((await sh(`curl -sSL -w '%{http_code}' -o /dev/null http://web.test:${ports.http}/away`)).out).toBe("403");
  expect(asked).toContain(`GET web.test:${ports.https} /b`);
});

test("curl: what is not allowed is said in words, by every way that an attacker would try", async () => {
  const http = (flags: string): Promise<{ readonly code: number; readonly out: string }> => sh(`curl -sS --max-time 20 ${flags}`);
  expect((await http("http://evil.test/")).out).toContain("evil.test:80 is not in the list of allowed hosts");
  expect((await http("-v https://evil.test/")).out).toMatch(/403 evil\.test:443 is not in the list/);
  // The host of the request is another than that of the tunnel, in its TLS.
  expect((await http(`-vk --resolve other.test:${ports.https}:127.0.0.1 --connect-to other.test:${ports.https}:web.test:${ports.https} https://other.test:${ports.https}/`)).code).not.toBe(0);
  expect(sandbox.egress?.report().refusals).toContainEqual(expect.objectContaining({ reason: "server_name", host: "web.test", message: expect.stringContaining('names the server "other.test"') }));
  // The header alone is not believed.
  await http(`-H 'Host: other.test' http://web.test:${ports.http}/hidden`);
  expect(asked).toContain(`GET web.test:${ports.http} /hidden`);
  for (const [name, port] of [["metadata.wild.test", ports.http], ["inside.wild.test", ports.http]] as const) {
    expect((await http(`http://${name}:${port}/`)).out, name).toMatch(/leads to .* it is not in the list/);
  }
  for (const host of ["169.254.169.254", "2852039166", "0xA9FEA9FE", "[::ffff:a9fe:a9fe]", "0.0.0.0", "127.0.0.1.", "[::1]"]) expect((await http(`--noproxy '' -o /dev/null -w '%{http_code}' http://${host}/`)).out, host).toBe("403");
  // Round the proxy there is nothing.
  for (const url of [`http://web.test:${ports.http}/`, `http://127.0.0.1:${ports.http}/`]) expect((await http(`--noproxy '*' ${url}`)).code, url).not.toBe(0);
  expect((await http(`--proxy '' --max-time 2 --interface lo http://169.254.169.254/`)).code).not.toBe(0);
  // Other ways out of a proxy.
  expect((await http(`-x http://127.0.0.1:3128 ftp://web.test/`)).out).toContain("this is the sandbox's proxy");
  expect((await http(`-x http://127.0.0.1:3128 -p http://web.test:${ports.http}/`)).out).toMatch(/is for TLS|Plain HTTP goes/);
});

test("python: urllib, http.client and raw sockets", async () => {
  expect((await sh(python(`import ssl, urllib.request\nprint(urllib.request.urlopen("http://web.test:${ports.http}/p").read().decode())\nprint(urllib.request.urlopen("https://web.test:${ports.https}/p", context=ssl.create_default_context(cafile="/tmp/ca")).read().decode())`))).out).toBe("hello 0\nhello 0\n");
  expect((await sh(python('import urllib.request\nurllib.request.urlopen("https://pypi.test/")'))).out).toContain("Tunnel connection failed: 403 pypi.test:443 is not in the list of allowed hosts");
  expect((await sh(python(`import socket\nfor a in [("127.0.0.1", ${ports.http}), ("8.8.8.8", 53), ("169.254.169.254", 80)]:\n  try:\n    socket.create_connection(a, 2); print("through")\n  except OSError as e: print("no")`))).out).toBe("no\nno\nno\n");
  expect((await sh(python('import socket\ntry:\n  socket.getaddrinfo("web.test", 80); print("resolved")\nexcept OSError: print("no")'))).out).toBe("no\n");
});

test("busybox wget", async () => {
  expect(await sh(`/tmp/busybox wget -q -O - http://web.test:${ports.http}/w`)).toEqual({ code: 0, out: "hello 0" });
  expect((await sh("/tmp/busybox wget -O - http://evil.test/")).out).toContain("403 evil.test:80 is not in the list of allowed hosts");
});

test("programs that are started without the variables have no way out; the machine's own ports need none", async () => {
  expect((await sh(`env -i curl -sS --max-time 5 http://web.test:${ports.http}/`)).code).not.toBe(0);
  const server = await sandbox.exec({ command: "cd /tmp && mkdir -p own && cd own && echo mine > f && exec python3 -m http.server 8001" });
  expect((await sh("until curl -sS http://localhost:8001/f; do sleep 0.3; done")).out).toContain("mine");
  await server.kill("SIGKILL");
});

test("when the proxy has gone there is no way out, and no other one", async () => {
  const other = await openNativeBackend({ home: join(place, "other"), resolve: async () => ["127.0.0.1"] });
  const machine = await other.create({ root, network: "allowlist", allow: ["*:*", "127.0.0.1:*"] });
  const get = { command: ["curl", "-sS", "--max-time", "30", `http://web.test:${ports.http}/`] };
  expect((await machine.run(get)).code).toBe(0);
  machine.egress?.allow([]);
  expect(Buffer.from((await machine.run(get)).stdout).toString()).toContain("not in the list");
  machine.egress?.allow(["*:*", "127.0.0.1:*"]);
  // As when its process had ended, but for the machine, which would end too.
  rmSync(`${runDirectory(join(place, "other"))}.egress`);
  expect((await machine.run(get)).code).not.toBe(0);
  await other.close();
});

/** Pulls from a real registry on this machine, through a proxy that misbehaves as real ones do. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { python, run, temporaryDirectory } from "../../../test/support/image-tools.ts";
import { systemRuntime, type Runtime } from "../../core/runtime.ts";
import { openImageStore, type LocalImageStore } from "../store.ts";

let base: string;
let registry: ChildProcess;
let registryPort: number;
const servers: Server[] = [];

beforeAll(async () => {
  base = mkdtempSync(join(tmpdir(), "mw-registry-"));
  ({ registry, port: registryPort } = await startRegistry());
  const bundle = join(base, "bundle");
  run("umoci", "init", "--layout", join(base, "l"));
  run("umoci", "new", "--image", `${join(base, "l")}:v1`);
  run("umoci", "unpack", "--image", `${join(base, "l")}:v1`, bundle);
  // Random, so that it stays large when compressed.
  python("import os, sys; open(sys.argv[1], 'wb').write(os.urandom(3 << 20))", join(bundle, "rootfs/random"));
  run("umoci", "repack", "--image", `${join(base, "l")}:v1`, bundle);
  run("skopeo", "copy", "-q", "--dest-tls-verify=false", `oci:${join(base, "l")}:v1`, `docker://127.0.0.1:${registryPort}/team/app:v1`);
});
afterAll(() => {
  registry.kill();
  for (const server of servers) server.close();
  rmSync(base, { recursive: true });
});

/** Returns true when it has answered by itself; else the request goes on to the registry. `pass` may change what comes back. */
type Behaviour = (request: IncomingMessage, response: ServerResponse, pass: (change: (body: Buffer) => Buffer | null) => void) => boolean;

/** Starts a proxy; its address stands for the registry. */
async function behind(behaviour: Behaviour): Promise<string> {
  const server = createServer((incoming, outgoing) => {
    const forward = (change: ((body: Buffer) => Buffer | null) | null): void => {
      const { host: _host, authorization: _authorization, ...headers } = incoming.headers;
      const upstream = request({ host: "127.0.0.1", port: registryPort, method: incoming.method, path: incoming.url, headers }, (answer) => {
        const parts: Buffer[] = [];
        answer.on("data", (part: Buffer) => parts.push(part));
        answer.on("end", () => {
          const body = Buffer.concat(parts);
          outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
          const changed = change === null ? body : change(body);
          // Null: half of it, and then the line is cut.
          if (changed === null) outgoing.write(body.subarray(0, body.length / 2), () => setTimeout(() => outgoing.destroy(), 20));
          else outgoing.end(changed);
        });
      });
      upstream.end();
    };
    if (!behaviour(incoming, outgoing, forward)) forward(null);
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** One that answers. It cannot be told to choose its port itself: when somebody else has taken that meanwhile, it ends, and is given another. */
async function startRegistry(): Promise<{ readonly registry: ChildProcess; readonly port: number }> {
  for (;;) {
    const port = await freePort();
    writeFileSync(join(base, "config.yml"), `version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: ${base}/data}}\nhttp: {addr: "127.0.0.1:${port}"}\n`);
    const child = spawn("docker-registry", ["serve", join(base, "config.yml")], { stdio: "ignore" });
    await once(child, "spawn");
    while (child.exitCode === null) {
      const answer = await fetch(`http://127.0.0.1:${port}/v2/`).catch(() => null);
      if (answer?.headers.has("docker-distribution-api-version") === true) return { registry: child, port };
      await systemRuntime.sleep(100);
    }
  }
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Waits are remembered, not waited for. */
function impatient(): Runtime & { readonly sleeps: number[] } {
  const sleeps: number[] = [];
  return { ...systemRuntime, sleeps, sleep: (ms, signal) => (ms >= 400 ? (sleeps.push(ms), Promise.resolve()) : systemRuntime.sleep(ms, signal)) };
}

async function openStore(auths: Record<string, string> = {}, runtime: Runtime = impatient()): Promise<LocalImageStore & { readonly home: string }> {
  const home = temporaryDirectory();
  const docker = join(home, "docker");
  mkdirSync(docker);
  writeFileSync(join(docker, "config.json"), JSON.stringify({ auths: Object.fromEntries(Object.entries(auths).map(([host, auth]) => [host, { auth: Buffer.from(auth).toString("base64") }])) }));
  return Object.assign(await openImageStore({ home, env: { HOME: home, DOCKER_CONFIG: docker }, runtime }), { home });
}

const layersOf = (store: { readonly home: string }): string[] => readdirSync(join(store.home, "images/layers"));

it("pulls by tag and by digest, once for all callers", async () => {
  const seen: string[] = [];
  const host = await behind(({ url = "" }) => (seen.push(url), false));
  const store = await openStore();
  const images = await Promise.all([1, 2, 3].map(() => store.resolve(`${host}/team/app:v1`)));
  expect(new Set(images.map(({ digest }) => digest)).size).toBe(1);
  expect(seen.filter((url) => url.includes("manifests"))).toHaveLength(1);
  const digest = (JSON.parse(run("skopeo", "inspect", "--tls-verify=false", `docker://127.0.0.1:${registryPort}/team/app:v1`)) as { Digest: string }).Digest;
  expect((await store.resolve(`${host}/team/app@${digest}`)).digest).toBe(images[0]?.digest);
  const before = seen.length;
  await store.resolve(`${host}/team/app:v1`);
  expect(seen).toHaveLength(before);
  await store.resolve(`${host}/team/app:v1`, { refresh: true });
  expect(seen.length).toBeGreaterThan(before);
  // The layer was here: only documents were asked for again.
  expect(seen.filter((url) => url.includes("blobs")).length).toBeLessThanOrEqual(4);
});

it.each([["anonymously", null], ["as the user whom docker login knows", "me:secret"]])("gets a token %s", async (_how, login) => {
  const seen: (string | undefined)[] = [];
  const scopes: (string | null)[] = [];
  const host: string = await behind((incoming, outgoing) => {
    const url = new URL(incoming.url ?? "", "http://x");
    if (url.pathname === "/token") {
      seen.push(incoming.headers.authorization);
      scopes.push(url.searchParams.get("scope"));
      const expected = login === null ? undefined : `Basic ${Buffer.from(login).toString("base64")}`;
      outgoing.writeHead(incoming.headers.authorization === expected ? 200 : 401).end('{"token":"t0ken"}');
      return true;
    }
    if (incoming.headers.authorization === "Bearer t0ken") return false;
    outgoing.writeHead(401, { "www-authenticate": `Bearer realm="http://${incoming.headers.host}/token",service="reg",scope="repository:team/app:pull"` }).end();
    return true;
  });
  const store = await openStore(login === null ? {} : { [host]: login });
  await store.resolve(`${host}/team/app:v1`);
  expect(layersOf(store)).toHaveLength(1);
  expect(seen).toHaveLength(1);
  expect(scopes).toEqual(["repository:team/app:pull"]);
});

it("answers a basic challenge, and says what to do when refused", async () => {
  const expected = `Basic ${Buffer.from("me:secret").toString("base64")}`;
  const host = await behind(({ headers }, outgoing) => {
    if (headers.authorization === expected) return false;
    outgoing.writeHead(401, { "www-authenticate": 'Basic realm="x"' }).end('{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}');
    return true;
  });
  await (await openStore({ [host]: "me:secret" })).resolve(`${host}/team/app:v1`);
  await expect((await openStore()).resolve(`${host}/team/app:v1`)).rejects.toMatchObject({ code: "registry_failed", message: expect.stringContaining("authentication required"), fix: expect.stringContaining(`docker login ${host}`) });
  await expect((await openStore({ [host]: "me:wrong" })).resolve(`${host}/team/app:v1`)).rejects.toMatchObject({ fix: expect.stringContaining("not accepted") });
});

it("waits as long as a busy registry asks, within reason", async () => {
  let refusals = 2;
  const host = await behind((_incoming, outgoing) => (refusals-- > 0 ? (outgoing.writeHead(429, { "retry-after": "7" }).end(), true) : false));
  const runtime = impatient();
  await (await openStore({}, runtime)).resolve(`${host}/team/app:v1`);
  expect(runtime.sleeps).toEqual([7000, 7000]);
  const busy = await behind((_incoming, outgoing) => (outgoing.writeHead(429, { "retry-after": "3600" }).end('{"errors":[{"message":"pull rate limit"}]}'), true));
  await expect((await openStore()).resolve(`${busy}/team/app:v1`)).rejects.toMatchObject({ code: "registry_failed", message: expect.stringContaining("429"), fix: expect.stringMatching(/in 3600 s.*docker login/) });
});

it("resumes a download that was cut", async () => {
  const ranges: (string | undefined)[] = [];
  const host = await behind(({ url = "", headers }, _outgoing, pass) => {
    if (!url.includes("/blobs/")) return false;
    ranges.push(headers.range);
    pass((body) => (body.length > 1 << 20 && headers.range === undefined ? null : body));
    return true;
  });
  const store = await openStore();
  await store.resolve(`${host}/team/app:v1`);
  expect(ranges.some((range) => /^bytes=\d{6,}-$/.test(range ?? ""))).toBe(true);
  expect(layersOf(store)).toHaveLength(1);
});

it("retries server errors, then gives up with the last one", async () => {
  let failures = 3;
  const host = await behind((_incoming, outgoing) => (failures-- > 0 ? (outgoing.writeHead(503).end(), true) : false));
  await (await openStore()).resolve(`${host}/team/app:v1`);
  const down = await behind((_incoming, outgoing) => (outgoing.writeHead(503).end("oops"), true));
  await expect((await openStore()).resolve(`${down}/team/app:v1`)).rejects.toMatchObject({ code: "registry_failed", message: expect.stringContaining("503") });
});

it("keeps nothing of blobs and manifests that were changed on the way", async () => {
  for (const kind of ["/blobs/", "/manifests/sha256:"]) {
    const host = await behind(({ url = "" }, _outgoing, pass) => {
      if (!url.includes(kind)) return false;
      pass((body) => Buffer.concat([body.subarray(0, -1), Buffer.from([(body.at(-1) ?? 0) ^ 1])]));
      return true;
    });
    const store = await openStore();
    const reference = kind === "/blobs/" ? `${host}/team/app:v1` : `${host}/team/app@${(JSON.parse(run("skopeo", "inspect", "--tls-verify=false", `docker://127.0.0.1:${registryPort}/team/app:v1`)) as { Digest: string }).Digest}`;
    await expect(store.resolve(reference)).rejects.toMatchObject({ code: "invalid_image" });
    expect(layersOf(store)).toEqual([]);
    expect(readdirSync(join(store.home, "images/tmp"))).toEqual([]);
  }
});

it("follows redirects without taking the credentials along, and not forever", async () => {
  const elsewhere: (string | undefined)[] = [];
  const other = await behind(({ headers }) => (elsewhere.push(headers.authorization), false));
  const expected = `Basic ${Buffer.from("me:secret").toString("base64")}`;
  const host = await behind(({ url = "", headers }, outgoing) => {
    if (headers.authorization !== expected) outgoing.writeHead(401, { "www-authenticate": 'Basic realm="x"' }).end();
    else if (url.includes("/blobs/")) outgoing.writeHead(307, { location: `http://${other}${url}` }).end();
    else return false;
    return true;
  });
  const store = await openStore({ [host]: "me:secret" });
  await store.resolve(`${host}/team/app:v1`);
  expect(elsewhere.length).toBeGreaterThan(0);
  expect(new Set(elsewhere)).toEqual(new Set([undefined]));
  const circle = await behind(({ url }, outgoing) => (outgoing.writeHead(302, { location: url }).end(), true));
  await expect((await openStore()).resolve(`${circle}/team/app:v1`)).rejects.toMatchObject({ message: expect.stringContaining("redirects more than") });
  const file = await behind((_incoming, outgoing) => (outgoing.writeHead(302, { location: "file:///etc/passwd" }).end(), true));
  await expect((await openStore()).resolve(`${file}/team/app:v1`)).rejects.toMatchObject({ message: expect.stringContaining("not followed") });
});

it("uses a mirror that the settings name", async () => {
  const store = await openStore();
  writeFileSync(join(store.home, "registries.toml"), `["docker.io"]\nmirror = "http://127.0.0.1:${registryPort}"\n`);
  expect((await store.resolve("team/app:v1")).source).toBe("team/app:v1");
  writeFileSync(join(store.home, "registries.toml"), `["docker.io"]\nmirrors = 1\n`);
  await expect(store.resolve("team/app:v2")).rejects.toMatchObject({ code: "invalid_input", message: expect.stringContaining("registries.toml") });
});

it("names the alias that would help when there is no registry or no such image", async () => {
  const store = await openStore();
  // Nobody listens on port 1.
  await expect(store.resolve("127.0.0.1:1/python:3.12-slim")).rejects.toMatchObject({ code: "registry_failed", fix: expect.stringContaining("mw image alias 127.0.0.1:1/python:3.12-slim mmdebstrap:bookworm+python3") });
  await expect(store.resolve(`127.0.0.1:${registryPort}/team/app:nothing`)).rejects.toMatchObject({ code: "not_found" });
});

it("stops when it is told to", async () => {
  const controller = new AbortController();
  const host = await behind(({ url = "" }) => {
    if (url.includes("/blobs/")) controller.abort(new Error("enough"));
    return url.includes("/blobs/");
  });
  const store = await openStore();
  await expect(store.resolve(`${host}/team/app:v1`, { signal: controller.signal })).rejects.toThrow("enough");
  await expect.poll(() => readdirSync(join(store.home, "images/tmp")), { timeout: 30_000 }).toEqual([]);
});

/** A service that is broken, slow, full, or after the key: each is an error in bounded time, and nothing of ours goes where it should not. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { systemRuntime, type Runtime } from "../../../src/core/runtime.ts";
import { envelope } from "../../../src/protocol/e2b/envelope.ts";
import { openRemoteBackend, type RemoteBackend } from "../../../src/sandbox/index.ts";
import type { RootFilesystem } from "../../../src/sandbox/sandbox.ts";

const KEY = "e2b_feedfacefeedfacefeedface";
const ROOT: RootFilesystem = { digest: `sha256:${"a".repeat(64)}`, layers: ["/nowhere"], parts: [], env: {}, workdir: "/", user: "", entrypoint: [], cmd: [] };

type Handler = (request: IncomingMessage, response: ServerResponse) => void;
interface Asked {
  readonly line: string;
  readonly headers: IncomingMessage["headers"];
}

const servers: Server[] = [];
const backends: RemoteBackend[] = [];
afterEach(async () => {
  for (const backend of backends.splice(0)) await backend.close();
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
});

async function listen(handler: Handler): Promise<{ readonly url: URL; readonly asked: Asked[] }> {
  const asked: Asked[] = [];
  const server = createServer((request, response) => {
    asked.push({ line: `${request.method} ${request.url}`, headers: request.headers });
    handler(request, response);
    request.resume();
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`), asked };
}

const json = (response: ServerResponse, status: number, document: unknown, headers: Record<string, string> = {}): void => void response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(document));

/** A service that has every image, makes a sandbox, and leaves what happens in it to `agent`. */
function service(agent: Handler, more: (request: IncomingMessage, response: ServerResponse) => boolean = () => false): Handler {
  return (request, response) => {
    if (more(request, response)) return;
    const { method, url = "" } = request;
    if (request.headers["e2b-sandbox-id"] !== undefined) agent(request, response);
    else if (method === "GET" && url.startsWith("/v2/sandboxes")) json(response, 200, []);
    else if (url.startsWith("/templates/aliases/")) json(response, 200, { templateID: "guest" });
    else if (url.startsWith("/snapshots")) json(response, 200, [{ snapshotID: "image" }]);
    else if (method === "POST" && url === "/v2/sandboxes") json(response, 201, { sandboxID: "sbx1", envdAccessToken: "access" });
    else if (method === "GET" && url.startsWith("/sandboxes/")) json(response, 200, { state: "running" });
    else response.writeHead(204).end();
  };
}

/** Time passes at once where something waits, so that no test does; `waited` says for how long it would have been. */
function hasty(): { readonly runtime: Runtime; readonly waited: number[] } {
  const waited: number[] = [];
  const sleep: Runtime["sleep"] = (ms, signal) => {
    waited.push(ms);
    return systemRuntime.sleep(ms > 5000 && signal !== undefined ? ms : Math.min(ms, 5), signal);
  };
  return { runtime: { ...systemRuntime, sleep }, waited };
}

async function open(url: URL, runtime: Runtime = hasty().runtime): Promise<RemoteBackend> {
  const backend = await openRemoteBackend({ url, key: KEY, runtime, log: () => undefined });
  backends.push(backend);
  return backend;
}

test("a wrong key is said so, with what to do, and without the key", async () => {
  const { url } = await listen((_request, response) => json(response, 401, { code: 401, message: `the key ${KEY} is wrong` }));
  const error = await open(url).catch((failure: unknown) => failure);
  expect(error).toMatchObject({ code: "unauthorized", message: expect.stringContaining("the key *** is wrong"), fix: expect.stringContaining("MW_REMOTE_KEY") });
  expect(JSON.stringify(error) + String((error as Error).stack)).not.toContain(KEY);
});

test("nobody there: an environment error that names the address", async () => {
  const { url } = await listen(() => undefined);
  servers[0]?.close();
  servers[0]?.closeAllConnections();
  await new Promise((resolve) => setTimeout(resolve, 50));
  await expect(open(url)).rejects.toMatchObject({ code: "environment", message: expect.stringContaining(url.origin) });
});

test("a redirection is not followed: no other server learns the key", async () => {
  const other = await listen((_request, response) => json(response, 200, []));
  for (const status of [301, 302, 307, 308]) {
    const { url } = await listen((_request, response) => response.writeHead(status, { location: `${other.url.href}v2/sandboxes` }).end());
    await expect(open(url)).rejects.toMatchObject({ code: "sandbox_failed", message: expect.stringContaining("not followed") });
  }
  expect(other.asked).toEqual([]);
});

test("the key goes to the control plane alone: not to the machines' side, not to where files are to be put", async () => {
  const store = await listen((_request, response) => response.writeHead(200).end());
  const data = await listen((_request, response) => response.writeHead(502).end());
  const { url, asked } = await listen(
    service(
      () => undefined,
      (request, response) => {
        const { method, url: path = "" } = request;
        if (path.startsWith("/templates/aliases/")) json(response, 404, { code: 404, message: "no" });
        else if (path === "/v3/templates") json(response, 202, { templateID: "tpl1", buildID: "bld1" });
        else if (path.includes("/files/")) json(response, 201, { present: false, url: `${store.url.href}put` });
        else if (path.endsWith("/status")) json(response, 200, { status: "ready" });
        else if (path.startsWith("/snapshots")) json(response, 200, []);
        else return method === "never";
        return true;
      },
    ),
  );
  const backend = await openRemoteBackend({ url, key: KEY, sandboxUrl: data.url, runtime: hasty().runtime, log: () => undefined });
  backends.push(backend);
  await expect(backend.create({ root: ROOT })).rejects.toMatchObject({ code: "sandbox_failed" });
  expect(store.asked.map(({ line }) => line)).toEqual(["PUT /put"]);
  expect(data.asked.length).toBeGreaterThan(0);
  for (const { headers } of [...store.asked, ...data.asked]) expect(JSON.stringify(headers)).not.toContain(KEY);
  for (const { headers } of asked) expect(headers["x-api-key"]).toBe(KEY);
});

test("too many requests: waited for as long as the service says, at most half a minute, and not for ever", async () => {
  let refusals = 0;
  const { url } = await listen((_request, response) => (++refusals <= 2 ? json(response, 429, { message: "later" }, { "retry-after": String(refusals === 1 ? 2 : 86_400) }) : json(response, 200, [])));
  const { runtime, waited } = hasty();
  await open(url, runtime);
  expect(waited.filter((ms) => ms >= 1000 && ms <= 30_000)).toEqual([2000, 30_000]);
  const full = await listen((_request, response) => json(response, 429, { message: "never" }));
  await expect(open(full.url)).rejects.toMatchObject({ code: "overloaded", retryable: true });
  expect(full.asked.length).toBe(4);
});

test("a service that fails is asked again where that can do no harm, and never where it could make two sandboxes", async () => {
  let failures = 0;
  const { url, asked } = await listen(service(() => undefined, (request, response) => {
    if (request.method === "GET" && request.url?.startsWith("/v2/sandboxes?limit") === true && ++failures <= 2) response.writeHead(500).end("<html>oops");
    else if (request.method === "POST" && request.url === "/v2/sandboxes") response.writeHead(503).end();
    else return false;
    return true;
  }));
  const backend = await open(url);
  expect(failures).toBe(3);
  await expect(backend.create({ root: ROOT })).rejects.toMatchObject({ code: "sandbox_failed" });
  expect(asked.filter(({ line }) => line === "POST /v2/sandboxes").length).toBe(1);
});

test("an answer that is cut off after the sandbox was made: it is looked for and killed", async () => {
  let mark = "";
  const { url, asked } = await listen((request, response) => {
    if (request.method === "POST" && request.url === "/v2/sandboxes") {
      const parts: Buffer[] = [];
      request.on("data", (part: Buffer) => parts.push(part));
      request.on("end", () => {
        mark = (JSON.parse(Buffer.concat(parts).toString()) as { metadata: { manyworlds_sandbox: string } }).metadata.manyworlds_sandbox;
        response.destroy();
      });
    } else if (request.method === "GET" && request.url?.includes("metadata=") === true) json(response, 200, [{ sandboxID: "orphan" }]);
    else service(() => undefined)(request, response);
  });
  const backend = await open(url);
  await expect(backend.create({ root: ROOT })).rejects.toMatchObject({ code: "sandbox_failed" });
  expect(mark).toMatch(/^sbx/);
  expect(asked.map(({ line }) => line)).toContain("DELETE /sandboxes/orphan");
  expect(await backend.list()).toEqual([]);
});

test.each<[string, (response: ServerResponse) => void]>([
  ["no JSON", (response) => void response.end("<html>")],
  ["another document", (response) => json(response, 200, { sandboxes: 7 })],
  ["an id that would change the path", (response) => json(response, 200, [{ sandboxID: "../../admin" }])],
  ["more than anybody reads", (response) => void response.end(`["${"x".repeat(9 << 20)}"]`)],
  ["half of it", (response) => {
    response.writeHead(200, { "content-length": "1000" });
    response.write("[");
    setTimeout(() => response.destroy(), 20);
  }],
])("nonsense instead of a list: %s", async (_what, answer) => {
  const { url } = await listen((_request, response) => answer(response));
  await expect(open(url)).rejects.toMatchObject({ code: expect.stringMatching(/sandbox_failed|environment/) });
});

const STARTED = envelope(0, { event: { start: { pid: 7 } } });

test.each<[string, (response: ServerResponse) => void]>([
  ["nothing", (response) => void response.end()],
  ["no envelope", (response) => void response.end("what?")],
  ["a message of four gigabytes", (response) => void response.end(Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 1]))],
  ["a compressed message", (response) => void response.end(Buffer.concat([Buffer.from([1, 0, 0, 0, 2]), Buffer.from("{}")]))],
  ["no JSON in it", (response) => void response.end(Buffer.concat([Buffer.from([0, 0, 0, 0, 2]), Buffer.from("{{")]))],
  ["null", (response) => void response.end(envelope(0, null))],
  ["the start, then half a message", (response) => void response.end(Buffer.concat([STARTED, Buffer.from([0, 0, 0, 9, 9, 1])]))],
  ["the start, then bytes that are no frame of init's", (response) => void response.write(Buffer.concat([STARTED, envelope(0, { event: { data: { stdout: Buffer.from("garbage, garbage, garbage").toString("base64") } } })]))],
  ["the start, then output that is no base64", (response) => void response.end(Buffer.concat([STARTED, envelope(0, { event: { data: { stdout: { not: "text" } } } })]))],
  ["an end at once", (response) => void response.end(Buffer.concat([STARTED, envelope(0, { event: { end: { exitCode: 1, exited: true, status: "exit status 1" } } }), envelope(2, {})]))],
  ["an error of the protocol's", (response) => void response.end(envelope(2, { error: { code: "internal", message: "x".repeat(100_000) } }))],
])("a machine whose agent answers %s is an error, and is killed", async (_what, answer) => {
  const { url, asked } = await listen(
    service((request, response) => {
      if (request.url?.endsWith("/Start") === true) {
        response.writeHead(200, { "content-type": "application/connect+json" });
        answer(response);
      } else json(response, 200, {});
    }),
  );
  const backend = await open(url);
  const error = await backend.create({ root: ROOT }).catch((failure: unknown) => failure);
  expect(error).toMatchObject({ code: expect.stringMatching(/sandbox_failed|sandbox_gone/) });
  expect(String(error).length).toBeLessThan(1000);
  expect(asked.map(({ line }) => line)).toContain("DELETE /sandboxes/sbx1");
  expect(await backend.list()).toEqual([]);
});

test("a machine whose init never answers is given up, and killed", async () => {
  const { url, asked } = await listen(
    service((request, response) => {
      if (request.url?.endsWith("/Start") === true) response.writeHead(200, { "content-type": "application/connect+json" }).write(STARTED);
      else json(response, 200, {});
    }),
  );
  const backend = await open(url);
  await expect(backend.create({ root: ROOT })).rejects.toMatchObject({ code: "sandbox_failed", message: expect.stringContaining("has not answered") });
  expect(asked.map(({ line }) => line)).toContain("DELETE /sandboxes/sbx1");
});

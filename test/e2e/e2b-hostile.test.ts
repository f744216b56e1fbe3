/** What no honest client of the E2B protocol sends, against `mw serve`: it is refused, and whoever comes next is served as before. */
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sandbox } from "e2b";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { otherOwner } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-e2b-hostile-"));
const home = join(base, "home");
const KEY = `e2b_${"c3".repeat(20)}`;
let server: Served;
let sandbox: Sandbox;
let token = "";
const options = (): { apiKey: string; apiUrl: string; sandboxUrl: string } => ({ apiKey: KEY, apiUrl: server.url, sandboxUrl: server.url });
beforeAll(async () => {
  server = await serve({ home, key: KEY });
  const made = (await (await fetch(`${server.url}/v2/sandboxes`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: JSON.stringify({ templateID: "host", timeout: 3600 }) })).json()) as { sandboxID: string; envdAccessToken: string };
  token = made.envdAccessToken;
  sandbox = await Sandbox.connect(made.sandboxID, options());
});
afterAll(async () => {
  expect((await sandbox.commands.run("echo alive")).stdout).toBe("alive\n");
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

interface Answer {
  readonly status: number;
  readonly body: Buffer;
}

function raw(method: string, path: string, headers: Record<string, string | number>, body?: Buffer): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = request({ host: "127.0.0.1", port: server.port, path, method, headers: { ...(body === undefined ? {} : { "content-length": body.length }), ...headers }, agent: false }, (response) => {
      const parts: Buffer[] = [];
      response.on("data", (data: Buffer) => parts.push(data));
      response.on("end", () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(parts) }));
      response.on("error", reject);
    });
    sent.on("error", reject).end(body);
  });
}

const guest = (more: Record<string, string | number> = {}): Record<string, string | number> => ({ "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "49983", "x-access-token": token, ...more });

function envelope(document: unknown, flags = 0, length?: number): Buffer {
  const text = Buffer.from(typeof document === "string" ? document : JSON.stringify(document));
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(length ?? text.length, 1);
  return Buffer.concat([head, text]);
}

const START = "/process.Process/Start";
const STREAM = { "content-type": "application/connect+json", "connect-protocol-version": "1" };
const START_MESSAGE = { process: { cmd: "/bin/echo", args: ["x"] } };

describe("the agent", () => {
  it("wants the sandbox's own token", async () => {
    const other = await Sandbox.create("host", options());
    const info = (await (await fetch(`${server.url}/sandboxes/${other.sandboxId}`, { headers: { "x-api-key": KEY } })).json()) as { envdAccessToken: string };
    for (const given of [undefined, "", "x", `${token}x`, info.envdAccessToken]) {
      const headers = given === undefined ? { "e2b-sandbox-id": sandbox.sandboxId } : guest({ "x-access-token": given });
      for (const [method, path] of [["POST", START], ["POST", "/filesystem.Filesystem/ListDir"], ["GET", "/files?path=/etc/passwd"], ["POST", "/files?path=/x"], ["GET", "/metrics"], ["GET", "/envs"]] as const) {
        expect((await raw(method, path, { ...headers, ...STREAM }, method === "POST" ? envelope(START_MESSAGE) : undefined)).status, `${method} ${path} ${given ?? "none"}`).toBe(401);
      }
    }
    // The key of the control plane is none of the agent's.
    expect((await raw("POST", START, { "e2b-sandbox-id": sandbox.sandboxId, "x-api-key": KEY, ...STREAM }, envelope(START_MESSAGE))).status).toBe(401);
    await other.kill();
  });

  it("has no routes of its orchestrator", async () => {
    for (const path of ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade", "/files/compose", "/INIT", "/init/", "//init", "/%69nit"]) {
      for (const method of ["GET", "POST", "PUT", "DELETE"]) expect((await raw(method, path, guest({ "content-type": "application/json" }), method === "GET" ? undefined : Buffer.from("{}"))).status, `${method} ${path}`).toBe(404);
    }
    // Nor by another way of naming the sandbox.
    expect((await raw("POST", "/init", { host: `49983-${sandbox.sandboxId}.localhost`, "x-access-token": token }, Buffer.from("{}"))).status).toBe(404);
  });

  it("says that a sandbox that is not there is gone, whoever asks", async () => {
    for (const id of ["sbx00000000000000000000", "nothing", "../../etc", "a".repeat(5000), "__proto__"]) {
      const answer = await raw("GET", "/health", guest({ "e2b-sandbox-id": id }));
      expect([answer.status, (JSON.parse(answer.body.toString()) as { code: number }).code], id.slice(0, 30)).toEqual([502, 502]);
    }
    expect((await raw("GET", "/files?path=/etc/passwd&signature=v1_short", {})).status).toBe(401);
    expect((await raw("GET", `/files?path=/etc/passwd&signature=v1_${"A".repeat(43)}`, {})).status).toBe(401);
  });

  it("takes no malformed envelope", async () => {
    const bad: readonly (readonly [string, Buffer])[] = [
      ["empty", Buffer.alloc(0)],
      ["short", Buffer.from([0, 0, 0])],
      ["longer than it says", envelope(START_MESSAGE, 0, 3)],
      ["shorter than it says", envelope(START_MESSAGE, 0, 100_000)],
      ["4 GiB", envelope(START_MESSAGE, 0, 0xffff_ffff)],
      ["compressed", envelope(START_MESSAGE, 1)],
      ["two", Buffer.concat([envelope(START_MESSAGE), envelope(START_MESSAGE)])],
      ["no JSON", envelope("{")],
      ["a list", envelope([])],
      ["null", envelope("null")],
      ["no command", envelope({ process: { cmd: "" } })],
      ["numbers for text", envelope({ process: { cmd: 5 } })],
      ["a terminal of size 0", envelope({ ...START_MESSAGE, pty: { size: { cols: 0, rows: 0 } } })],
      ["NUL", envelope({ process: { cmd: "a\u0000b" } })],
      ["deep", envelope("[".repeat(100_000))],
      ["garbage", Buffer.from(Array.from({ length: 4096 }, (_, index) => (index * 73) & 255))],
    ];
    for (const [what, body] of bad) {
      const answer = await raw("POST", START, guest(STREAM), body);
      expect(answer.status, what).toBe(200);
      expect(answer.body[0], what).toBe(2);
      const end = JSON.parse(answer.body.subarray(5).toString()) as { error?: { code: string } };
      expect(["invalid_argument", "unimplemented", "resource_exhausted"], what).toContain(end.error?.code);
    }
    for (const type of ["application/json", "text/plain", "application/grpc", "application/connect+proto"]) {
      expect((await raw("POST", START, guest({ "content-type": type }), envelope(START_MESSAGE))).body.toString(), type).toContain("unimplemented");
    }
    expect((await raw("POST", "/process.Process/SendSignal", guest({ "content-type": "application/json" }), Buffer.from('{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}'))).status).toBe(404);
    expect((await raw("POST", "/process.Process/SendInput", guest({ "content-type": "application/json" }), Buffer.from('{"process":{},"input":{}}'))).status).toBe(400);
    for (const path of ["/process.Process/constructor", "/process.Process/__proto__", "/process.Process/", "/process.Other/Start", "/filesystem.Filesystem/Stat/x"]) expect((await raw("POST", path, guest({ "content-type": "application/json" }), Buffer.from("{}"))).status, path).toBe(404);
  });

  it("reads no more of a body than it may", async () => {
    const answer = await raw("POST", "/filesystem.Filesystem/Stat", guest({ "content-type": "application/json", "content-length": 1 << 30 }), Buffer.from("{")).catch((error: Error) => error);
    // Refused before it comes; a client that goes on sending may find the connection closed.
    expect(answer instanceof Error ? 429 : answer.status).toBe(429);
  });

  it("keeps paths inside", async () => {
    writeFileSync(join(base, "secret"), "of the host");
    await sandbox.commands.run(`ln -s ${base}/secret /leak; ln -s / /up; ln -s loop /loop`);
    for (const path of [`${base}/secret`, "/leak", `/up/../../..${base}/secret`, `../../../..${base}/secret`, "/loop", "~nobody/x", "/etc/passwd\u0000.txt"]) {
      const answer = await raw("GET", `/files?path=${encodeURIComponent(path)}`, guest());
      expect([400, 404], path).toContain(answer.status);
    }
    const boundary = "x".repeat(20);
    const form = (name: string): Buffer => Buffer.from(`--${boundary}\r\ncontent-disposition: form-data; name="file"; filename="${name}"\r\n\r\nhello\r\n--${boundary}--\r\n`);
    const type = { "content-type": `multipart/form-data; boundary=${boundary}` };
    expect((await raw("POST", "/files", guest(type), form("../../../../../../escaped"))).status).toBe(200);
    expect(await sandbox.files.read("/escaped")).toBe("hello");
    for (const [what, headers, body] of [
      ["no boundary", { "content-type": "multipart/form-data" }, form("/a")],
      ["no end", type, form("/a").subarray(0, 80)],
      ["no file", type, Buffer.from(`--${boundary}--\r\n`)],
      ["no name", type, form("")],
      ["another type", { "content-type": "text/plain" }, Buffer.from("x")],
      ["no path", { "content-type": "application/octet-stream" }, Buffer.from("x")],
      ["no gzip", { "content-type": "application/octet-stream", "content-encoding": "gzip" }, Buffer.from("not gzip")],
    ] as const) {
      expect((await raw("POST", what === "no gzip" ? "/files?path=/z" : "/files", guest(headers), body)).status, what).toBe(400);
    }
    expect(await sandbox.files.exists("/z")).toBe(false);
  });

  it("an upload that breaks off leaves nothing, and does not hurt the next", async () => {
    const socket = connect(server.port, "127.0.0.1");
    await once(socket, "connect");
    socket.write(`POST /files?path=/half HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: ${sandbox.sandboxId}\r\nx-access-token: ${token}\r\ncontent-type: application/octet-stream\r\ncontent-length: 100000\r\n\r\n${"x".repeat(5000)}`);
    socket.destroy();
    await sandbox.files.write("/whole", "y");
    expect(await sandbox.files.exists("/half")).toBe(false);
  });
});

describe("the control plane", () => {
  const control = (method: string, path: string, body?: unknown, key = KEY): Promise<Answer> => raw(method, path, { "x-api-key": key, "content-type": "application/json" }, body === undefined ? undefined : Buffer.from(JSON.stringify(body)));

  it("wants a key, and no other owner's", async () => {
    const { "x-api-key": other } = otherOwner(home);
    const { sandboxId: id } = sandbox;
    for (const [method, path, body] of [
      ["GET", ""],
      ["DELETE", ""],
      ["POST", "/connect", {}],
      ["POST", "/timeout", { timeout: 1 }],
      ["POST", "/refreshes", {}],
      ["POST", "/pause", {}],
      ["POST", "/resume", {}],
      ["POST", "/fork", {}],
      ["POST", "/snapshots", {}],
      ["PUT", "/network", {}],
      ["GET", "/metrics"],
      ["GET", "/logs"],
    ] as const) {
      expect((await control(method, `/sandboxes/${id}${path}`, body, other)).status, path).toBe(404);
      const wrong = await control(method, `/sandboxes/${id}${path}`, body, "wrong");
      expect([wrong.status, (JSON.parse(wrong.body.toString()) as { code: number }).code], path).toEqual([401, 401]);
    }
    expect(JSON.parse((await control("GET", "/v2/sandboxes", undefined, other)).body.toString())).toEqual([]);
    expect((await control("POST", "/v2/sandboxes", { templateID: `dir:${base}` }, other)).status).toBe(403);
  });

  it("refuses fields that it does not know, and values that ask for what is not there", async () => {
    for (const body of [
      {},
      { templateID: "" },
      { templateID: "host", timeOut: 5 },
      { templateID: "host", timeout: -1 },
      { templateID: "host", timeout: 1e9 },
      { templateID: "host", secure: false },
      { templateID: "host", mcp: {} },
      { templateID: "host", iam: { tokens: {} } },
      { templateID: "host", volumeMounts: [{ name: "a", path: "/a" }] },
      // Names without everything else denied, addresses, what is no name, and one address denied.
      { templateID: "host", network: { allowOut: ["example.com"] } },
      { templateID: "host", network: { allowOut: ["1.1.1.1"], denyOut: ["0.0.0.0/0"] } },
      { templateID: "host", network: { allowOut: ["http://example.com"], denyOut: ["0.0.0.0/0"] } },
      { templateID: "host", network: { denyOut: ["10.0.0.0/8"] } },
      { templateID: "host", network: { egressProxy: { address: "x:1" } } },
      { templateID: "host", network: { unknown: 1 } },
      { templateID: "host", autoPauseMemory: true },
      { templateID: "host", autoResume: { enabled: true } },
      { templateID: "host", metadata: { a: 1 } },
      { templateID: "host", metadata: { a: "x".repeat(20_000) } },
      { templateID: "host", envVars: { "A=B": "c" } },
      { templateID: "host", envVars: { A: "a\u0000b" } },
    ]) {
      const answer = await control("POST", "/v2/sandboxes", body);
      const document = JSON.parse(answer.body.toString()) as { code: number; message: string };
      expect([answer.status, document.code], JSON.stringify(body).slice(0, 100)).toEqual([400, 400]);
      expect(document.message.length).toBeGreaterThan(10);
    }
    for (const path of ["/v2/sandboxes?limit=0", "/v2/sandboxes?metadatas=x", "/snapshots?sandbox=x", "/sandboxes/metrics", `/sandboxes/${sandbox.sandboxId}/metrics?from=1`, `/v2/sandboxes/${sandbox.sandboxId}/logs?level=all`, "/v2/templates?owner=x", "/volumes", "/secrets", "/api-keys", "/volumes/x"]) expect((await control("GET", path)).status, path).toBe(400);
    for (const [path, body] of [["resume", { autoPause: true }], ["resume", { memory: "no" }], ["connect", { autoPause: true }], ["pause", { keepMemory: true }], ["fork", { count: 0 }], ["snapshots", { names: [] }], ["timeout", {}], ["refreshes", { timeout: 5 }]] as const) expect((await control("POST", `/sandboxes/${sandbox.sandboxId}/${path}`, body)).status, path).toBe(400);
    expect((await control("GET", "/v2/sandboxes?state=dead")).status).toBe(400);
    expect((await raw("POST", "/v2/sandboxes", { "x-api-key": KEY, "content-type": "application/json" }, Buffer.from("{"))).status).toBe(400);
  });

  it("lists in pages that neither repeat nor skip when sandboxes end meanwhile", async () => {
    const ids: string[] = [];
    for (let at = 0; at < 5; at++) ids.push((JSON.parse((await control("POST", "/v2/sandboxes", { templateID: "host", metadata: { paged: "yes" } })).body.toString()) as { sandboxID: string }).sandboxID);
    const seen: string[] = [];
    let token = "";
    do {
      const answer = await fetch(`${server.url}/v2/sandboxes?metadata=paged%3Dyes&order=asc&limit=2&nextToken=${token}`, { headers: { "x-api-key": KEY } });
      seen.push(...((await answer.json()) as { sandboxID: string }[]).map(({ sandboxID }) => sandboxID));
      token = answer.headers.get("x-next-token") ?? "";
      // The one that the next page begins after is gone.
      if (seen.length === 2) await control("DELETE", `/sandboxes/${seen[1] ?? ""}`);
    } while (token !== "");
    expect(seen).toEqual(ids);
    for (const id of ids) await control("DELETE", `/sandboxes/${id}`);
  });

  it("two builds of one template at once do not take each other's files, and say nothing of where they lie", async () => {
    const hash = "a".repeat(64);
    const builds: { templateID: string; buildID: string }[] = [];
    for (let at = 0; at < 2; at++) builds.push(JSON.parse((await control("POST", "/v3/templates", { name: "twice", tags: [`t${at}`] })).body.toString()) as { templateID: string; buildID: string });
    const directory = join(base, "twice");
    mkdirSync(directory);
    writeFileSync(join(directory, "f"), "x");
    const archive = execFileSync("tar", ["-C", directory, "-cz", "f"]);
    const { url } = JSON.parse((await control("GET", `/templates/${builds[0]?.templateID ?? ""}/files/${hash}`)).body.toString()) as { url: string };
    expect((await raw("PUT", new URL(url).pathname, { "content-type": "application/octet-stream" }, archive)).status).toBe(200);
    const status = async ({ templateID, buildID }: { templateID: string; buildID: string }): Promise<{ status: string; logs: string[] }> => JSON.parse((await control("GET", `/templates/${templateID}/builds/${buildID}/status`)).body.toString()) as { status: string; logs: string[] };
    for (const build of builds) {
      expect((await control("POST", `/v2/templates/${build.templateID}/builds/${build.buildID}`, { fromImage: "host", steps: [{ type: "COPY", args: ["f", "/f"], filesHash: hash }] })).status).toBe(202);
      await expect.poll(async () => (await status(build)).status, { timeout: 120_000 }).toBe("ready");
      expect((await status(build)).logs.join("\n")).not.toContain("builds/");
    }
    expect((JSON.parse((await control("GET", "/templates/twice")).body.toString()) as { builds: unknown[] }).builds).toHaveLength(2);
    expect((JSON.parse((await control("GET", `/templates/twice/builds/${builds[0]?.buildID ?? ""}/logs?limit=1&direction=backward`)).body.toString()) as { logs: { message: string }[] }).logs[0]?.message).toContain("built");
    expect((await control("PATCH", "/v2/templates/twice", { public: true })).status).toBe(400);
    expect((await control("DELETE", "/templates/twice")).status).toBe(204);
  });

  it("builds say what is wrong, and write nothing where they should not", async () => {
    const { templateID, buildID } = JSON.parse((await control("POST", "/v3/templates", { name: "hostile" })).body.toString()) as { templateID: string; buildID: string };
    expect((await raw("PUT", "/e2b-uploads/guessed", { "content-type": "application/octet-stream" }, Buffer.from("x"))).status).toBe(404);
    expect((await control("GET", `/templates/${templateID}/files/..%2f..%2fx`)).status).toBe(400);
    for (const steps of [[{ type: "COPY", args: ["../x", "/y"], filesHash: "0".repeat(64) }], [{ type: "USER", args: ["root\nRUN id"] }], [{ type: "ENV", args: ["A B", "c"] }], [{ type: "WORKDIR", args: ["/a\nRUN id"] }]]) {
      const { buildID: next } = JSON.parse((await control("POST", "/v3/templates", { name: "hostile" })).body.toString()) as { buildID: string };
      expect((await control("POST", `/v2/templates/${templateID}/builds/${next}`, { fromImage: "host", steps })).status).toBe(202);
      await expect.poll(async () => (JSON.parse((await control("GET", `/templates/${templateID}/builds/${next}/status`)).body.toString()) as { status: string }).status, { timeout: 60_000 }).toBe("error");
      const { reason } = JSON.parse((await control("GET", `/templates/${templateID}/builds/${next}/status`)).body.toString()) as { reason: { step: string; message: string } };
      expect([reason.step, reason.message]).toEqual(["1", expect.stringContaining("step 1")]);
    }
    expect((await control("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: "host", steps: [{ type: "EXPOSE", args: [] }] })).status).toBe(400);
    expect((await control("DELETE", `/templates/${templateID}`)).status).toBe(204);
    expect((await control("DELETE", `/templates/${templateID}`)).status).toBe(404);
  });
});

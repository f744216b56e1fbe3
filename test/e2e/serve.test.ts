/** `mw serve` as a user starts it: who is let in, how failures are told, how it ends. */
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { WebSocket } from "ws";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const base = mkdtempSync(join(tmpdir(), "mw-serve-"));
const home = join(base, "home");
const KEY = "a-first-key-of-the-test";
let server: Served;
beforeAll(async () => {
  server = await serve({ home, key: KEY });
});
afterAll(async () => {
  await server.stop();
  rmSync(base, { recursive: true, force: true });
});

interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Readonly<Record<string, unknown>>;
}

/** With exactly these headers; `Host` included. */
function get(path: string, headers: Readonly<Record<string, string>> = {}, method = "GET"): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = request({ host: "127.0.0.1", port: server.port, path, headers, method, agent: false }, (response) => {
      let text = "";
      response.on("data", (data: Buffer) => (text += data.toString()));
      response.on("end", () => resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text.startsWith("{") ? (JSON.parse(text) as Record<string, unknown>) : { text } }));
    });
    sent.on("error", reject).end();
  });
}

describe("who is let in", () => {
  it("anybody may ask whether it lives", async () => {
    expect(await get("/health", { host: "evil.example", "x-api-key": "wrong" })).toMatchObject({ status: 200, body: { status: "ok" } });
  });

  it("the same user without a key, and everybody with one", async () => {
    expect((await get("/version")).status).toBe(200);
    for (const headers of [{ authorization: `Bearer ${KEY}` }, { "x-api-key": KEY }]) expect((await get("/version", { ...headers, host: "evil.example", origin: "http://evil.example" })).status).toBe(200);
  });

  it("never a wrong key", async () => {
    for (const headers of [{ authorization: "Bearer wrong" }, { authorization: "Basic xyz" }, { authorization: "" }, { "x-api-key": "" }, { "x-api-key": `${KEY}x` }, { "x-api-key": "wrong", authorization: `Bearer ${KEY}` }]) {
      const answer = await get("/version", headers);
      expect(answer.status, JSON.stringify(headers)).toBe(401);
      expect(answer.headers).toMatchObject({ "content-type": "application/problem+json", "www-authenticate": expect.stringContaining("Bearer") as string });
      expect(answer.body).toMatchObject({ code: "unauthorized", status: 401, fix: expect.stringContaining("X-API-Key") as string });
    }
  });

  it("no web page of others, whatever name it has", async () => {
    for (const headers of [{ host: "evil.example" }, { host: `evil.example:${server.port}` }, { origin: "http://evil.example" }, { origin: "null" }, { origin: "http://localhost:1" }, { "sec-fetch-site": "cross-site" }, { "sec-fetch-site": "same-site" }, { host: "127.0.0.1.evil.example" }]) {
      expect((await get("/version", headers)).status, JSON.stringify(headers)).toBe(401);
    }
    const own = `127.0.0.1:${server.port}`;
    expect((await get("/version", { host: own, origin: `http://${own}`, "sec-fetch-site": "same-origin" })).status).toBe(200);
  });

  it("no WebSocket without the same", async () => {
    const refused = (headers: Record<string, string>): Promise<string> =>
      new Promise((resolve) => {
        new WebSocket(`ws://127.0.0.1:${server.port}/v1/none`, { headers }).once("error", (error) => resolve(error.message)).once("open", () => resolve("open"));
      });
    expect(await refused({ origin: "http://evil.example" })).toContain("401");
    expect(await refused({ "x-api-key": "wrong" })).toContain("401");
    expect(await refused({ "x-api-key": KEY })).toContain("404");
  });

  it.skipIf(process.getuid?.() !== 0)("no process of another user without a key", () => {
    const ask = (headers: string): string => execFileSync("setpriv", ["--reuid=54321", "--regid=54321", "--clear-groups", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", headers, `${server.url}/version`], { encoding: "utf8" });
    expect(ask("x: y")).toBe("401");
    expect(ask(`x-api-key: ${KEY}`)).toBe("200");
  });

  it("owners by keys that are made and taken away while it runs", async () => {
    const key = (args: readonly string[]): { readonly out: string; readonly code: number | null; readonly err: string } => {
      const { stdout, status, stderr } = spawnSync(process.execPath, [MAIN, "key", ...args, "--data", home], { encoding: "utf8", env: { PATH: process.env["PATH"], HOME: base } });
      return { out: stdout.trim(), code: status, err: stderr };
    };
    const made = key(["add", "team-b"]).out;
    expect(made).toMatch(/^e2b_[0-9a-f]{40}$/);
    expect((await get("/version", { "x-api-key": made })).status).toBe(200);
    expect(readFileSync(join(home, "keys.json"), "utf8")).not.toContain(made);
    expect(statSync(join(home, "keys.json")).mode & 0o777).toBe(0o600);
    expect(JSON.parse(key(["ls", "--json"]).out)).toMatchObject({ keys: [{ owner: "team-b" }] });
    expect(key(["rm", "team-b"]).code).toBe(0);
    expect((await get("/version", { "x-api-key": made })).status).toBe(401);
    expect(key(["rm", "team-b"])).toMatchObject({ code: 2, err: expect.stringContaining("fix:") as string });
    for (const name of ["local", "../x", "A", ""]) expect(key(["add", name]).code, name).toBe(2);
  });
});

describe("failures", () => {
  it("are problem documents with the request's id", async () => {
    const missing = await get("/v1/nothing", { "x-request-id": "mine-1" });
    expect(missing).toMatchObject({ status: 404, headers: { "x-request-id": "mine-1", "content-type": "application/problem+json" }, body: { code: "not_found", status: 404, type: expect.any(String) as string, title: expect.any(String) as string } });
    expect((await get("/v1/nothing", { "x-request-id": "bad id\u0009" })).headers["x-request-id"]).toMatch(/^[0-9a-f]{16}$/);
    expect((await get("/v1/nothing", { "x-api-key": "wrong" })).status).toBe(401);
  });

  it("metrics count routes, not addresses", async () => {
    await get("/v1/some-very-special-address");
    const { body } = await get("/metrics");
    expect(body["text"]).toContain('mw_http_request_seconds_count{method="GET",route="/version",status="200"}');
    expect(body["text"]).not.toContain("some-very-special-address");
    expect(body["text"]).toContain("mw_sandboxes 0");
  });
});

describe("its life", () => {
  it("makes a key where none is given, and says where it is", async () => {
    const other = join(base, "other");
    const second = await serve({ home: other });
    expect(second.keyFile).toBe(join(other, "api-key"));
    expect(statSync(join(other, "api-key")).mode & 0o777).toBe(0o600);
    const key = readFileSync(join(other, "api-key"), "utf8").trim();
    expect((await fetch(`${second.url}/version`, { headers: { "x-api-key": key } })).status).toBe(200);
    expect(await second.stop("SIGINT")).toBe(0);
    const third = await serve({ home: other });
    expect(readFileSync(join(other, "api-key"), "utf8").trim()).toBe(key);
    expect(await third.stop()).toBe(0);
    expect(await leftoversAfter(other)).toEqual([]);
  });

  it("beyond loopback every request needs a key", async () => {
    const open = await serve({ home: join(base, "open"), key: KEY, args: ["--host", "0.0.0.0"] });
    const at = `http://127.0.0.1:${open.port}/version`;
    expect((await fetch(at)).status).toBe(401);
    expect((await fetch(at, { headers: { "x-api-key": KEY } })).status).toBe(200);
    expect(await open.stop()).toBe(0);
  });

  it("is refused where another controller owns the data, or another program the port", async () => {
    await expect(serve({ home, key: KEY })).rejects.toThrow(/ended with 3.*another controller \(process \d+\)/s);
    await expect(serve({ home: join(base, "third"), key: KEY, port: server.port })).rejects.toThrow(/ended with 3.*another program/s);
    expect(await leftoversAfter(join(base, "third"))).toEqual([]);
  });

  it("a file where its directory has to be is a kind error", async () => {
    writeFileSync(join(base, "file"), "");
    await expect(serve({ home: join(base, "file"), key: KEY })).rejects.toThrow(/fix:/);
    await expect(serve({ home: join(base, "file/below"), key: KEY })).rejects.toThrow(/fix:/);
    await expect(serve({ home: "/proc/self/x", key: KEY })).rejects.toThrow(/takes no new names[^]*fix:/);
  });
});

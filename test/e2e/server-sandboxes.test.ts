/** The native sandbox interface over HTTP, against `mw serve` with real machines. */
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { WebSocket } from "ws";
import { sandboxesDocument } from "../../src/server/sandboxes/index.ts";
import { type Answer, asking, otherOwner } from "../support/asking.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-server-sandboxes-"));
const home = join(base, "home");
const KEY = "the-first-key-of-all";
const ask = asking(() => server, KEY);
let image: TestRoot;
let server: Served;
beforeAll(async () => {
  image = makeTestRoot(base);
  // None kept ready: what is left is counted.
  server = await serve({ home, key: KEY, args: ["--warm", "0"] });
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

async function create(more: Record<string, unknown> = {}, headers: Record<string, string> = {}): Promise<string> {
  const { status, body } = await ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}`, ...more }, headers);
  expect(status, JSON.stringify(body)).toBe(201);
  return body.id as string;
}

/** All JSON lines of a command's output. */
async function read(path: string): Promise<readonly { stream?: string; data?: string; offset?: number; exit?: Record<string, unknown>; error?: Record<string, unknown> }[]> {
  const response = await fetch(`${server.url}${path}`, { headers: { "x-api-key": KEY } });
  expect(response.status).toBe(200);
  return (await response.text()).trim().split("\n").map((line) => JSON.parse(line) as object);
}
const textOf = (lines: readonly { stream?: string; data?: string }[], stream = "stdout"): string => Buffer.concat(lines.filter((line) => line.stream === stream).map((line) => Buffer.from(line.data ?? "", "base64"))).toString();

describe("life", () => {
  it("is made, found, listed in pages, renewed and ended", async () => {
    const id = await create({ metadata: { who: "me" }, ttl_ms: 60_000, cpus: 0.5, memory_bytes: 64 << 20 });
    expect((await ask("GET", `/v1/sandboxes/${id}`)).body).toMatchObject({ id, state: "running", metadata: { who: "me" }, network: "none", memory_bytes: 64 << 20, on_timeout: "kill" });
    // One after the other: they are listed in the order in which they were made.
    const others = [await create({ metadata: { who: "you" } }), await create({ metadata: { who: "me" } })];
    const first = (await ask("GET", "/v1/sandboxes?limit=2")).body;
    const second = (await ask("GET", `/v1/sandboxes?limit=2&cursor=${first.next as string}`)).body;
    expect([...first.sandboxes, ...second.sandboxes].map((sandbox: { id: string }) => sandbox.id)).toEqual([id, ...others]);
    expect(second.next).toBeNull();
    expect((await ask("GET", "/v1/sandboxes?metadata.who=me&state=running")).body.sandboxes).toHaveLength(2);
    const renewed = (await ask("POST", `/v1/sandboxes/${id}/renew`, { ttl_ms: 3_600_000 })).body;
    expect(renewed.ends_at).toBeGreaterThan(renewed.created_at + 3_000_000);
    expect((await ask("GET", `/v1/sandboxes/${id}/metrics`)).body.limits).toEqual({ oom_killed: 0, pids: 0, disk_full: 0 });
    for (const sandbox of [id, ...others]) expect((await ask("DELETE", `/v1/sandboxes/${sandbox}`)).status).toBe(204);
    expect((await ask("DELETE", `/v1/sandboxes/${id}`)).status).toBe(404);
    expect(await leftoversAfter(home, machines)).toEqual([]);
  });

  it("ends with its lease", async () => {
    const id = await create({ ttl_ms: 1000 });
    await expect.poll(async () => (await ask("GET", `/v1/sandboxes/${id}`)).status, { timeout: 60_000 }).toBe(404);
    expect(await leftoversAfter(home, machines)).toEqual([]);
  });

  it("is made once for a key, and a key means one request", async () => {
    const headers = { "idempotency-key": "one" };
    const answers = await Promise.all(Array.from({ length: 5 }, () => ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}` }, headers)));
    expect(new Set(answers.map(({ body }) => body.id as string)).size).toBe(1);
    expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 200, 200, 200, 201]);
    expect((await ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}`, pids: 50 }, headers)).status).toBe(409);
    const id = answers[0]?.body.id as string;
    await ask("DELETE", `/v1/sandboxes/${id}`);
    const again = await create({}, headers);
    expect(again).not.toBe(id);
    await ask("DELETE", `/v1/sandboxes/${again}`);
  });

  it("says which field is wrong, and takes no field that it does not know", async () => {
    for (const [body, field] of [[{ imagee: "host" }, "imagee"], [{ ttl_ms: 5 }, "ttl_ms"], [{ env: { A: 1 } }, "env.A"], [{ image: "host", snapshot: "x" }, "snapshot"], [{ cpus: -1 }, "cpus"]] as const) {
      const answer = await ask("POST", "/v1/sandboxes", body);
      expect([answer.status, answer.body.code], JSON.stringify(body)).toEqual([422, "invalid_input"]);
      expect(answer.body.detail, JSON.stringify(body)).toContain(field);
    }
    expect((await ask("POST", "/v1/sandboxes", { image: "no-such-image.invalid/x" })).status).toBeGreaterThanOrEqual(400);
    expect((await ask("POST", "/v1/sandboxes", { snapshot: "never-made" })).status).toBe(404);
    expect((await ask("GET", "/v1/sandboxes?metdata.x=1")).status).toBe(422);
    expect((await fetch(`${server.url}/v1/sandboxes`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: "{" })).status).toBe(400);
    expect((await fetch(`${server.url}/v1/sandboxes`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: JSON.stringify({ metadata: { x: "y".repeat(5 << 20) } }) })).status).toBe(413);
  });

  it("many at once, and none is left", async () => {
    const ids = await Promise.all(Array.from({ length: 40 }, () => create()));
    const results = await Promise.all(ids.map((id) => ask("POST", `/v1/sandboxes/${id}/run`, { command: "hostname; echo $((6*7))" })));
    expect(results.map(({ body }) => body.stdout.split("\n")[1] as string)).toEqual(ids.map(() => "42"));
    await Promise.all(ids.map((id) => ask("DELETE", `/v1/sandboxes/${id}`)));
    expect(await leftoversAfter(home, machines)).toEqual([]);
  });
});

describe("commands", () => {
  let id = "";
  beforeAll(async () => {
    id = await create();
  });

  it("run to the end", async () => {
    const run = (body: Record<string, unknown>): Promise<Answer> => ask("POST", `/v1/sandboxes/${id}/run`, body);
    expect((await run({ command: "cat; echo $A >&2; exit 3", stdin: "in", env: { A: "b" } })).body).toMatchObject({ code: 3, signal: null, ended: "exited", stdout: "in", stderr: "b\n", stdout_bytes: 2, truncated: false });
    expect((await run({ command: ["printf", "\\377\\000"], encoding: "base64" })).body.stdout).toBe("/wA=");
    expect((await run({ command: "cat", stdin_base64: "/wA=", encoding: "base64" })).body.stdout).toBe("/wA=");
    expect((await run({ command: "sleep 60", timeout_ms: 200 })).body).toMatchObject({ ended: "timed_out" });
    expect((await run({ command: "head -c 1000 /dev/zero", max_output_bytes: 10 })).body).toMatchObject({ stdout: "\0".repeat(10), stdout_bytes: 1000, truncated: true });
    expect((await run({ command: ["/no/such/program"] })).body.code).toBe(127);
    expect((await run({ command: "id -un", user: "agent", cwd: "/tmp" })).body.stdout).toBe("agent\n");
    expect((await run({ command: "true", user: "nobody-here" })).status).toBe(422);
    expect((await run({ command: "true", stdin: "a", stdin_base64: "YQ==" })).status).toBe(422);
  });

  it("are killed when the client that waits for them goes away", async () => {
    const stop = new AbortController();
    const waiting = fetch(`${server.url}/v1/sandboxes/${id}/run`, { method: "POST", signal: stop.signal, headers: { "x-api-key": KEY, "content-type": "application/json" }, body: JSON.stringify({ command: "echo $$ > /tmp/begun; exec sleep 1234" }) });
    const running = async (): Promise<number> => (await ask("POST", `/v1/sandboxes/${id}/run`, { command: "kill -0 $(cat /tmp/begun)" })).body.code as number;
    await expect.poll(running, { timeout: 60_000 }).toBe(0);
    stop.abort();
    await expect(waiting).rejects.toThrow(/abort/);
    await expect.poll(running, { timeout: 60_000 }).toBe(1);
  });

  it("start once, are fed, read at offsets, signalled and forgotten", async () => {
    const at = `/v1/sandboxes/${id}/execs`;
    const body = { id: "mine.1", command: "while read line; do echo got $line; done; echo end; exit 5", open_stdin: true };
    const started = await Promise.all([ask("POST", at, body), ask("POST", at, body)]);
    expect(started.map(({ status, body: { id: exec } }) => [status, exec as string])).toEqual([[201, "mine.1"], [201, "mine.1"]]);
    expect(started[0]?.body.pid).toBeGreaterThan(1);
    await ask("POST", `${at}/mine.1/stdin`, Buffer.from("a\nb\n"));
    expect((await ask("POST", `${at}/mine.1/stdin?close=true`, Buffer.from("c\n"))).status).toBe(204);
    const lines = await read(`${at}/mine.1/output`);
    expect(textOf(lines)).toBe("got a\ngot b\ngot c\nend\n");
    expect(lines.at(-1)?.exit).toMatchObject({ code: 5, ended: "exited", stdout_bytes: 22 });
    // Again, from the middle, after its end.
    const rest = await read(`${at}/mine.1/output?stdout=18`);
    expect([textOf(rest), rest[0]?.offset]).toEqual(["end\n", 18]);
    expect((await ask("DELETE", `${at}/mine.1`)).status).toBe(204);
    expect((await ask("GET", `${at}/mine.1/output`)).status).toBe(404);

    await ask("POST", at, { id: "long", command: "trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done 2> /dev/null" });
    const response = await fetch(`${server.url}${at}/long/output`, { headers: { "x-api-key": KEY, accept: "text/event-stream" } });
    expect(response.headers.get("content-type")).toBe("text/event-stream");
    let events = "";
    let signalled = false;
    for await (const part of response.body ?? []) {
      events += Buffer.from(part).toString();
      if (!signalled && events.includes("event: output")) {
        signalled = true;
        expect((await ask("DELETE", `${at}/long`)).status).toBe(409);
        expect((await ask("POST", `${at}/long/kill`, { signal: "SIGTERM" })).status).toBe(204);
      }
    }
    expect(events).toMatch(/event: output\nid: 6,0\ndata: .*\n\nevent: output\nid: 11,0\ndata: .*\n\nevent: exit\nid: 11,0\ndata: .*"code":9/);
    const resumed = await fetch(`${server.url}${at}/long/output`, { headers: { "x-api-key": KEY, accept: "text/event-stream", "last-event-id": "6,0" } });
    expect(await resumed.text()).toContain(Buffer.from("term\n").toString("base64"));
    expect((await ask("POST", `${at}/long/kill`, { signal: "SIGNONE" })).status).toBe(422);
    expect((await ask("POST", `${at}/never/kill`, {})).status).toBe(404);
  });

  it("go on when their reader goes, and tell a reader that another took over", async () => {
    const at = `/v1/sandboxes/${id}/execs`;
    await ask("POST", at, { id: "kept", command: "echo first; read x; echo second", open_stdin: true });
    const stop = new AbortController();
    const first = await fetch(`${server.url}${at}/kept/output`, { headers: { "x-api-key": KEY }, signal: stop.signal });
    await first.body?.getReader().read();
    const second = read(`${at}/kept/output?stdout=6`);
    await expect.poll(async () => (await ask("POST", `${at}/kept/stdin`, Buffer.from("go\n"))).status).toBe(204);
    expect(textOf(await second)).toBe("second\n");
    stop.abort();
  });

  it("have terminals over WebSockets", async () => {
    const open = async (path: string): Promise<{ socket: WebSocket; text: () => string; closed: Promise<unknown> }> => {
      const socket = new WebSocket(`${server.url.replace("http", "ws")}/v1/sandboxes/${id}${path}`, { headers: { "x-api-key": KEY } });
      let text = "";
      socket.on("message", (data: Buffer, binary: boolean) => (text += binary ? data.toString() : `<${data.toString()}>`));
      const closed = once(socket, "close");
      await once(socket, "open");
      return { socket, text: () => text, closed };
    };
    const shell = await open("/shell?columns=97&rows=31");
    shell.socket.send(Buffer.from("stty size; tty > /tmp/tty\n"));
    await expect.poll(shell.text, { timeout: 60_000 }).toContain("31 97");
    shell.socket.send(JSON.stringify({ resize: { columns: 60, rows: 20 } }));
    shell.socket.send(Buffer.from("stty size\n"));
    await expect.poll(shell.text, { timeout: 60_000 }).toContain("20 60");
    shell.socket.send("no json");
    await expect.poll(shell.text, { timeout: 60_000 }).toContain("invalid_input");
    shell.socket.send(Buffer.from("exit 7\n"));
    await shell.closed;
    expect(shell.text()).toMatch(/<\{"exit":\{"code":7/);
    // A shell ends with its connection.
    const dropped = await open(`/shell?command=${encodeURIComponent("echo $$ > /tmp/shell; exec sleep 4321")}`);
    const running = async (): Promise<number> => (await ask("POST", `/v1/sandboxes/${id}/run`, { command: "kill -0 $(cat /tmp/shell)" })).body.code as number;
    await expect.poll(running, { timeout: 60_000 }).toBe(0);
    dropped.socket.terminate();
    await expect.poll(running, { timeout: 60_000 }).toBe(1);
    await ask("POST", `/v1/sandboxes/${id}/execs`, { id: "pty", command: "read x; echo got $x", open_stdin: true, pty: { columns: 80, rows: 24 } });
    const attached = await open("/execs/pty/terminal");
    attached.socket.send(Buffer.from("it\n"));
    await attached.closed;
    expect(attached.text()).toContain("got it");
    const refused = new WebSocket(`${server.url.replace("http", "ws")}/v1/sandboxes/sbx000/shell`, { headers: { "x-api-key": KEY } });
    expect(((await once(refused, "error")) as [Error])[0].message).toContain("404");
  });
});

describe("files", () => {
  let id = "";
  beforeAll(async () => {
    id = await create();
  });

  it("are written, read, listed, moved and removed, byte for byte", async () => {
    const at = `/v1/sandboxes/${id}/files`;
    const bytes = Buffer.from(Array.from({ length: 3 << 20 }, (_, index) => (index * 7919) & 255));
    expect((await ask("PUT", `${at}?path=${encodeURIComponent("/data/ü b")}&mode=640&owner=agent`, bytes)).status).toBe(204);
    const back = await fetch(`${server.url}${at}?path=${encodeURIComponent("/data/ü b")}`, { headers: { "x-api-key": KEY } });
    expect(Buffer.from(await back.arrayBuffer()).equals(bytes)).toBe(true);
    expect((await ask("GET", `${at}/stat?path=${encodeURIComponent("/data/ü b")}`)).body).toMatchObject({ type: "file", mode: "0640", uid: 1000, size: bytes.length });
    // Whatever content type a client gives: bytes are bytes.
    await fetch(`${server.url}${at}?path=/data/json`, { method: "PUT", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: "{not json" });
    expect((await ask("PUT", `${at}?path=/data/empty`)).status).toBe(204);
    expect((await ask("GET", `${at}/list?path=/data`)).body.entries.map(({ path, size }: { path: string; size: number }) => [path.split("/").at(-1), size])).toEqual(expect.arrayContaining([["ü b", bytes.length], ["json", 9], ["empty", 0]]));
    expect((await ask("POST", `${at}/move`, { from: "/data/json", to: "/data/moved" })).status).toBe(204);
    expect((await ask("POST", `${at}/mkdir`, { path: "/data/d/e", mode: "700" })).status).toBe(204);
    expect((await ask("DELETE", `${at}?path=/data/moved`)).status).toBe(204);
    expect((await ask("GET", `${at}?path=/data/moved`)).status).toBe(404);
    expect((await ask("GET", `${at}/stat?path=/data/moved`)).status).toBe(404);
    expect((await ask("GET", `${at}?path=/data`)).status).toBeGreaterThanOrEqual(400);
    expect((await ask("GET", `${at}?path=relative`)).status).toBe(422);
  });

  it("stay inside: links and dots lead nowhere on the host", async () => {
    writeFileSync(join(base, "secret"), "of the host");
    await ask("POST", `/v1/sandboxes/${id}/run`, { command: `ln -s ${base}/secret /leak; ln -s / /up` });
    for (const path of [`${base}/secret`, "/leak", `/up/../../../../..${base}/secret`]) expect((await ask("GET", `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`)).status, path).toBe(404);
  });

  it("come and go as trees", async () => {
    const tree = join(base, "tree");
    mkdirSync(join(tree, "sub"), { recursive: true });
    writeFileSync(join(tree, "sub/run"), "#!/bin/sh\necho ran\n", { mode: 0o755 });
    writeFileSync(join(tree, "big"), Buffer.alloc(2 << 20, 3));
    symlinkSync("sub/run", join(tree, "link"));
    const up = await ask("PUT", `/v1/sandboxes/${id}/tree?path=/t&owner=agent`, execFileSync("tar", ["-C", tree, "-c", "."], { maxBuffer: 64 << 20 }));
    expect([up.status, up.body.refused]).toEqual([200, []]);
    expect((await ask("POST", `/v1/sandboxes/${id}/run`, { command: "/t/link; stat -c %U:%a /t/sub/run; wc -c < /t/big" })).body.stdout).toBe("ran\nagent:755\n2097152\n");
    const down = await fetch(`${server.url}/v1/sandboxes/${id}/tree?path=/t`, { headers: { "x-api-key": KEY } });
    const archive = Buffer.from(await down.arrayBuffer());
    const out = join(base, "out");
    mkdirSync(out);
    execFileSync("tar", ["-C", out, "-x"], { input: archive });
    expect(execFileSync("diff", ["-r", "--no-dereference", tree, out], { encoding: "utf8" })).toBe("");
    const hostile = await ask("PUT", `/v1/sandboxes/${id}/tree?path=/t2`, execFileSync("tar", ["-P", "-c", "--transform", "s,.*,../../../../tmp/escaped,", join(tree, "big")], { maxBuffer: 64 << 20 }));
    expect(hostile.status === 200 ? hostile.body.refused.length : 1).toBeGreaterThan(0);
    expect((await ask("PUT", `/v1/sandboxes/${id}/tree?path=/t3`, Buffer.from("no tar at all".repeat(100)))).status).toBeGreaterThanOrEqual(400);
    expect((await ask("GET", `/v1/sandboxes/${id}/tree?path=/none`)).status).toBe(404);
  });
});

describe("what is kept", () => {
  it("snapshots and forks have the files of their moment", async () => {
    const id = await create({ metadata: { kept: "yes" } });
    const put = (sandbox: string, text: string): Promise<Answer> => ask("PUT", `/v1/sandboxes/${sandbox}/files?path=/kept`, Buffer.from(text));
    const got = async (sandbox: string): Promise<string> => (await ask("POST", `/v1/sandboxes/${sandbox}/run`, { command: "cat /kept" })).body.stdout as string;
    await put(id, "first");
    const taken = await ask("POST", `/v1/sandboxes/${id}/snapshots`, { name: "before" });
    expect([taken.status, taken.body.name]).toEqual([201, "before"]);
    await put(id, "second");
    const { children } = (await ask("POST", `/v1/sandboxes/${id}/fork`, { count: 2 })).body as { children: { sandbox: { id: string; metadata: object } }[] };
    expect(children.map(({ sandbox }) => sandbox.metadata)).toEqual([{ kept: "yes" }, { kept: "yes" }]);
    const old = (await ask("POST", "/v1/sandboxes", { snapshot: "before" })).body.id as string;
    expect(await Promise.all([id, ...children.map(({ sandbox }) => sandbox.id), old].map(got))).toEqual(["second", "second", "second", "first"]);
    expect((await ask("GET", `/v1/snapshots?sandbox=${id}`)).body.snapshots).toHaveLength(1);
    expect((await ask("DELETE", "/v1/snapshots/before")).status).toBe(204);
    expect((await ask("GET", "/v1/snapshots/before")).status).toBe(404);
    for (const sandbox of [id, old, ...children.map(({ sandbox }) => sandbox.id)]) expect((await ask("DELETE", `/v1/sandboxes/${sandbox}`)).status).toBe(204);
  });

  it("a paused one outlives its server, is the same owner's, and ends for good when it is told", async () => {
    const place = join(base, "paused");
    const headers = { "x-api-key": KEY, "content-type": "application/json" };
    const first = await serve({ home: place, key: KEY });
    const post = async (url: string, path: string, body: unknown = {}): Promise<{ status: number; body: Record<string, unknown> }> => {
      const response = await fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
      return { status: response.status, body: (await response.json()) as Record<string, unknown> };
    };
    const { id } = (await post(first.url, "/v1/sandboxes", { image: `dir:${image.directory}`, metadata: { a: "b" }, env: { X: "y" } })).body as { id: string };
    await post(first.url, `/v1/sandboxes/${id}/run`, { command: "echo kept > /f" });
    expect((await post(first.url, `/v1/sandboxes/${id}/pause`)).body).toMatchObject({ state: "paused", ends_at: null });
    expect((await post(first.url, `/v1/sandboxes/${id}/run`, { command: "true" })).status).toBe(409);
    await first.stop("SIGKILL");
    const second = await serve({ home: place, key: KEY });
    const listed = (await (await fetch(`${second.url}/v1/sandboxes`, { headers })).json()) as { sandboxes: unknown[] };
    expect(listed.sandboxes).toMatchObject([{ id, state: "paused", metadata: { a: "b" } }]);
    expect((await post(second.url, `/v1/sandboxes/${id}/resume`, { ttl_ms: 600_000 })).body).toMatchObject({ state: "running" });
    expect((await post(second.url, `/v1/sandboxes/${id}/run`, { command: "cat /f; echo $X" })).body["stdout"]).toBe("kept\ny\n");
    await post(second.url, `/v1/sandboxes/${id}/pause`);
    expect((await fetch(`${second.url}/v1/sandboxes/${id}`, { method: "DELETE", headers: { "x-api-key": KEY } })).status).toBe(204);
    expect((await fetch(`${second.url}/v1/sandboxes/${id}`, { headers })).status).toBe(404);
    expect(await second.stop()).toBe(0);
    expect(await leftoversAfter(place)).toEqual([]);
  });

  it("a lease that ends in a pause, and a request that wakes it", async () => {
    const id = await create({ ttl_ms: 1000, on_timeout: "pause", auto_resume: true });
    await expect.poll(async () => (await ask("GET", `/v1/sandboxes/${id}`)).body.state as string, { timeout: 60_000 }).toBe("paused");
    expect((await ask("POST", `/v1/sandboxes/${id}/run`, { command: "echo awake" })).body.stdout).toBe("awake\n");
    await ask("DELETE", `/v1/sandboxes/${id}`);
  });
});

describe("owners", () => {
  it("do not see or touch what is another's, nor the host's files", async () => {
    const mine = await create();
    const { "x-api-key": key } = otherOwner(home);
    const other = { "x-api-key": key };
    expect((await ask("GET", "/v1/sandboxes", undefined, other)).body.sandboxes).toEqual([]);
    for (const [method, path, body] of [
      ["GET", ""],
      ["DELETE", ""],
      ["POST", "/run", { command: "true" }],
      ["POST", "/execs", { command: "true" }],
      ["POST", "/renew", { ttl_ms: 5000 }],
      ["POST", "/fork", {}],
      ["POST", "/snapshots", {}],
      ["POST", "/pause", {}],
      ["POST", "/resume", {}],
      ["GET", "/metrics"],
      ["GET", "/files?path=/etc/passwd"],
      ["GET", "/tree?path=/etc"],
    ] as const) {
      expect((await ask(method, `/v1/sandboxes/${mine}${path}`, body, other)).status, `${method} ${path}`).toBe(404);
    }
    const socket = new WebSocket(`${server.url.replace("http", "ws")}/v1/sandboxes/${mine}/shell`, { headers: other });
    expect(((await once(socket, "error")) as [Error])[0].message).toContain("404");
    for (const reference of [`dir:${base}`, `tar:${base}/x.tar`, `oci:${base}`, `docker-archive:${base}/x`]) expect((await ask("POST", "/v1/sandboxes", { image: reference }, other)).status, reference).toBe(403);
    expect((await ask("GET", `/v1/sandboxes/${mine}`)).status).toBe(200);
    await ask("DELETE", `/v1/sandboxes/${mine}`);
  });
});

describe("the server's end", () => {
  it("kill -9 leaves nothing once another has started", async () => {
    const place = join(base, "killed");
    const first = await serve({ home: place, key: KEY });
    const made = await Promise.all(Array.from({ length: 3 }, () => fetch(`${first.url}/v1/sandboxes`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: JSON.stringify({ image: `dir:${image.directory}` }) })));
    expect(made.map(({ status }) => status)).toEqual([201, 201, 201]);
    await first.stop("SIGKILL");
    const second = await serve({ home: place, key: KEY });
    const { sandboxes } = (await (await fetch(`${second.url}/v1/sandboxes`)).json()) as { sandboxes: unknown[] };
    expect(sandboxes).toEqual([]);
    expect(await leftoversAfter(place, machines)).toEqual([]);
    expect(await second.stop()).toBe(0);
    expect(await leftoversAfter(place)).toEqual([]);
  });
});

it("the requests of docs/server.md", () => {
  const lines = readFileSync("docs/server.md", "utf8").split("\n").filter((line) => line.startsWith("curl "));
  const sh = (line: string, id = ""): string => execFileSync("sh", ["-c", line], { encoding: "utf8", env: { PATH: process.env["PATH"], MW_URL: server.url, MW_API_KEY: KEY, ID: id } });
  const [make = "", command = "", read = "", end = ""] = lines;
  const { id } = JSON.parse(sh(make)) as { id: string };
  expect(JSON.parse(sh(command, id))).toMatchObject({ code: 0, stdout: "hello\n" });
  expect(sh(read, id)).toMatch(/^\S+\n$/);
  expect(sh(end, id)).toBe("");
  expect(lines).toHaveLength(4);
});

it("its OpenAPI document is the committed one", () => {
  const document = `${JSON.stringify(sandboxesDocument(), null, 2)}\n`;
  if (process.env["MW_UPDATE"] === "1") writeFileSync("docs/openapi/sandboxes.json", document);
  expect(readFileSync("docs/openapi/sandboxes.json", "utf8"), "run it with MW_UPDATE=1 to write it anew").toBe(document);
});

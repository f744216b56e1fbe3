/** `mw serve --take-over`, killed and started again on its data directory: its clients' sandboxes go on. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sandbox } from "e2b";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { until } from "../conformance/sandbox/fixture.ts";
import { mw } from "../support/cli.ts";
import { asking } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";
import { steadyPort } from "../support/steady-port.ts";

const base = mkdtempSync(join(tmpdir(), "mw-serve-takeover-"));
const KEY = "the-first-key-of-all";
let image: TestRoot;
let homes = 0;
let server: Served | null = null;
const ask = asking(() => server, KEY);
beforeAll(() => {
  image = makeTestRoot(base);
});
afterEach(async () => {
  await server?.stop("SIGKILL");
  server = null;
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

const freshHome = (): string => join(base, `home-${homes++}`);
const start = async (home: string, args: readonly string[] = ["--take-over", "300"], port?: number): Promise<void> => {
  server = await serve({ home, key: KEY, port: port ?? (await steadyPort()), args: ["--warm", "2", ...args] });
};
const restart = async (home: string): Promise<void> => {
  const port = server?.port;
  await server?.stop("SIGKILL");
  await start(home, ["--take-over", "300"], port);
};

async function run(id: string, command: string): Promise<string> {
  const { status, body } = await ask("POST", `/v1/sandboxes/${id}/run`, { command });
  expect(status, JSON.stringify(body)).toBe(200);
  return body.stdout as string;
}

it("sandboxes are there afterwards: ids, ends, owners, keys, metadata, files, and commands that still run", async () => {
  const home = freshHome();
  await start(home);
  const request = { image: `dir:${image.directory}`, metadata: { who: "me" }, ttl_ms: 900_000, env: { KEPT: "yes" } };
  const made = await ask("POST", "/v1/sandboxes", request, { "idempotency-key": "mine" });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const id = made.body.id as string;
  const long = { id: "long", command: "echo started; read line; echo got $line; exit 3", open_stdin: true };
  const begun = await ask("POST", `/v1/sandboxes/${id}/execs`, long);
  expect(begun.status, JSON.stringify(begun.body)).toBe(201);
  await run(id, "echo mine > /mine");
  const { body: renewed } = await ask("POST", `/v1/sandboxes/${id}/renew`, { ttl_ms: 1_800_000 });
  const other = (await mw(["key", "add", "other", "--data", home])).stdout.trim().split(/\s/).at(-1) ?? "";
  const theirs = (await ask("POST", "/v1/sandboxes", { image: "host" }, { "x-api-key": other })).body.id as string;
  const e2b = (await ask("POST", "/v2/sandboxes", { templateID: "host", timeout: 900, metadata: { of: "e2b" } })).body as { sandboxID: string; envdAccessToken: string };
  const before = (await ask("GET", `/v1/sandboxes/${id}`)).body;

  for (let time = 0; time < 2; time++) {
    await restart(home);
    expect((await ask("GET", `/v1/sandboxes/${id}`)).body).toEqual(before);
    expect(before).toMatchObject({ metadata: { who: "me" }, ends_at: renewed.ends_at });
    expect((await ask("POST", "/v1/sandboxes", request, { "idempotency-key": "mine" })).body.id).toBe(id);
    expect((await ask("POST", "/v1/sandboxes", { ...request, ttl_ms: 1_000 }, { "idempotency-key": "mine" })).status).toBe(409);
    expect((await ask("GET", `/v1/sandboxes/${theirs}`)).status).toBe(404);
    expect((await ask("GET", `/v1/sandboxes/${theirs}`, undefined, { "x-api-key": other })).status).toBe(200);
    expect((await ask("GET", "/v1/sandboxes", undefined, { "x-api-key": other })).body.sandboxes).toHaveLength(1);
    expect(await run(id, "cat /mine; echo $KEPT")).toBe("mine\nyes\n");
    const again = await ask("POST", `/v2/sandboxes/${e2b.sandboxID}/connect`, { timeout: 900 });
    expect(again.status, JSON.stringify(again.body)).toBe(200);
    expect(again.body).toMatchObject(e2b);
    expect((await ask("GET", `/sandboxes/${e2b.sandboxID}`)).body).toMatchObject({ metadata: { of: "e2b" }, state: "running" });
  }
  const exec = `/v1/sandboxes/${id}/execs/long`;
  expect(await run(id, `kill -0 ${begun.body.pid as number} && echo lives`)).toBe("lives\n");
  // Begun once, however often it is asked for.
  expect((await ask("POST", `/v1/sandboxes/${id}/execs`, long)).body.pid).toBe(begun.body.pid);
  await fetch(`${server?.url ?? ""}${exec}/stdin?close=true`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/octet-stream" }, body: "words\n" });
  const output = await (await fetch(`${server?.url ?? ""}${exec}/output`, { headers: { "x-api-key": KEY } })).text();
  const lines = output.trim().split("\n").map((line) => JSON.parse(line) as { data?: string; exit?: { code: number } });
  expect(lines.map(({ data }) => Buffer.from(data ?? "", "base64").toString()).join("")).toBe("started\ngot words\n");
  expect(lines.at(-1)?.exit).toMatchObject({ code: 3 });
  for (const [sandbox, key] of [[id, KEY], [theirs, other], [e2b.sandboxID, KEY]] as const) expect((await ask("DELETE", `/v1/sandboxes/${sandbox}`, undefined, { "x-api-key": key })).status).toBe(204);
  expect(await server?.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
});

it("a lease that ended meanwhile is kept: the sandbox is ended, or paused, when a server is there again", async () => {
  const home = freshHome();
  await start(home);
  const create = async (more: object): Promise<string> => (await ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}`, ...more })).body.id as string;
  const [killed, paused, kept] = await Promise.all([create({ ttl_ms: 600_000 }), create({ ttl_ms: 600_000, on_timeout: "pause" }), create({ ttl_ms: 600_000 })]);
  await run(paused, "echo here > /here");
  const ends = await Promise.all([killed, paused].map(async (id) => (await ask("POST", `/v1/sandboxes/${id}/renew`, { ttl_ms: 2_000 })).body.ends_at as number));
  await server?.stop("SIGKILL");
  await until("the leases have ended", () => ends.every((at) => at < Date.now()));
  await start(home);
  await until("it is ended", async () => (await ask("GET", `/v1/sandboxes/${killed}`)).status === 404);
  await until("it is paused", async () => (await ask("GET", `/v1/sandboxes/${paused}`)).body.state === "paused");
  // The paused one outlives the next death too.
  await restart(home);
  expect((await ask("GET", `/v1/sandboxes/${paused}`)).body.state).toBe("paused");
  expect((await ask("POST", `/v1/sandboxes/${paused}/resume`, { ttl_ms: 600_000 })).status).toBe(200);
  await restart(home);
  expect(await run(paused, "cat /here")).toBe("here\n");
  expect(await run(kept, "echo on")).toBe("on\n");
  expect(await server?.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
});

it("clients of the E2B protocol find their commands again: by pid, with their input, what they say from then on, and how they end", async () => {
  const home = freshHome();
  await start(home);
  const sandbox = await Sandbox.create("host", { apiKey: KEY, apiUrl: server?.url ?? "", sandboxUrl: server?.url ?? "", requestTimeoutMs: 120_000, timeoutMs: 900_000 });
  const { pid } = await sandbox.commands.run("while read line; do echo $GREETING $line; done; echo end; exit 4", { background: true, stdin: true, timeoutMs: 0, envs: { GREETING: "got" } });
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => undefined });
  const before = await sandbox.commands.list();
  expect(before.map((command) => command.pid).toSorted()).toEqual([pid, terminal.pid].toSorted());
  for (let time = 0; time < 2; time++) {
    await restart(home);
    expect(await sandbox.commands.list()).toEqual(before);
    const again = await sandbox.commands.connect(pid, { timeoutMs: 0 });
    await sandbox.commands.sendStdin(pid, `line ${time}\n`);
    await expect.poll(() => again.stdout, { timeout: 60_000 }).toBe(`got line ${time}\n`);
    if (time === 0) {
      await again.disconnect();
      continue;
    }
    await sandbox.commands.closeStdin(pid);
    await expect(again.wait()).rejects.toMatchObject({ exitCode: 4, stdout: "got line 1\nend\n" });
  }
  let said = "";
  await sandbox.pty.connect(terminal.pid, { timeoutMs: 0, onData: (data) => void (said += Buffer.from(data).toString()) });
  await sandbox.pty.sendInput(terminal.pid, Buffer.from("echo $((6 * 7))\n"));
  await expect.poll(() => said, { timeout: 60_000 }).toMatch(/\b42\b/);
  expect(await sandbox.pty.kill(terminal.pid)).toBe(true);
  await sandbox.kill();
  await until("nothing is known of its commands", () => readdirSync(join(home, "e2b-processes")).length === 0);
  expect(await server?.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
});

it("killed while many are created: what a client was told of is there, and nothing else", async () => {
  const home = freshHome();
  await start(home);
  const asked = Array.from({ length: 40 }, (_, n) => ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}`, ttl_ms: 600_000 }, { "idempotency-key": `k-${n}` }).then(({ body }) => body.id as string, () => null));
  await Promise.race(asked);
  await restart(home);
  const told = (await Promise.all(asked)).filter((id) => id !== null);
  expect(told.length).toBeGreaterThan(0);
  const there = (await ask("GET", "/v1/sandboxes?limit=100")).body.sandboxes.map((sandbox: { id: string }) => sandbox.id) as string[];
  for (const id of told) expect(there).toContain(id);
  for (const id of there) expect(await run(id, "echo works")).toBe("works\n");
  // Asked for again by their keys, all are there once.
  const again = await Promise.all(asked.map(async (_, n) => (await ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}`, ttl_ms: 600_000 }, { "idempotency-key": `k-${n}` })).body.id as string));
  expect(new Set(again).size).toBe(40);
  for (const id of told) expect(again).toContain(id);
  expect((await ask("GET", "/v1/sandboxes?limit=100")).body.sandboxes).toHaveLength(40);
  expect(await server?.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
});

it("without it, a killed server's sandboxes end, and the next one says nothing of them", async () => {
  const home = freshHome();
  await start(home, []);
  const id = (await ask("POST", "/v1/sandboxes", { image: `dir:${image.directory}` })).body.id as string;
  await server?.stop("SIGKILL");
  await start(home, []);
  expect((await ask("GET", `/v1/sandboxes/${id}`)).status).toBe(404);
  expect(await server?.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
});

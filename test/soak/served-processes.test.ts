/**
 * Sandboxes of `mw serve` that are paused, forked and started from snapshots with their processes: through E2B's own SDK and over the native interface. A counter that runs in
 * one goes on counting, from where it was and in the same process, also when the server was killed and another resumes it.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Sandbox, Template, waitForFile } from "e2b";
import { afterAll, beforeAll, expect, test } from "vitest";
import { until } from "../conformance/sandbox/fixture.ts";
import { asking } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const BUILD = fileURLToPath(new URL("../../scripts/build-criu.mjs", import.meta.url));
const KEY = `e2b_${"b2".repeat(20)}`;
const base = mkdtempSync(join(tmpdir(), "mw-served-processes-"));
const home = join(base, "home");
let criu = "";
let server: Served;
const ask = asking(() => server, KEY);

/** Writes its process and a number that grows, whole at each moment. What counts is in its memory alone. */
const COUNTER = "i=0; while :; do i=$((i+1)); echo $$ $i > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.01; done";

/** One that also says more than anybody keeps for it: it stands still where that is not read. */
const TALKER = "line=$(head -c 30000 /dev/zero | tr '\\0' x); i=0; while :; do i=$((i+1)); echo $line; echo $$ $i > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.01; done";

const start = (): Promise<Served> => serve({ home, key: KEY, args: ["--warm", "0"], env: { MW_CRIU: criu } });

beforeAll(async () => {
  const built = spawnSync(process.execPath, [BUILD], { encoding: "utf8" });
  expect(built.status, built.stderr).toBe(0);
  criu = built.stdout.trim();
  server = await start();
}, 1_800_000);
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

interface Count {
  readonly pid: number;
  readonly value: number;
}

function countOf(text: string): Count {
  const [pid = 0, value = 0] = text.trim().split(" ").map(Number);
  return { pid, value };
}

/** The same process, later. */
async function goesOn(what: string, read: () => Promise<string>, from: Count): Promise<Count> {
  const seen = countOf(await read());
  expect(seen.pid, what).toBe(from.pid);
  expect(seen.value, what).toBeGreaterThanOrEqual(from.value);
  return until(`${what}: it counts on`, async () => {
    const now = countOf(await read());
    return now.pid === from.pid && now.value > seen.value ? now : null;
  }).then((now) => now ?? seen);
}

test("E2B's SDK: a counter goes on after pauses and from a snapshot", async () => {
  const options = { apiKey: KEY, apiUrl: server.url, sandboxUrl: server.url, requestTimeoutMs: 120_000 };
  const sandbox = await Sandbox.create("host", { ...options, timeoutMs: 600_000 });
  const read = (of: Sandbox) => async (): Promise<string> => (await of.commands.run("cat /tmp/n")).stdout;
  const command = await sandbox.commands.run(`exec sh -c '${COUNTER}'`, { background: true, timeoutMs: 0 });
  let at = countOf(await until("it counts", async () => read(sandbox)().catch(() => "")));
  let again = sandbox;
  for (let i = 0; i < 3; i++) {
    expect(await again.pause()).toBe(true);
    const paused = await again.getInfo();
    expect(paused.state).toBe("paused");
    again = await Sandbox.connect(sandbox.sandboxId, { ...options, timeoutMs: 600_000 });
    at = await goesOn(`pause ${i}`, read(again), at);
    expect((await again.commands.list()).map(({ pid }) => pid)).toContain(command.pid);
  }
  const { snapshotId } = await again.createSnapshot();
  at = await goesOn("source of a snapshot", read(again), at);
  const restored = await Sandbox.create(snapshotId, { ...options, timeoutMs: 600_000 });
  await goesOn("from the snapshot", read(restored), { ...at, value: 1 });
  await restored.kill();
  await Sandbox.deleteSnapshot(snapshotId, options);
  expect(await again.commands.kill(command.pid)).toBe(true);
  await again.kill();
});

test("E2B's SDK: commands are known, and read, in whatever goes on with them", async () => {
  const options = { apiKey: KEY, apiUrl: server.url, sandboxUrl: server.url, requestTimeoutMs: 120_000, timeoutMs: 600_000 };
  const read = (of: Sandbox) => async (): Promise<string> => (await of.commands.run("cat /tmp/n")).stdout;
  const parent = await Sandbox.create("host", options);
  const { pid } = await parent.commands.run(TALKER, { background: true, timeoutMs: 0 });
  let at = countOf(await until("it counts", async () => read(parent)().catch(() => "")));
  /** Further than what fits between it and who reads it. */
  const talksOn = async (what: string, of: Sandbox): Promise<void> => {
    expect((await of.commands.list()).map((command) => command.pid), what).toEqual([pid]);
    const from = countOf(await read(of)());
    at = await until(`${what}: it talks on`, async () => {
      const now = countOf(await read(of)());
      return now.value > from.value + 300 ? now : null;
    }).then((now) => now ?? from);
    expect(at.pid, what).toBe(from.pid);
  };
  await talksOn("before", parent);
  const [child] = await parent.fork();
  if (!(child instanceof Sandbox)) throw child ?? new Error("no child");
  await talksOn("a child", child);
  const { snapshotId } = await parent.createSnapshot();
  const copy = await Sandbox.create(snapshotId, options);
  await talksOn("a snapshot", copy);
  await parent.pause();
  await server.stop("SIGKILL");
  server = await start();
  const again = { ...options, apiUrl: server.url, sandboxUrl: server.url };
  const resumed = await Sandbox.connect(parent.sandboxId, again);
  await talksOn("a pause that outlived its server", resumed);
  const later = await Sandbox.create(snapshotId, again);
  await talksOn("a snapshot that outlived its server", later);
  expect(await later.commands.kill(pid)).toBe(true);
  for (const one of [later, resumed]) await one.kill();
  await Sandbox.deleteSnapshot(snapshotId, again);
  await until("nothing is known of them", () => readdirSync(join(home, "e2b-processes")).length === 0);
});

test("E2B's templates: what their start command runs goes on in every sandbox, and runs anew where it cannot", async () => {
  const options = { apiKey: KEY, apiUrl: server.url, sandboxUrl: server.url, requestTimeoutMs: 120_000, timeoutMs: 600_000 };
  const records = join(home, "snapshots", "records");
  const parts = (): readonly string[] => (existsSync(records) ? readdirSync(records) : []);
  const read = (of: Sandbox, path: string): Promise<string> => of.commands.run(`cat ${path}`).then(({ stdout }) => stdout);
  const before = parts();
  const build = (): Promise<unknown> => Template.build(Template().fromImage("host").setStartCmd(`cat /proc/sys/kernel/random/uuid >> /tmp/begun; ${TALKER}`, waitForFile("/tmp/n")), "talks", options);
  await build();
  expect(parts()).toHaveLength(before.length + 1);
  /** Which begin of the start command it was. */
  const look = async (): Promise<string> => {
    const sandbox = await Sandbox.create("talks", options);
    const found = await sandbox.commands.list();
    expect(found.map(({ tag }) => tag)).toEqual(["start_cmd"]);
    await goesOn("of a template", () => read(sandbox, "/tmp/n"), countOf(await read(sandbox, "/tmp/n")));
    const begun = await read(sandbox, "/tmp/begun");
    expect(begun).toMatch(/^\S{36}\n$/);
    await sandbox.kill();
    return begun;
  };
  const built = await look();
  expect(await look()).toBe(built);
  // It is a part of its template, not a snapshot of its owner.
  expect((await ask("GET", "/v1/snapshots")).body.snapshots).toEqual([]);
  const first = parts().find((name) => !before.includes(name));
  await build();
  expect(parts()).toHaveLength(before.length + 1);
  expect(parts()).not.toContain(first);
  const again = await look();
  expect(again).not.toBe(built);
  // Lost, as on another kernel: it is begun again.
  for (const kept of readdirSync(join(home, "snapshots", "memory"))) rmSync(join(home, "snapshots", "memory", kept), { recursive: true });
  expect(await look()).not.toBe(again);
  const answer = await fetch(`${server.url}/templates/talks`, { method: "DELETE", headers: { "X-API-KEY": KEY } });
  expect(answer.status).toBe(204);
  expect(parts()).toEqual(before);
  // Of a build whose server was killed before it knew the template.
  await build();
  await server.stop("SIGKILL");
  expect(parts()).toHaveLength(before.length + 1);
  rmSync(join(home, "e2b", "templates.json"));
  server = await start();
  expect(parts()).toEqual(before);
});

test("the native interface: a counter goes on after pauses, a kill of the server, in children and from snapshots", async () => {
  const made = await ask("POST", "/v1/sandboxes", { image: "host", checkpointable: true, memory_bytes: 512 << 20, ttl_ms: 3_600_000 });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const id = made.body.id as string;
  const read = (of: string) => async (): Promise<string> => (await ask("POST", `/v1/sandboxes/${of}/run`, { command: "cat /tmp/n" })).body.stdout as string;
  expect((await ask("POST", `/v1/sandboxes/${id}/execs`, { command: COUNTER })).status).toBe(201);
  let at = countOf(await until("it counts", read(id)));
  for (const [verb, kill] of [["pause", false], ["pause", true]] as const) {
    expect((await ask("POST", `/v1/sandboxes/${id}/${verb}`, { memory: true })).body).toMatchObject({ state: "paused" });
    if (kill) {
      await server.stop("SIGKILL");
      server = await start();
    }
    expect((await ask("POST", `/v1/sandboxes/${id}/resume`, { ttl_ms: 3_600_000 })).status).toBe(200);
    at = await goesOn(kill ? "after a kill of the server" : "after a pause", read(id), at);
  }
  const { body } = await ask("POST", `/v1/sandboxes/${id}/fork`, { count: 2, memory: true });
  for (const { sandbox } of body.children as { sandbox: { id: string } }[]) {
    await goesOn("child", read(sandbox.id), at);
    expect((await ask("DELETE", `/v1/sandboxes/${sandbox.id}`)).status).toBe(204);
  }
  at = await goesOn("source of children", read(id), at);
  const taken = await ask("POST", `/v1/sandboxes/${id}/snapshots`, { memory: true });
  expect(taken.status, JSON.stringify(taken.body)).toBeLessThan(300);
  const [snapshot] = (await ask("GET", "/v1/snapshots")).body.snapshots as { id: string; memory: boolean }[];
  expect(snapshot?.memory).toBe(true);
  const restored = (await ask("POST", "/v1/sandboxes", { snapshot: snapshot?.id, checkpointable: true })).body.id as string;
  await goesOn("from the snapshot", read(restored), at);
  for (const of of [restored, id]) expect((await ask("DELETE", `/v1/sandboxes/${of}`)).status).toBe(204);
  expect((await ask("DELETE", `/v1/snapshots/${snapshot?.id ?? ""}`)).status).toBe(204);
});

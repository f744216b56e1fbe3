/**
 * `mw serve` killed in each phase of a pause, a resume, a snapshot and a fork, and stopped while sandboxes are paused. The next server lists what can be gone on with and nothing
 * else, gives back every file, and once that is ended nothing is left in the data directory. `MW_FAULT_SEED` draws other moments.
 */
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Answer, asking } from "../support/asking.ts";
import { delays } from "../support/helper-kills.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";

const KEY = "a-key-for-kills-of-servers";
const SEED = Number(process.env["MW_FAULT_SEED"] ?? 5);
const ROUNDS = Number(process.env["MW_FAULT_ROUNDS"] ?? 2);
/** About as long as the longest request takes where nothing else runs. */
const MOST_MS = 60;

let base = "";
let image: TestRoot;
let homes = 0;
beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-serve-kill-"));
  chmodSync(base, 0o755);
  image = makeTestRoot(base);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

/** Null when the server died meanwhile. */
const ask = (server: Served, method: string, path: string, body?: unknown): Promise<Answer | null> => asking(() => server, KEY)(method, path, body).catch(() => null);
const start = (home: string): Promise<Served> => serve({ home, key: KEY, args: ["--warm", "0"] });
const names = (path: string): readonly string[] => (existsSync(path) ? readdirSync(path) : []);
const inStore = (home: string, part: string): readonly string[] => names(join(home, "snapshots", part));
const records = (home: string): readonly string[] => names(join(home, "sandboxes"));

async function filled(server: Served): Promise<string> {
  const id = (await ask(server, "POST", "/v1/sandboxes", { image: `dir:${image.directory}`, ttl_ms: 600_000 }))?.body.id as string;
  const made = await ask(server, "POST", `/v1/sandboxes/${id}/run`, { command: "mkdir /w; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i > /w/$i; done; head -c 3000000 /dev/urandom > /w/big; md5sum /w/big > /w/sum" });
  expect(made?.body.code).toBe(0);
  return id;
}

async function expectWhole(server: Served, id: string): Promise<void> {
  const looked = await ask(server, "POST", `/v1/sandboxes/${id}/run`, { command: "cd /w && md5sum -c sum && ls | grep -c '^[0-9]'" });
  expect(looked?.body.stdout, JSON.stringify(looked)).toBe("/w/big: OK\n300\n");
}

/** What a server after the dead one says is there can be used; then all of it is ended, and nothing is left. Says how many paused ones there were. */
async function expectSound(home: string): Promise<number> {
  const server = await start(home);
  const sandboxes = (await ask(server, "GET", "/v1/sandboxes"))?.body.sandboxes as { id: string; state: string }[];
  for (const { id, state } of sandboxes) {
    expect(state).toBe("paused");
    expect((await ask(server, "POST", `/v1/sandboxes/${id}/resume`, {}))?.status).toBe(200);
    await expectWhole(server, id);
    expect((await ask(server, "DELETE", `/v1/sandboxes/${id}`))?.status).toBe(204);
  }
  const snapshots = (await ask(server, "GET", "/v1/snapshots"))?.body.snapshots as { id: string }[];
  for (const { id } of snapshots) {
    const made = (await ask(server, "POST", "/v1/sandboxes", { snapshot: id }))?.body.id as string;
    await expectWhole(server, made);
    await ask(server, "DELETE", `/v1/sandboxes/${made}`);
    expect((await ask(server, "DELETE", `/v1/snapshots/${id}`))?.status).toBe(204);
  }
  // And what is asked for next is done.
  const next = await filled(server);
  expect((await ask(server, "POST", `/v1/sandboxes/${next}/pause`, {}))?.status).toBe(200);
  expect((await ask(server, "DELETE", `/v1/sandboxes/${next}`))?.status).toBe(204);
  expect(await server.stop()).toBe(0);
  for (const part of ["records", "layers", "memory", "work", "holds"]) expect(inStore(home, part), part).toEqual([]);
  expect(names(join(home, "snapshots")).toSorted()).toEqual(["holds", "layers", "lock", "memory", "records", "work"]);
  expect(records(home)).toEqual([]);
  expect(await leftoversAfter(home)).toEqual([]);
  return sandboxes.length;
}

/** Looks as often as it can: the phases last less than a millisecond. */
async function whileAsking(asked: Promise<unknown>, reached: () => boolean): Promise<void> {
  const state = { over: false };
  void asked.then(() => (state.over = true));
  while (!state.over && !reached()) await new Promise(setImmediate);
}

const PHASES: readonly (readonly [name: string, first: "none" | "pause", verb: string, reached: (home: string) => boolean])[] = [
  ["a pause is written down and not yet kept", "none", "pause", (home) => records(home).length > 0],
  ["a layer of a pause is written", "none", "pause", (home) => inStore(home, "work").some((name) => names(join(home, "snapshots/work", name)).length > 0)],
  ["a pause is kept and not yet answered", "none", "pause", (home) => inStore(home, "records").length > 0],
  ["a resume has begun", "pause", "resume", (home) => inStore(home, "holds").length > 0],
  ["a resumed one's pause is gone and its record is not", "pause", "resume", (home) => inStore(home, "records").length === 0],
  ["a snapshot is kept and not yet answered", "none", "snapshots", (home) => inStore(home, "records").length > 0],
];

test.for(PHASES)("killed when %s", { timeout: 300_000 }, async ([, first, verb, reached]) => {
  const home = join(base, `home${homes++}`);
  const server = await start(home);
  const id = await filled(server);
  if (first === "pause") expect((await ask(server, "POST", `/v1/sandboxes/${id}/pause`, {}))?.status).toBe(200);
  const asked = ask(server, "POST", `/v1/sandboxes/${id}/${verb}`, {});
  await whileAsking(asked, () => reached(home));
  await server.stop("SIGKILL");
  await asked;
  await expectSound(home);
});

test("killed at any moment", { timeout: 900_000 }, async () => {
  const delay = delays("killing mw serve", SEED);
  for (let round = 0; round < ROUNDS; round++) {
    const home = join(base, `home${homes++}`);
    const server = await start(home);
    const id = await filled(server);
    const afterMs = delay(8 * MOST_MS);
    const working = (async () => {
      while ((await ask(server, "POST", `/v1/sandboxes/${id}/pause`, {})) !== null) {
        await ask(server, "POST", `/v1/sandboxes/${id}/resume`, {});
        await ask(server, "POST", `/v1/sandboxes/${id}/snapshots`, { name: "again" });
        const forked = await ask(server, "POST", `/v1/sandboxes/${id}/fork`, { count: 2 });
        for (const { sandbox } of (forked?.body.children ?? []) as { sandbox: { id: string } }[]) await ask(server, "DELETE", `/v1/sandboxes/${sandbox.id}`);
      }
    })();
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    await server.stop("SIGKILL");
    await working;
    await expectSound(home).catch((error: unknown) => Promise.reject(new Error(`round ${round}, after ${afterMs.toFixed(1)} ms: ${String(error)}`, { cause: error })));
  }
});

test("a server that is stopped keeps what it had paused", { timeout: 300_000 }, async () => {
  const home = join(base, `home${homes++}`);
  const server = await start(home);
  const id = await filled(server);
  expect((await ask(server, "POST", `/v1/sandboxes/${id}/pause`, {}))?.status).toBe(200);
  // Those that stand on layers let them go, which gives whatever else ends with the server time to be done.
  const other = await filled(server);
  await ask(server, "POST", `/v1/sandboxes/${other}/snapshots`, { name: "below" });
  for (let i = 0; i < 3; i++) expect((await ask(server, "POST", "/v1/sandboxes", { snapshot: "below" }))?.status).toBe(201);
  expect(await server.stop()).toBe(0);
  expect(await expectSound(home)).toBe(1);
});

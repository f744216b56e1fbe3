/**
 * The spawner, the helper that copies and writes layers, and the one that takes trees away, killed at moments drawn from a seed while a machine is kept, forked, paused and resumed.
 * What is listed is whole, nothing is left over, the machine goes on unless it died with its spawner, and the next operation works. `MW_FAULT_SEED` draws others.
 */
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openNativeBackend, type NativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import { delays, killing } from "../support/helper-kills.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";

const SEED = Number(process.env["MW_FAULT_SEED"] ?? 11);
const ROUNDS = Number(process.env["MW_FAULT_ROUNDS"] ?? 1);
/** About as long as each is at work where nothing else runs. */
const MOST_MS = { spawner: 25, tree: 10, unpack: 0 } as const;
const OPERATIONS = ["snapshot", "fork", "pause", "resume"] as const;

let base = "";
let home = "";
let image: TestRoot;
let backend: NativeBackend;

beforeAll(async () => {
  base = mkdtempSync(join(tmpdir(), "mw-helpers-"));
  chmodSync(base, 0o755);
  image = makeTestRoot(base);
  home = join(base, "home");
  mkdirSync(home);
  backend = await openNativeBackend({ home, log: () => undefined });
});
afterAll(async () => {
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

const store = (part: string): readonly string[] => readdirSync(join(home, "snapshots", part));

/** With enough in it that copying, writing and removing take a while; `busy`: something runs in it. */
async function filled(busy: boolean): Promise<Sandbox> {
  const sandbox = await backend.create({ root: image.root });
  await sh(sandbox, "mkdir /w; i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i > /w/$i; done; head -c 2000000 /dev/urandom > /w/big; md5sum /w/big > /w/sum");
  if (busy) await sandbox.exec({ command: "while :; do echo x >> /busy; sleep 0.01; done" });
  return sandbox;
}

async function expectWhole(sandbox: Sandbox): Promise<void> {
  expect((await sh(sandbox, "cd /w && md5sum -c sum && ls | grep -c '^[0-9]'")).out).toBe("/w/big: OK\n400\n");
}

async function forkOnce(sandbox: Sandbox): Promise<void> {
  for (const child of await sandbox.fork(2)) {
    if (!child.ok) throw child.error;
    await expectWhole(child.sandbox);
    await child.sandbox.kill();
  }
}

async function strike(victim: keyof typeof MOST_MS, operation: (typeof OPERATIONS)[number], busy: boolean, afterMs: number): Promise<boolean> {
  const sandbox = await filled(busy);
  if (operation === "resume") await sandbox.pause();
  const { killed, result } = await killing(home, victim, afterMs, async () => {
    if (operation === "snapshot") await sandbox.snapshot();
    else if (operation === "fork") await forkOnce(sandbox);
    else await sandbox[operation]();
  });
  if (!killed && result.status === "rejected") throw result.reason;
  const kept = await backend.snapshots.list();
  const paused = kept.some(({ pausedSandbox }) => pausedSandbox === sandbox.id);
  if (victim === "spawner" && killed) {
    // A resume may have found the next one.
    if (!paused && !(await sh(sandbox, "true").then(() => true, () => false))) await sandbox.ended;
    // Its death is known a moment later, with its last words.
    await until("there is another spawner", () => backend.create({ root: image.root }).then(async (one) => one.kill().then(() => true), () => false));
  }
  for (const { id, pausedSandbox } of kept) {
    expect(pausedSandbox).toBe(pausedSandbox === null ? null : sandbox.id);
    if (pausedSandbox !== null) continue;
    const restored = await backend.create({ root: image.root, snapshot: id });
    await expectWhole(restored);
    await restored.kill();
  }
  // What was kept lives whoever died. A running machine dies with its spawner and nobody else.
  const lives = (await backend.list()).some(({ id }) => id === sandbox.id);
  if (victim !== "spawner" || paused) expect(lives).toBe(true);
  expect(sandbox.state === "paused").toBe(paused);
  if (operation === "resume" && result.status === "rejected" && victim !== "unpack") expect(paused).toBe(true);
  const next = lives ? sandbox : await filled(busy);
  await next.resume();
  await expectWhole(next);
  await forkOnce(next);
  const { snapshot } = await next.snapshot();
  await next.pause();
  await next.resume();
  await expectWhole(next);
  await next.kill();
  for (const { id } of kept) if (id !== snapshot.id) await backend.snapshots.remove(id).catch((error: unknown) => expect(error).toMatchObject({ code: "not_found" }));
  await backend.snapshots.remove(snapshot.id);
  await backend.snapshots.settled();
  await backend.snapshots.collect();
  for (const part of ["records", "layers", "work", "holds"]) await expect.poll(() => store(part), { timeout: 30_000, message: part }).toEqual([]);
  expect(await backend.list()).toEqual([]);
  return killed;
}

for (const victim of ["spawner", "tree", "unpack"] as const) {
  test(`the ${victim} dies while a machine is kept, forked, paused or resumed`, { timeout: 600_000 }, async () => {
    const delay = delays(`killing ${victim}`, SEED);
    let killed = 0;
    // Who works for a millisecond only can be over before it is struck.
    for (let round = 0; round < ROUNDS || (killed === 0 && round < 10); round++) {
      for (const operation of OPERATIONS) {
        const afterMs = delay(MOST_MS[victim]);
        const hit = await strike(victim, operation, delay(1) < 0.5, afterMs).catch((error: unknown) => Promise.reject(new Error(`round ${round}, ${operation}, after ${afterMs.toFixed(1)} ms: ${String(error)}`, { cause: error })));
        if (hit) killed++;
      }
    }
    expect(killed).toBeGreaterThan(0);
  });
}

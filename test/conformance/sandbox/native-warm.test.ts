/** Sandboxes that are kept ready: given once, with what is their owner's, and gone when nobody asks or the host is short. */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, expect, test } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.ts";
import { openNativeBackend, type SandboxSpec } from "../../../src/sandbox/index.ts";
import { withWarmSandboxes, type WarmBackend } from "../../../src/sandbox/pool/warm-backend.ts";
import { leftoversAfter, machines } from "../../support/leftovers.ts";
import { makeTestRoot } from "../../support/rootfs.ts";
import { sh, until } from "./fixture.ts";

const base = mkdtempSync(join(tmpdir(), "mw-warm-"));
const image = makeTestRoot(base);
const { root } = image;
const home = join(base, "home");
const MiB = 1 << 20;
let backend: WarmBackend | null = null;
afterEach(async () => {
  await backend?.close();
  backend = null;
  expect(await leftoversAfter(home, machines)).toEqual([]);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

interface Host {
  short: boolean;
  /** Milliseconds that have passed without anybody waiting. */
  skipped: number;
  readonly lines: string[];
}

async function open(most = 4): Promise<{ readonly warm: WarmBackend; readonly host: Host }> {
  const host: Host = { short: false, skipped: 0, lines: [] };
  // Slow, so that what was asked for a moment ago is not long ago where the host stands still.
  const runtime = { ...systemRuntime, monotonic: () => performance.now() / 10 + host.skipped };
  backend = withWarmSandboxes(await openNativeBackend({ home }), { runtime, most, log: (line) => void host.lines.push(line), pressure: async () => host.short });
  return { warm: backend, host };
}

async function ask(warm: WarmBackend, times: number, spec: SandboxSpec): Promise<void> {
  const made = await Promise.all(Array.from({ length: times }, () => warm.create(spec)));
  await Promise.all(made.map((sandbox) => sandbox.kill()));
}

test("what is asked for again is ready, is given once, and is its owner's in everything", async () => {
  const { warm } = await open();
  await ask(warm, 3, { root });
  await until("three are ready", () => warm.warm.ready === 3);
  expect(await warm.list()).toEqual([]);
  const labels = { owner: "me" };
  const before = warm.warm.taken;
  const own = await Promise.all(["a", "b", "c"].map((name) => warm.create({ root, labels, env: { MINE: name } })));
  expect(warm.warm.taken - before).toBe(3);
  expect(new Set(own.map(({ id }) => id)).size).toBe(3);
  const listed = await warm.list();
  expect(listed.map(({ id }) => id).toSorted()).toEqual(own.map(({ id }) => id).toSorted());
  expect(listed.every((one) => one.labels["owner"] === "me")).toBe(true);
  const [a] = own;
  if (a === undefined) throw new Error("none was made");
  expect(warm.get(a.id)).toBe(a);
  expect(a.spec).toMatchObject({ labels, env: { MINE: "a" } });
  for (const [at, sandbox] of own.entries()) expect((await sh(sandbox, "echo $MINE $IMAGE_SAYS; ls /tmp; echo $MINE > /tmp/mine")).out).toBe(`${"abc".charAt(at)} hello\n`);
  const [child] = await a.fork(1);
  if (child?.ok !== true) throw new Error("no child");
  expect(child.sandbox.spec).toMatchObject({ labels, env: { MINE: "a" } });
  expect((await sh(child.sandbox, "echo $MINE; cat /tmp/mine")).out).toBe("a\na\n");
  await a.pause();
  await a.resume();
  expect((await sh(a, "echo $MINE; cat /tmp/mine")).out).toBe("a\na\n");
});

test("another kind, or one that nobody can share, is made as ever", async () => {
  const { warm } = await open();
  await ask(warm, 2, { root, memoryBytes: 64 * MiB });
  await until("some are ready", () => warm.warm.ready === 2);
  const taken = warm.warm.taken;
  const other = await warm.create({ root, memoryBytes: 96 * MiB });
  const named = await warm.create({ root, memoryBytes: 64 * MiB, hostname: "mine" });
  const keyed = await warm.create({ root, memoryBytes: 64 * MiB, key: "k" });
  expect(await warm.create({ root, memoryBytes: 64 * MiB, key: "k" })).toBe(keyed);
  expect((await sh(named, "hostname")).out).toBe("mine\n");
  expect(warm.warm.taken).toBe(taken);
  expect(other.spec.memoryBytes).toBe(96 * MiB);
  await expect(warm.create({ root, memoryBytes: 64 * MiB, env: { "a=b": "c" } })).rejects.toMatchObject({ code: "invalid_input" });
});

test("there are never more than it may keep: what was asked for last is kept", async () => {
  const { warm } = await open(4);
  await ask(warm, 6, { root });
  await until("as many as may be", () => warm.warm.ready === 4);
  await ask(warm, 3, { root, pids: 64 });
  const taken = warm.warm.taken;
  await until("the later kind has taken places", async () => {
    expect(warm.warm.ready).toBeLessThanOrEqual(4);
    return warm.warm.ready === 4 && (await warm.create({ root, pids: 64 })) !== null && warm.warm.taken > taken;
  });
});

test("a host that is short of memory keeps none, and some again afterwards; nor is kept what nobody asks for", async () => {
  const { warm, host } = await open();
  await ask(warm, 4, { root });
  await until("some are ready", () => warm.warm.ready === 4);
  host.short = true;
  await until("all are given up", () => warm.warm.ready === 0);
  expect(await leftoversAfter(home, machines)).toEqual([]);
  expect((await warm.create({ root })).state).toBe("running");
  host.short = false;
  await until("some are ready again", () => warm.warm.ready > 0);
  host.skipped += 61_000;
  await until("all are given up", () => warm.warm.ready === 0);
  expect(host.lines).toEqual([]);
});

test("one that died while it was ready, or whose image is another by now, is given to nobody", async () => {
  const { warm } = await open(2);
  await ask(warm, 2, { root });
  await until("two are ready", () => warm.warm.ready === 2);
  const spawner = (): number => Number(readFileSync(join(home, "lock"), "utf8"));
  const dead = spawner();
  process.kill(dead, "SIGKILL");
  // Others may be ready as soon as there is another spawner.
  await until("they are gone", () => warm.warm.ready === 0 || spawner() !== dead);
  expect((await sh(await warm.create({ root }), "echo alive")).out).toBe("alive\n");

  const directory = join(base, "copy");
  const copy = { ...root, digest: "sha256:copy", layers: [directory] };
  cpSync(image.directory, directory, { recursive: true, verbatimSymlinks: true });
  await ask(warm, 2, { root: copy });
  await until("two are ready", () => warm.warm.ready === 2);
  rmSync(directory, { recursive: true });
  cpSync(image.directory, directory, { recursive: true, verbatimSymlinks: true });
  const taken = warm.warm.taken;
  expect((await sh(await warm.create({ root: copy }), "cat /etc/marker")).out).toBe("image\n");
  expect(warm.warm.taken).toBe(taken);
});

/**
 * A data directory without room, at every step of keeping, forking, pausing and resuming: with no file or page free, with one, with two, and so on. What fails says that there is
 * no room, leaves nothing half-made, and the sandbox goes on as it was; what is removed makes room, however full the disk is.
 */
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openNativeBackend, type NativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { sh, text } from "../conformance/sandbox/fixture.ts";

const STEPS = 14;
const PAGE_BYTES = 4096;

describe.runIf(process.getuid?.() === 0)("with room for", () => {
  let base = "";
  let home = "";
  let image: TestRoot;
  let backend: NativeBackend;

  beforeAll(async () => {
    base = mkdtempSync(join(tmpdir(), "mw-full-"));
    chmodSync(base, 0o755);
    image = makeTestRoot(base);
    home = join(base, "home");
    mkdirSync(home);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=3m,nr_inodes=400", "tmpfs", home]);
    backend = await openNativeBackend({ home, log: () => undefined });
  });
  afterAll(async () => {
    await backend.close();
    expect(await leftoversAfter(home, () => readdirSync(join(home, "snapshots/layers")))).toEqual([]);
    execFileSync("umount", [home]);
    expect(await leftoversAfter(home)).toEqual([]);
    rmSync(base, { recursive: true, force: true });
  });

  /** Until nothing more goes in; then `free` of them are taken away. */
  function fill(what: "files" | "pages", free: number): void {
    const directory = join(home, "filler");
    mkdirSync(directory);
    const made: string[] = [];
    const put = (bytes: number): boolean => {
      const path = join(directory, String(made.length));
      try {
        writeFileSync(path, Buffer.alloc(bytes));
      } catch {
        rmSync(path, { force: true });
        return false;
      }
      return made.push(path) > 0;
    };
    if (what === "pages") while (put(64 * PAGE_BYTES));
    while (put(what === "pages" ? PAGE_BYTES : 0));
    for (const path of made.slice(made.length - free)) rmSync(path);
  }
  const empty = (): void => rmSync(join(home, "filler"), { recursive: true, force: true });

  /** Whether it was done. What it may fail for is want of room. */
  async function done(work: Promise<unknown>): Promise<boolean> {
    return work.then(
      () => true,
      (error: unknown) => {
        expect(error).toMatchObject({ code: "host_exhausted" });
        return false;
      },
    );
  }

  async function expectWhole(sandbox: Sandbox, snapshots: number): Promise<void> {
    expect((await sh(sandbox, "cat /f /g")).out).toBe("1\n2\n");
    expect((await backend.snapshots.list()).length).toBe(snapshots);
    expect(readdirSync(join(home, "snapshots/work"))).toEqual([]);
    // What is collected behind a machine that ended takes the lock.
    await expect.poll(() => readdirSync(join(home, "snapshots")).toSorted(), { timeout: 30_000 }).toEqual(["holds", "layers", "lock", "memory", "records", "work"]);
  }

  async function attempt(what: "files" | "pages", free: number): Promise<readonly boolean[]> {
    const origin = await backend.create({ root: image.root });
    await sh(origin, "echo 1 > /f");
    const { snapshot: first } = await origin.snapshot({ name: "tag" });
    await origin.kill();
    // It stands on layers on disk, which its children need as well.
    const sandbox = await backend.create({ root: image.root, snapshot: first.id });
    await sh(sandbox, "echo 2 > /g");
    // Whoever collects behind the one that ended holds a file as its lock.
    await backend.snapshots.settled();
    fill(what, free);
    const results: boolean[] = [];
    try {
      const named = await done(sandbox.snapshot({ name: "tag" }));
      results.push(named);
      expect((await backend.snapshots.list()).map(({ name }) => name)).toEqual(named ? [null, "tag"] : ["tag"]);
      await expectWhole(sandbox, named ? 2 : 1);
      const children = await sandbox.fork(2).catch((error: unknown) => expect.fail(`a fork writes nothing: ${String(error)}`));
      for (const child of children) {
        results.push(await done(child.ok ? child.sandbox.kill() : Promise.reject(child.error)));
      }
      // Nobody has a child that was not given out.
      expect((await backend.list()).map(({ id }) => id)).toEqual([sandbox.id]);
      const paused = await done(sandbox.pause());
      expect(sandbox.state).toBe(paused ? "paused" : "running");
      const resumed = paused && (await done(sandbox.resume()));
      results.push(paused, resumed);
      expect(sandbox.state).toBe(paused && !resumed ? "paused" : "running");
      if (named) await backend.snapshots.remove("tag");
      results.push(await done(backend.create({ root: image.root, snapshot: first.id }).then((other) => other.kill())));
      await backend.snapshots.remove(first.id);
      empty();
      await sandbox.resume();
      await expectWhole(sandbox, 0);
      const { snapshot } = await sandbox.snapshot();
      expect(text(await sandbox.files.read("/g"))).toBe("2\n");
      await backend.snapshots.remove(snapshot.id);
    } finally {
      empty();
      await sandbox.kill();
      for (const { id } of await backend.snapshots.list()) await backend.snapshots.remove(id);
    }
    await backend.snapshots.settled();
    await backend.snapshots.collect();
    for (const part of ["layers", "holds"]) await expect.poll(() => readdirSync(join(home, "snapshots", part)), { timeout: 30_000, message: part }).toEqual([]);
    return results;
  }

  for (const what of ["files", "pages"] as const) {
    test(`0 to ${STEPS} ${what}`, async () => {
      const all: (readonly boolean[])[] = [];
      for (let free = 0; free <= STEPS; free++) all.push(await attempt(what, free));
      // At first nothing can be kept, in the end everything, and in between it failed on the way.
      expect(all[0]?.[0]).toBe(false);
      expect(all.at(-1)).not.toContain(false);
      expect(new Set(all.map((results) => results.join())).size).toBeGreaterThan(2);
    });
  }

  test("one paused, and no room at all: it can be ended, which makes room", async () => {
    const sandbox = await backend.create({ root: image.root });
    await sh(sandbox, "head -c 300000 /dev/urandom > /f");
    await sandbox.pause();
    // Whoever collects behind it holds a file as its lock.
    await backend.snapshots.settled();
    fill("files", 0);
    await expect(sandbox.resume()).rejects.toMatchObject({ code: "host_exhausted" });
    expect(sandbox.state).toBe("paused");
    await sandbox.kill();
    expect(readdirSync(join(home, "snapshots/layers"))).toEqual([]);
    empty();
  });
});

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

/** A data directory on a file system of its own, so that it can be full without harm to others. Mounting needs root. */
const root = process.getuid?.() === 0;
const MAIN = join(import.meta.dirname, "../../dist/cli/main.js");
const place = mkdtempSync(join(tmpdir(), "mw-disk-"));
const disk = join(place, "disk");
const home = join(disk, "home");

beforeAll(() => {
  mkdirSync(disk);
  if (root) execFileSync("mount", ["-t", "tmpfs", "-o", "size=2g", "mw-test", disk]);
});
afterAll(() => {
  if (root) execFileSync("umount", ["-l", disk]);
  rmSync(place, { recursive: true, force: true });
});

describe.runIf(root)("the data directory's disk", () => {
  it("makes a run wait while it is short, and the run goes on when there is room", async () => {
    expect((await ended(start(["image", "pull", "host"]))).code).toBe(0);
    const task = writeTask(join(place, "wait"));
    resize("100m");
    const child = start(["run", task, "--harness", "oracle", "-n", "2", "--json"]);
    await said(child, "short of disk");
    resize("2g");
    const { code, stdout } = await ended(child);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ outcomes: { scored: 2 } });
  });

  it("refuses to begin when it is full, with the reason once and what to do", async () => {
    const task = writeTask(join(place, "begin"));
    const empty = join(disk, "empty");
    mkdirSync(empty);
    const filler = fill(join(disk, "filler"));
    const { code, stderr } = await ended(start(["run", task, "--harness", "oracle"], empty));
    rmSync(filler);
    expect(code).toBe(3);
    expect(stderr).toMatch(/^error: Machines cannot be made while the disk of the data directory is full: .*No space left on device\n  fix: free some space.*\n$/);
  });

  it("pauses or ends a run in order when it is full, with the log intact, and it goes on when there is room", async () => {
    const task = writeTask(join(place, "full"), { solve: "sleep 1; mkdir -p /work; echo hello > /work/out" });
    const before = new Set(readdirSync(join(home, "runs")));
    const child = start(["run", task, "--harness", "oracle", "-n", "12", "--concurrency", "3", "--json"]);
    await until(() => newest(before) !== null && recorded(newest(before) ?? "") > 0);
    const run = newest(before) ?? "";
    const filler = fill(join(home, "filler"));
    const end = ended(child);
    // An event that no longer fits ends the run; one that still fits into the last block leaves it waiting.
    await until(() => child.process.exitCode !== null || child.stderr.includes("short of disk"));
    rmSync(filler);
    const first = await end;
    expect(first).toMatchObject(first.code === 0 ? {} : { code: 3, stderr: expect.stringMatching(/free space.*mw resume run/s) as unknown });
    const resumed = await ended(start(["resume", run, "--json"]));
    expect(resumed.code).toBe(0);
    expect(JSON.parse(resumed.stdout)).toMatchObject({ outcomes: { scored: 12 } });
    expect(recorded(run)).toBe(12);
    expect(await leftoversAfter(home)).toEqual([]);
  });
});

interface Running {
  readonly process: ChildProcess;
  stdout: string;
  stderr: string;
}

function start(args: readonly string[], data = home): Running {
  const child = mortal(spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, MW_HOME: data }, stdio: ["ignore", "pipe", "pipe"] }));
  const running: Running = { process: child, stdout: "", stderr: "" };
  child.stdout.on("data", (chunk: Buffer) => (running.stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (running.stderr += chunk.toString()));
  return running;
}

function ended(running: Running): Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }> {
  return new Promise((resolve) => {
    running.process.once("close", (code) => resolve({ code, stdout: running.stdout, stderr: running.stderr }));
  });
}

async function said(running: Running, text: string): Promise<void> {
  await until(() => running.stderr.includes(text));
}

async function until(condition: () => boolean): Promise<void> {
  const end = Date.now() + 120_000;
  while (!condition() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
  expect(condition()).toBe(true);
}

function resize(size: string): void {
  execFileSync("mount", ["-o", `remount,size=${size}`, disk]);
}

function newest(before: ReadonlySet<string>): string | null {
  return readdirSync(join(home, "runs")).find((name) => name.startsWith("run") && !before.has(name)) ?? null;
}

function recorded(run: string): number {
  const path = join(home, "runs", run, "events.jsonl");
  return existsSync(path) ? readFileSync(path, "utf8").split('"rollout_recorded"').length - 1 : 0;
}

/** Takes every byte that is left. */
function fill(path: string): string {
  const file = openSync(path, "w");
  try {
    for (let size = 1 << 24; size > 0; size >>= 1) {
      const block = Buffer.alloc(size);
      try {
        while (writeSync(file, block) === size);
      } catch {
        // Full at this size; smaller ones may still fit.
      }
    }
  } finally {
    closeSync(file);
  }
  return path;
}

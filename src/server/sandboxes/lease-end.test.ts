/** The decision alone, with a clock of the test's own; with a real disk that is full: test/fault/serve-full-disk.test.ts. */
import { expect, it } from "vitest";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { endLease, type LeaseEnd } from "./lease-end.ts";
import { SandboxEntry, type SandboxFacts } from "./sandbox-entry.ts";

const FULL = new MwError("host_exhausted", "there is no room");
const NEVER = new MwError("unsupported", "the processes cannot be kept");

/** Runs a lease to its end and what follows; `pause` is asked at each try. */
async function ended(pause: (memory: boolean, tries: number) => MwError | null, request: { readonly onTimeout: "kill" | "pause"; readonly pauseMemory: boolean }) {
  let now = 1_000_000;
  const machine = { state: "running" as "running" | "paused" };
  const entry = new SandboxEntry({ request: { ...request, ttlMs: 1000 } } as unknown as SandboxFacts, machine as unknown as Sandbox, now);
  const did: string[] = [];
  const log: string[] = [];
  const watched: number[] = [];
  const end: LeaseEnd = {
    runtime: { now: () => now },
    log: (line) => void log.push(line),
    pause: async (_entry, memory) => {
      const error = pause(memory, did.length);
      did.push(`pause ${memory ? "processes" : "files"}`);
      if (error !== null) throw error;
      machine.state = "paused";
    },
    kill: async () => {
      did.push("kill");
      entry.gone = true;
    },
    watch: ({ endAt }) => void watched.push(endAt),
  };
  now = entry.endAt;
  await endLease(entry, end);
  while (!entry.gone && machine.state === "running") {
    now = watched.at(-1) ?? Number.NaN;
    await endLease(entry, end);
  }
  return { did, log, lateMs: now - 1_001_000 };
}

it("kills or pauses as was asked", async () => {
  expect((await ended(() => null, { onTimeout: "kill", pauseMemory: false })).did).toEqual(["kill"]);
  expect(await ended(() => null, { onTimeout: "pause", pauseMemory: true })).toEqual({ did: ["pause processes"], log: [], lateMs: 0 });
});

it("a pause for which there is no room is tried until there is, and said twice", async () => {
  const { did, log, lateMs } = await ended((_memory, tries) => (tries < 20 ? FULL : null), { onTimeout: "pause", pauseMemory: false });
  expect(did).toEqual(Array.from({ length: 21 }, () => "pause files"));
  expect(lateMs).toBe(20 * LIMITS.latePauseTryMs);
  expect(log).toEqual([expect.stringMatching(/runs on for at most 3600 s until it can: there is no room/), expect.stringMatching(/is paused, 100 s after the end of its lease/)]);
});

it("after the bound, and for what can never be done, it is killed", async () => {
  const { did, log, lateMs } = await ended(() => FULL, { onTimeout: "pause", pauseMemory: false });
  expect([did.at(-1), lateMs]).toEqual(["kill", LIMITS.latePauseMs]);
  expect(log.at(-1)).toMatch(/for 3600 s, and is killed: there is no room/);
  expect((await ended(() => NEVER, { onTimeout: "pause", pauseMemory: false })).did).toEqual(["pause files", "kill"]);
});

it("processes that can never be kept do not cost the files", async () => {
  expect((await ended((memory) => (memory ? NEVER : null), { onTimeout: "pause", pauseMemory: true })).did).toEqual(["pause processes", "pause files"]);
});

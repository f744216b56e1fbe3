import { spawn, type ChildProcessByStdio } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable, Writable } from "node:stream";
import { afterAll, describe, expect, it } from "vitest";
import { newId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { startEngine } from "../support/engine/index.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const place = mkdtempSync(join(tmpdir(), "mw-worker-kill-"));
const home = join(place, "home");
afterAll(() => rmSync(place, { recursive: true, force: true }));

const PROCESS = join(import.meta.dirname, "../support/worker-process.ts");
/** Two of them are enough where nothing but an event lies between them. */
const PHASES = ["rollouts_planned", "rollout_leased", "rollout_running", "rollout_ended", "rollout_verified", "rollout_recorded"];

/** Of each group: as many as are run at once. */
const MEMBERS = 3;

interface Line {
  readonly epoch: number;
  readonly event: { readonly type: string; readonly rollout?: string };
}

interface End {
  readonly group: number;
  readonly member: number;
}

describe("kill -9 of a process that runs a trainer's rollouts", () => {
  it("in each phase of them: none lost, none run again after its record, no machine left, and the same samples whoever says them", async () => {
    mkdirSync(home);
    // One more for each of them: what there is to kill has not been run by any process before.
    const tasks = PHASES.map((phase) => writeTask(join(place, phase), { name: `test/${phase}` }));
    const engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }], { flavour: "sglang" });
    const run = newId("run", systemRuntime);
    const log = join(home, "runs", run, "events.jsonl");
    const said = new Map<string, string>();
    /** Ends by itself only when it is told that nothing more is to come. */
    const start = (groups: number): { readonly child: ChildProcessByStdio<Writable, Readable, null>; readonly over: Promise<number | null> } => {
      const child = mortal(spawn(process.execPath, ["--import", "tsx", PROCESS, home, run, engine.root, String(MEMBERS), ...tasks.slice(0, groups)], { stdio: ["pipe", "pipe", "inherit"] }));
      let text = "";
      child.stdout.on("data", (chunk: Buffer) => {
        text += chunk.toString();
        for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n")) {
          const line = text.slice(0, end);
          text = text.slice(end + 1);
          const { group, member } = JSON.parse(line) as End;
          // Whatever an earlier process said is what a later one says.
          expect(said.get(`${group}/${member}`) ?? line).toBe(line);
          said.set(`${group}/${member}`, line);
        }
      });
      return { child, over: new Promise((resolve) => child.once("close", resolve)) };
    };
    try {
      for (const [at, phase] of PHASES.entries()) {
        const before = linesOf(log).length;
        const { child, over } = start(at + 1);
        while (child.exitCode === null && !linesOf(log).slice(before).some(({ event }) => event.type === phase)) await new Promise((resolve) => setTimeout(resolve, 2));
        child.kill("SIGKILL");
        await over;
        expect(child.signalCode, phase).toBe("SIGKILL");
        // The gateway's socket is the next controller's to replace.
        expect(await leftoversAfter(home, (of) => machines(of).filter((one) => !one.startsWith("gateway socket"))), phase).toEqual([]);
      }
      const last = start(tasks.length);
      last.child.stdin.end();
      expect(await last.over).toBe(0);
      expect([...said.values()].map((line) => JSON.parse(line) as unknown)).toEqual(
        expect.arrayContaining(tasks.flatMap((_, group) => Array.from({ length: MEMBERS }, (__, member) => expect.objectContaining({ group, member, outcome: "scored", reward: 1, samples: 1 }) as unknown))),
      );
      expect(said.size).toBe(tasks.length * MEMBERS);
      const recorded = new Set<string>();
      for (const { event } of linesOf(log)) {
        if (event.rollout === undefined) continue;
        expect(recorded.has(event.rollout), `${event.type} after the record of ${event.rollout}`).toBe(false);
        if (event.type === "rollout_recorded") recorded.add(event.rollout);
      }
      expect(recorded.size).toBe(tasks.length * MEMBERS);
      expect(await leftoversAfter(home)).toEqual([]);
    } finally {
      await engine.close();
    }
  }, 600_000);
});

/** Whole lines. */
function linesOf(path: string): readonly Line[] {
  if (!existsSync(path)) return [];
  return readFileSync(path, "utf8").split("\n").slice(0, -1).flatMap((line) => {
    try {
      return [JSON.parse(line) as Line];
    } catch {
      return [];
    }
  });
}

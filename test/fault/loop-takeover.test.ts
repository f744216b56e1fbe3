/** A loop of ours whose controllers are killed: the run that is resumed goes on with it in the same machine, with the command that is running there, as if nothing had happened. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { eventsOf } from "../support/surviving-run.ts";
import { SurvivingLoops, waiting, type LoopDeath } from "../support/surviving-loop.ts";

const place = mkdtempSync(join(tmpdir(), "mw-loop-takeover-"));
const runs = new SurvivingLoops(place);
beforeAll(() => runs.prepare());
afterAll(() => rmSync(place, { recursive: true, force: true }));

it("kill -9 while a command runs, twice, the second time until it has ended, and while the model answers: no command and no answer twice, no second machine", async () => {
  const { files, stderr, asked } = await runs.disturbed([
    { what: "what the command says", when: (of) => of.said > 0.2 },
    { what: "the rest of it, by the next controller", when: (of) => of.acts === 4 && of.said === 1, goes: true },
    { what: "the fourth question", holds: 3, when: (of) => of.asked(3) === 1 },
  ]);
  expect(stderr).toContain("go on in their machines, which outlived the controller: 1");
  expect(await runs.essence(files.run)).toEqual(await runs.expected());
  const [leased, ...others] = eventsOf(files, "rollout_leased");
  expect(others).toEqual([]);
  expect(eventsOf(files, "rollout_taken_over").map(({ sandbox, try: of }) => ({ sandbox, of }))).toEqual(Array.from({ length: 3 }, () => ({ sandbox: leased?.["sandbox"], of: 1 })));
  // The answer that was under way is asked for again, and nothing else.
  expect(asked).toEqual([1, 1, 1, 2, 1]);
  expect(readdirSync(files.rollouts[0] ?? "")).not.toContain("tries");
  expect(waiting()).toEqual([]);
}, 300_000);

it("kill -9 when it has ended, and twice while its tests run: what it left is verified by the next one, and nothing is done again", async () => {
  const seen = new Set<string>();
  const testsRun: LoopDeath = {
    what: "tests that did not run before",
    when: ({ tests }) => {
      const fresh = tests.some((pid) => !seen.has(pid));
      if (fresh) for (const pid of tests) seen.add(pid);
      return fresh;
    },
  };
  const { files, asked } = await runs.disturbed([
    { what: "what the command says first", when: (of) => of.said === 1, goes: true },
    { what: "the loop's end", when: (of) => of.hasEnded },
    testsRun,
    testsRun,
  ]);
  expect(await runs.essence(files.run)).toEqual(await runs.expected());
  expect(asked).toEqual([1, 1, 1, 1, 1]);
  for (const type of ["rollout_leased", "rollout_ended", "rollout_collected", "rollout_verified", "rollout_recorded"]) expect(eventsOf(files, type).length, type).toBe(1);
  const types = files.events.map(({ type }) => type);
  expect(types.lastIndexOf("rollout_taken_over")).toBeGreaterThan(types.indexOf("rollout_collected"));
  expect(readdirSync(files.rollouts[0] ?? "")).not.toContain("tries");
}, 600_000);

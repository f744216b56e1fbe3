/** Controllers that are killed when the agent has ended: what it left is verified by the next one, in a fresh machine, as if nothing had happened. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { asked, eventsOf, markOf, SurvivingRuns, waitingTests } from "../support/surviving-run.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-takeover-verify-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

it("kill -9 when the agent has ended, and twice while its tests run: the same workspace is verified, the agent does nothing again", async () => {
  const runs = new SurvivingRuns(place);
  await runs.prepare();
  const mark = markOf("held");
  const seen = new Set<string>();
  const testsRun = {
    what: "tests that did not run before",
    when: () => waitingTests(mark).some((pid) => !seen.has(pid)),
    after: () => {
      for (const pid of waitingTests(mark)) seen.add(pid);
      return true;
    },
  };
  const { files, engine, pids } = await runs.disturbed("held", [{ what: "the agent's end", when: (of) => eventsOf(of, "rollout_ended").length === 1 }, testsRun, testsRun], ["--take-over", "300", "--keep-workspace"]);
  expect(pids.size).toBe(1);
  expect([0, 1, 2, 3, 4].map((turn) => asked(engine, turn))).toEqual([1, 1, 1, 1, 1]);
  for (const type of ["rollout_leased", "rollout_ended", "rollout_collected", "rollout_verified", "rollout_recorded"]) expect(eventsOf(files, type).length, type).toBe(1);
  // What was found in the workspace before the first death is said of it, although it was taken out then.
  expect(JSON.stringify(await runs.expected())).toContain("/tests/planted");
  expect(await runs.essence(files.run)).toEqual([await runs.expected()]);
  const types = files.events.map(({ type }) => type);
  expect(types.lastIndexOf("rollout_taken_over")).toBeGreaterThan(types.indexOf("rollout_collected"));
  const left = readdirSync(files.rollouts[0] ?? "");
  expect(left).toContain("workspace.tar");
  expect(left).not.toContain("workspace.tar.tree");
  expect(left).not.toContain("tries");
}, 600_000);

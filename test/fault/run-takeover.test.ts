/** An agent at work in a machine whose controllers are killed: the run that is resumed goes on with the same process, as if nothing had happened. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { asked, begun, eventsOf, said, SurvivingRuns } from "../support/surviving-run.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-takeover-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

it("kill -9 while the model answers, and of the next controller while the agent works: one process, each call once, no second machine", async () => {
  const runs = new SurvivingRuns(place);
  await runs.prepare();
  const { files, stderr, engine, pids } = await runs.disturbed(
    "twice",
    [
      { what: "the third question", holds: 2, when: (of, to) => begun(of) === 1 && asked(to, 2) === 1 },
      { what: "what the agent says of its fourth turn", when: (of) => said(of) > 400_000, signals: true },
    ],
    ["--take-over", "300"],
    3,
  );
  expect(stderr).toContain("go on in their machines, which outlived the controller: 1");
  expect(pids.size).toBe(1);
  expect(await runs.essence(files.run)).toEqual([await runs.expected()]);
  const [leased, ...others] = eventsOf(files, "rollout_leased");
  expect(others).toEqual([]);
  expect(eventsOf(files, "rollout_taken_over").map(({ sandbox, try: of }) => ({ sandbox, of }))).toEqual(Array.from({ length: 2 }, () => ({ sandbox: leased?.["sandbox"], of: 1 })));
  // The answer that was under way is asked for again, and nothing else.
  expect([0, 1, 2, 3, 4].map((turn) => asked(engine, turn))).toEqual([1, 1, 2, 1, 1]);
  expect(readdirSync(files.rollouts[0] ?? "")).not.toContain("tries");
}, 180_000);

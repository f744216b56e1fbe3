/** A loop of ours that goes on in its living machine, of which checkpoints are taken beside: these are not needed, and go with it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { SurvivingLoops } from "../support/surviving-loop.ts";
import { eventsOf } from "../support/surviving-run.ts";

const place = mkdtempSync(join(tmpdir(), "mw-loop-takeover-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

it("kill -9 in three turns, behind each of which the machine is kept: it goes on where it is, in the same machine, and from no checkpoint", async () => {
  const runs = new SurvivingLoops(place);
  await runs.prepare();
  const { files, asked } = await runs.disturbed(
    [
      { what: "all that the command says first", when: (of) => of.said === 1, goes: true },
      { what: "the fourth question", holds: 3, when: (of) => of.asked(3) === 1 },
      { what: "the last question", holds: 4, when: (of) => of.asked(4) === 1 },
    ],
    ["--checkpoint", "every-turn"],
  );
  expect(await runs.essence(files.run)).toEqual(await runs.expected());
  expect(asked).toEqual([1, 1, 1, 2, 2]);
  expect(eventsOf(files, "rollout_checkpointed").map(({ checkpoint }) => (checkpoint as { turn: number }).turn)).toEqual([1, 2, 3, 4]);
  expect(["rollout_leased", "rollout_restored", "rollout_taken_over"].map((type) => eventsOf(files, type).length)).toEqual([1, 0, 3]);
  expect(files.snapshots).toEqual([]);
});

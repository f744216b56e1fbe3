import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { killAndResume, killSpawners } from "../fault/controller-kill.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-kill-soak-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

describe("kill -9 of the controller, ten times over in a run of 200", () => {
  it.each(["1", "2", "3"])("loses nothing, repeats nothing, leaves nothing (seed %s)", async (seed) => {
    const tasks = Array.from({ length: 20 }, (_, n) => writeTask(join(place, seed, `t${n}`)));
    await expect(killAndResume({ home: join(place, `home-${seed}`), tasks, attempts: 10, kills: 10, concurrency: 8, seed })).resolves.toBeUndefined();
  });
});

describe("kill -9 of the spawner, ten times over in a run of 200", () => {
  it("costs the rollouts under way a try, and nothing else", async () => {
    const tasks = Array.from({ length: 20 }, (_, n) => writeTask(join(place, "spawner", `t${n}`)));
    await expect(killSpawners({ home: join(place, "home-spawner"), tasks, attempts: 10, kills: 10, concurrency: 8, seed: "spawner" })).resolves.toBeUndefined();
  });
});

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { writeTask } from "../support/tasks.ts";
import { killAndResume, killSpawners } from "./controller-kill.ts";

const place = mkdtempSync(join(tmpdir(), "mw-kill-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

describe("kill -9 of the controller", () => {
  it("loses nothing, repeats nothing, leaves nothing", async () => {
    const tasks = [writeTask(join(place, "a")), writeTask(join(place, "b"))];
    await expect(killAndResume({ home: join(place, "home"), tasks, attempts: 20, kills: 4, concurrency: 4, seed: "kill" })).resolves.toBeUndefined();
  }, 180_000);
});

describe("kill -9 of the spawner", () => {
  it("costs the rollouts under way a try, and nothing else", async () => {
    const tasks = [writeTask(join(place, "c")), writeTask(join(place, "d"))];
    await expect(killSpawners({ home: join(place, "home-2"), tasks, attempts: 20, kills: 1, concurrency: 4, seed: "spawner" })).resolves.toBeUndefined();
  }, 180_000);
});

/** The demonstration: every shipped task in real machines, solved by its reference and left alone. Its JSON keys are a stable surface. Its training is in `test/soak/demo.test.ts`. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { shippedTasks } from "../support/worlds.ts";

it("mw demo --json: the references score 1, idleness scores 0, nothing is left", async () => {
  const home = mkdtempSync(join(tmpdir(), "mw-demo-"));
  try {
    const { code, stdout, stderr } = await mw(["demo", "--no-train", "--json"], { env: { MW_HOME: home } });
    const tasks = shippedTasks().length;
    expect(tasks).toBeGreaterThanOrEqual(15);
    expect({ code, document: JSON.parse(stdout) as unknown }, stderr.slice(-4000)).toEqual({
      code: 0,
      document: { tasks, oracle: { scored: tasks, mean: 1 }, nop: { scored: tasks, mean: 0 }, leaked: 0 },
    });
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}, 840_000);

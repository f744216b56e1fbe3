/** The demonstration whole, its training too: a policy that begins with nothing learns from the rewards of real machines, also what it was not trained on. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { z } from "zod";
import { mw } from "../support/cli.ts";

const documentSchema = z.looseObject({
  leaked: z.number(),
  train: z.strictObject({ rollouts: z.number(), meanFirst: z.number(), meanLast: z.number(), seconds: z.number(), stalenessMax: z.number(), heldOut: z.strictObject({ first: z.number(), last: z.number() }) }),
});

it("mw demo --json: mean reward from at most 0.3 to at least 0.8, never more than two steps stale", async () => {
  const home = mkdtempSync(join(tmpdir(), "mw-demo-"));
  try {
    const { code, stdout, stderr } = await mw(["demo", "--json"], { env: { MW_HOME: home } });
    const { train, leaked } = documentSchema.parse(JSON.parse(stdout));
    expect({ code, leaked }, stderr.slice(-4000)).toEqual({ code: 0, leaked: 0 });
    expect(train.meanFirst).toBeLessThanOrEqual(0.3);
    expect(train.meanLast).toBeGreaterThanOrEqual(0.8);
    expect(train.rollouts).toBeGreaterThanOrEqual(300);
    expect(train.stalenessMax).toBeLessThanOrEqual(2);
    expect(train.heldOut.last).toBeGreaterThan(train.heldOut.first + 0.3);
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}, 3_600_000);

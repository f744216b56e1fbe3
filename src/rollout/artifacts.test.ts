import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openMachines, type Machines } from "../../test/support/harness-machine.ts";
import { MwError } from "../core/errors.ts";
import { collectArtifacts } from "./artifacts.ts";

let machines: Machines;
const directory = mkdtempSync(join(tmpdir(), "mw-artifacts-"));
beforeAll(async () => {
  machines = await openMachines();
});
afterAll(async () => {
  rmSync(directory, { recursive: true, force: true });
  await machines.close();
});

const rule = (source: string) => ({ source, destination: "", exclude: [], service: null });

describe("artifacts", () => {
  it("that are too many, or take too long, are not collected and nobody's failure; a cancelled rollout ends", async () => {
    const sandbox = await machines.make("sh");
    try {
      await sandbox.run({ command: ["/bin/sh", "-c", "mkdir /work/many /work/few; cd /work/many; seq 100001 | xargs touch; echo kept > /work/few/a"] });
      const collect = (signal: AbortSignal) => collectArtifacts(sandbox, [rule("many"), rule("few")], "/work", directory, signal);
      expect((await collect(new AbortController().signal)).map(({ source, status, reason }) => [source, status, reason])).toEqual([["many", "failed", "The tree has more than 100000 entries"], ["few", "collected", null]]);
      expect(existsSync(join(directory, "artifacts/many"))).toBe(false);
      rmSync(join(directory, "artifacts"), { recursive: true });
      expect((await collect(AbortSignal.abort(new MwError("timeout", "too long")))).map(({ status, reason }) => [status, reason])).toEqual([["failed", "too long"], ["failed", "too long"]]);
      await expect(collect(AbortSignal.abort(new MwError("cancelled", "enough")))).rejects.toMatchObject({ code: "cancelled" });
    } finally {
      await sandbox.kill();
    }
  }, 180_000);
});

/** Each shipped task against its reference again and again, against planting, and against plausible wrong solutions. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { asScript, shippedTasks, WORLD } from "../support/worlds.ts";

const place = mkdtempSync(join(tmpdir(), "mw-worlds-"));
const home = join(place, "home");
afterAll(() => rmSync(place, { recursive: true, force: true }));

interface Line {
  readonly task: string;
  readonly outcome: string;
  readonly reward: number | null;
}

async function run(...args: readonly string[]): Promise<readonly Line[]> {
  const { stdout, stderr } = await mw(["run", ...args, "--seed", "1", "--concurrency", "4", "--json"], { env: { MW_HOME: home } });
  try {
    return (JSON.parse(stdout) as { rollouts: Line[] }).rollouts;
  } catch {
    throw new Error(stderr.slice(-4000));
  }
}

const others = (lines: readonly Line[], reward: number): readonly Line[] => lines.filter((line) => line.outcome !== "scored" || line.reward !== reward);

it("references score 1, three times over", async () => {
  const lines = await run(WORLD, "--harness", "oracle", "-n", "3");
  expect(lines).toHaveLength(shippedTasks().length * 3);
  expect(others(lines, 1)).toEqual([]);
});

it("planting scores 0", async () => {
  const lines = await run(WORLD, "--harness", "script", "--script", asScript(resolve("test/worlds/plant.sh"), join(place, "plant")));
  expect(lines).toHaveLength(shippedTasks().length);
  expect(others(lines, 0)).toEqual([]);
});

it("plausible wrong solutions do not score 1", async () => {
  const accepted: string[] = [];
  let tried = 0;
  for (const task of shippedTasks()) {
    for (const name of readdirSync(resolve("test/worlds/wrong", task)).filter((file) => file.endsWith(".sh"))) {
      const lines = await run(join(WORLD, task), "--harness", "script", "--script", asScript(resolve("test/worlds/wrong", task, name), join(place, "wrong")));
      tried++;
      if (lines.length !== 1 || lines[0]?.outcome !== "scored" || (lines[0].reward ?? 1) >= 1) accepted.push(`${task}/${name}: ${JSON.stringify(lines)}`);
    }
  }
  expect(tried).toBeGreaterThanOrEqual(shippedTasks().length);
  expect(accepted).toEqual([]);
});

/** TRL's own `AsyncGRPOTrainer` trains through an unmodified agent CLI in machines: the example of docs/trainers/trl.md, on a CPU. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { leftoversAfter } from "../../support/leftovers.ts";
import { PACKAGE, python, pythonEnvironment, torchPython } from "../../support/python.ts";
import { serve, type Served } from "../../support/serve.ts";

const home = mkdtempSync(join(tmpdir(), "mw-trl-async-"));
const KEY = "a-key-for-this-test";
const STEPS = 5;
const BATCH = 8;
const MAX_STALENESS = 2;
let server: Served;
let program = "";

beforeAll(async () => {
  program = await torchPython();
  server = await serve({ home: join(home, "data"), key: KEY, env: process.env });
}, 1_200_000);
afterAll(async () => {
  await server.stop();
  expect(await leftoversAfter(join(home, "data"))).toEqual([]);
  rmSync(home, { recursive: true, force: true });
});

interface Trained {
  /** What the trainer took out of its queue, each with the version that it had then and the version of the sample's oldest token. */
  readonly rows: readonly { readonly sampled: number; readonly trainer: number; readonly trained_tokens: number; readonly advantage: number; readonly group: string }[];
  readonly published: readonly number[];
  /** Between one set of weights that was served and the next, the largest change of any. */
  readonly moved: readonly number[];
  /** Between the trainer's weights at its end and those that are served, the same. */
  readonly behind: number;
  readonly rewards: readonly number[];
  readonly stale: readonly number[];
  readonly policy: number;
  /** Of the run's terminal log. */
  readonly ended: readonly { readonly group_id: string; readonly outcome: string; readonly trained_version: number | null; readonly usable: number; readonly version_min: number | null; readonly version_max: number | null }[];
}

it("consumes our rollouts while others run, sends its weights to the agents' model at every step, and trains on nothing too old", async () => {
  const args = [join(PACKAGE, "tests/trl_async_host.py"), join(home, "out"), String(STEPS), String(BATCH)];
  const end = await python(args, { program, cwd: home, env: { ...pythonEnvironment(), MW_URL: server.url, MW_API_KEY: KEY } });
  expect({ code: end.code, stderr: end.code === 0 ? "" : end.stderr.slice(-4000) }).toEqual({ code: 0, stderr: "" });
  const trained = JSON.parse(end.stdout.trimEnd().split("\n").at(-1) ?? "") as Trained;

  // Every step and every version: 1 before the first step, one more after each.
  expect(trained.published).toEqual(Array.from({ length: STEPS + 1 }, (_, at) => at + 1));
  expect(trained.policy).toBe(STEPS + 1);
  expect(trained.rewards.length).toBe(STEPS);
  // The weights changed, and what is served at the end are the trainer's.
  expect(trained.moved.length).toBe(STEPS);
  expect(Math.max(...trained.moved)).toBeGreaterThan(1e-4);
  expect(trained.behind).toBe(0);

  // What it was trained on are rollouts of ours, each with tokens that were sampled; none older than the bound, by our count and by TRL's own.
  expect(trained.rows.length).toBeGreaterThanOrEqual(STEPS * BATCH);
  expect(trained.rows.every(({ trained_tokens: tokens }) => tokens > 0)).toBe(true);
  const staleness = trained.rows.map(({ sampled, trainer }) => trainer - sampled);
  expect(Math.min(...staleness)).toBeGreaterThanOrEqual(0);
  expect(Math.max(...staleness, ...trained.stale)).toBeLessThanOrEqual(MAX_STALENESS);
  // Agents sampled from more than the first weights.
  expect(new Set(trained.rows.map(({ sampled }) => sampled)).size).toBeGreaterThanOrEqual(3);
  // Some rollouts were better than others of their group.
  expect(trained.rows.some(({ advantage }) => advantage > 0) && trained.rows.some(({ advantage }) => advantage < 0)).toBe(true);

  // The service's log says the same: each group that was taken whole is consumed, once, under the version that was trained on it.
  const consumed = trained.ended.filter(({ outcome }) => outcome === "consumed");
  const taken = new Set(trained.rows.slice(0, STEPS * BATCH).map(({ group }) => group));
  expect(new Set(consumed.map(({ group_id: id }) => id)).size).toBe(consumed.length);
  expect(consumed.map(({ group_id: id }) => id).sort()).toEqual([...taken].sort());
  for (const { usable, version_min: oldest, version_max: newest, trained_version: by } of consumed) {
    expect(usable).toBe(BATCH);
    expect(newest ?? Infinity).toBeLessThanOrEqual(by ?? -1);
    expect((by ?? Infinity) - 1 - (oldest ?? -Infinity)).toBeLessThanOrEqual(MAX_STALENESS);
  }
  expect(trained.ended.filter(({ outcome }) => outcome !== "consumed" && outcome !== "cancelled")).toEqual([]);
}, 1_200_000);

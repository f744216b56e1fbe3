/** TRL's real trainers on rollouts in real machines: the examples of docs/trainers/trl.md, with failures put in. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { mw } from "../../support/cli.ts";
import { PACKAGE, python, pythonEnvironment, torchPython, type PythonEnd } from "../../support/python.ts";
import { serve, type Served } from "../../support/serve.ts";

const home = mkdtempSync(join(tmpdir(), "mw-trl-"));
const KEY = "a-key-for-this-test";
let server: Served;
let program = "";

beforeAll(async () => {
  program = await torchPython();
  server = await serve({ home: join(home, "data"), key: KEY, env: process.env });
}, 1_200_000);
afterAll(async () => {
  await server.stop();
  rmSync(home, { recursive: true, force: true });
});

async function run(args: readonly string[]): Promise<PythonEnd> {
  const end = await python(args, { program, cwd: home, env: { ...pythonEnvironment(), MW_URL: server.url, MW_API_KEY: KEY } });
  expect({ code: end.code, stderr: end.code === 0 ? "" : end.stderr.slice(-4000) }).toEqual({ code: 0, stderr: "" });
  return end;
}

function lastLine({ stdout }: PythonEnd): unknown {
  return JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "");
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

it("GRPOTrainer learns in real machines from next to nothing, although every sixth rollout finds no model", async () => {
  const { rewards, rows, unusable } = lastLine(await run([join(PACKAGE, "tests/trl_grpo_host.py"), join(home, "grpo"), "20"])) as {
    readonly rewards: readonly number[];
    readonly unusable: readonly number[];
    readonly rows: readonly { readonly rewards: readonly (number | null)[]; readonly failed_masks: readonly number[] }[];
  };
  expect(mean(rewards.slice(0, 3))).toBeLessThan(0.35);
  expect(mean(rewards.slice(-4))).toBeGreaterThan(0.8);
  // Failures happened, have no reward, and none of their tokens is trained on.
  const failed = rows.flatMap((row) => row.failed_masks);
  expect(failed.length).toBeGreaterThan(20);
  expect(failed.every((trained) => trained === 0)).toBe(true);
  expect(mean(unusable)).toBeGreaterThan(0.05);
  expect(rows.every((row) => row.rewards.length === 32)).toBe(true);
}, 900_000);

it("GRPOTrainer's own generation drives a machine for each conversation, and its rewards are the verifiers', none where a verifier broke", async () => {
  const [steps, batch] = [3, 16];
  const args = [join(PACKAGE, "tests/trl_environment_host.py"), join(home, "environment"), String(steps), String(batch)];
  const { rows, rewards, calls, moved, finite } = lastLine(await run(args)) as {
    readonly rows: readonly { readonly rollout: string; readonly task: string; readonly instruction: string; readonly commands: number; readonly reward: number | null }[];
    readonly rewards: readonly number[];
    readonly calls: readonly number[];
    readonly moved: number;
    readonly finite: boolean;
  };
  expect(rows.length).toBe(steps * batch);
  expect(new Set(rows.map(({ rollout }) => rollout)).size).toBe(rows.length);
  // What TRL was given is what stands in the records of the server.
  const runs = JSON.parse((await mw(["runs", "--json"], { env: { MW_HOME: join(home, "data") } })).stdout) as { readonly runs: readonly { readonly run: string }[] };
  const exported = await Promise.all(runs.runs.map(async ({ run: id }) => (await mw(["export", id], { env: { MW_HOME: join(home, "data") } })).stdout.trim().split("\n")));
  const recorded = new Map(exported.flat().map((line) => JSON.parse(line) as { readonly rollout: string; readonly outcome: string; readonly reward: number | null }).map((one) => [one.rollout, one]));
  for (const { rollout, reward, task } of rows) {
    expect(recorded.get(rollout)).toMatchObject({ reward, outcome: task === "write-number-3" ? "verifier_error" : "scored" });
    expect(reward === null).toBe(task === "write-number-3");
  }
  expect(rows.some(({ reward }) => reward === null)).toBe(true);
  expect(rows.some(({ reward }) => reward !== null && reward > 0)).toBe(true);
  // A reward without a command in the machine would be somebody else's.
  expect(rows.filter(({ reward, commands }) => (reward ?? 0) > 0 && commands === 0)).toEqual([]);
  for (const [step, reward] of rewards.entries()) {
    const there = rows.slice(step * batch, (step + 1) * batch).flatMap(({ reward: one }) => one ?? []);
    expect(reward).toBeCloseTo(mean(there), 5);
    expect(calls[step] ?? 0).toBeCloseTo(mean(rows.slice(step * batch, (step + 1) * batch).map(({ commands }) => commands)), 5);
  }
  expect(moved).toBeGreaterThan(1e-4);
  expect(finite).toBe(true);
});

it("a failed rollout moves no weight of the policy", async () => {
  const { allFailed, someFailed } = lastLine(await run([join(PACKAGE, "tests/no_gradient.py"), join(home, "none")])) as { readonly allFailed: number; readonly someFailed: number };
  expect(allFailed).toBe(0);
  expect(someFailed).toBeGreaterThan(0);
});

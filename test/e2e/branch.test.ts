/** Groups whose rollouts branch from the first one in the middle: they share what came before, and it is trained once. */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { checkSamples } from "../../src/delivery/invariants.ts";
import { rolloutTokens, rowsOf } from "../../src/rollout/samples/rollout-samples.ts";
import { loadRunState } from "../../src/rollout/run-state.ts";
import { isId } from "../../src/core/ids.ts";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-branch-"));
const home = join(place, "home");
const env = { MW_HOME: home };
afterAll(() => rmSync(place, { recursive: true, force: true }));

interface Member {
  readonly rollout: string;
  readonly attempt: number;
  readonly outcome: string;
  readonly reward: number;
  readonly turns: number;
  readonly branch: { readonly parent: string; readonly turn: number } | null;
  readonly group: string;
  readonly calls: readonly { readonly id: string; readonly sampling: { readonly seed: number }; readonly tokens: { readonly promptIds: readonly number[]; readonly completionIds: readonly number[] } }[];
  readonly commands: readonly { readonly command: string }[];
  readonly samples: { readonly samples: readonly { readonly tokenIds: readonly number[]; readonly lossMask: readonly number[] }[]; readonly ledger: { readonly sampled: number; readonly trained: number; readonly masked: { readonly inherited: number } } };
}

it("makes a group of a rollout and its branches, which begin with its files, its history and seeds of their own", async () => {
  // What a member does behind the branch depends on its sampling seed: each writes its own.
  const task = writeTask(join(place, "task"), { name: "test/branch", test: 'cat /work/log; [ "$(head -2 /work/log | tr "\\n" " ")" = "1 2 " ] && [ "$(wc -l < /work/log)" = 3 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt' });
  const engine = await startEngine(({ body, turn }) => {
    if (!("tools" in body) || turn > 2) return { content: "done" };
    return { content: null, calls: [{ command: turn === 2 ? `echo of ${String(body["seed"])} >> /work/log` : `mkdir -p /work; echo ${turn + 1} >> /work/log` }] };
  });
  try {
    const args = ["run", task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "m", "--require-tokens", "--sampling-seed", "5", "--seed", "1", "--branch", "3", "--branch-turn", "2", "-j", "2", "--json", "--quiet"];
    const { code, stdout, stderr } = await mw(args, { env });
    expect(code, stderr).toBe(0);
    const { run, outcomes } = JSON.parse(stdout) as { run: string; outcomes: unknown };
    expect(outcomes).toEqual({ scored: 3 });
    const members = (await mw(["export", run], { env })).stdout.trim().split("\n").map((line) => JSON.parse(line) as Member);
    const [parent, ...branches] = members.toSorted((a, b) => a.attempt - b.attempt);
    if (parent === undefined) throw new Error("no parent");
    expect(new Set(members.map(({ group }) => group)).size).toBe(1);
    expect(parent.branch).toBeNull();
    for (const member of members) {
      expect(member).toMatchObject({ reward: 1, turns: 4 });
      expect(member.commands.length).toBe(3);
      expect(member.calls.length).toBe(4);
    }
    for (const branch of branches) {
      expect(branch.branch).toEqual({ parent: parent.rollout, turn: 2 });
      // The very same calls, tokens and all; then its own, after the very same tokens.
      expect(branch.calls.slice(0, 2)).toEqual(parent.calls.slice(0, 2));
      expect(branch.calls[2]?.tokens.promptIds).toEqual(parent.calls[2]?.tokens.promptIds);
      expect(branch.calls[2]?.id).not.toBe(parent.calls[2]?.id);
      const shown = await mw(["show", branch.rollout], { env });
      expect(shown.stdout).toContain(`branched from ${parent.rollout} behind turn 2: the first 2 model calls are that rollout's`);
      expect(shown.stdout).toMatch(new RegExp(`restored +turn=2 parent=${parent.rollout} calls=2`));
      expect(JSON.parse((await mw(["show", branch.rollout, "--json"], { env })).stdout)).toMatchObject({ branch: { parent: parent.rollout, turn: 2 }, lineage: { parent: { rollout: parent.rollout, turn: 2, calls: 2 }, calls: 4 } });
    }
    const seeds = members.map(({ calls }) => calls.at(-1)?.sampling.seed);
    expect(new Set(seeds).size).toBe(3);
    expect(members.map(({ commands }) => commands[2]?.command)).toEqual(seeds.map((seed) => `echo of ${seed} >> /work/log`));

    // Four calls were made, and twice two: each token of them is trained once.
    const calls = new Map(members.flatMap((member) => member.calls).map(({ id, tokens }) => [id, tokens.completionIds.length]));
    expect(calls.size).toBe(8);
    expect(engine.requests.filter(({ body }) => "tools" in body).length).toBe(8);
    const trained = members.reduce((sum, { samples }) => sum + samples.ledger.trained, 0);
    expect(trained).toBe(members.reduce((sum, { samples }) => sum + samples.ledger.sampled, 0));
    expect(trained).toBe([...calls.values()].reduce((sum, length) => sum + length, 0));
    const inherited = parent.calls.slice(0, 2).reduce((sum, { tokens }) => sum + tokens.completionIds.length, 0);
    expect(members.map(({ samples }) => samples.ledger.masked.inherited).sort()).toEqual([0, inherited, inherited].sort());
    for (const { samples } of members) for (const { tokenIds, lossMask } of samples.samples) expect(tokenIds.length).toBe(lossMask.length);
    // What a trainer's delivery asks of every sample holds of these, too.
    if (!isId("run", run)) throw new Error("no run id");
    for (const rollout of (await loadRunState(home, run)).rollouts.values()) {
      const { set } = await rolloutTokens(join(home, "runs", run, "rollouts", rollout.rollout), { builder: "prefix-merge" });
      // The engine tells no versions, without which nothing is delivered.
      const rows = rowsOf(run, rollout, { ...set, versions: ["1"] }).map(({ facts, arrays: { tokenIds, lossMask, logprobs } }) => ({ facts, arrays: { tokenIds, lossMask, logprobs, versions: Int32Array.from(lossMask, (mask) => mask - 1) } }));
      expect(checkSamples(rows, { maxTokens: null, vocabSize: null, versionFloor: 0 })).toHaveProperty("versions");
    }
    for (const format of ["parquet", "safetensors"]) expect((await mw(["export", run, "--format", format, "--out", join(place, `s.${format}`)], { env })).stderr).toContain("3 samples");
    expect(readdirSync(join(home, "snapshots", "records"))).toEqual([]);
  } finally {
    await engine.close();
  }
  expect(await leftoversAfter(home)).toEqual([]);
});

it("makes ordinary attempts of the others where the first rollout ends before there is anything to branch from", async () => {
  const task = writeTask(join(place, "short"), { name: "test/short" });
  const engine = await startEngine([{ content: "done at once" }]);
  try {
    const { code, stdout, stderr } = await mw(["run", task, "--harness", "bash", "--upstream", engine.url, "--model", "m", "--branch", "2", "--json", "--quiet"], { env });
    expect(code, stderr).toBe(0);
    const { rollouts } = JSON.parse(stdout) as { rollouts: { outcome: string; tries: number }[] };
    expect(rollouts).toMatchObject([{ outcome: "scored", tries: 1 }, { outcome: "scored", tries: 1 }]);
  } finally {
    await engine.close();
  }
});

it("refuses what cannot be kept or branched, before anything starts", async () => {
  const task = writeTask(join(place, "refused"));
  const refused = async (...flags: string[]): Promise<string> => {
    const { code, stderr } = await mw(["run", task, "--upstream", "http://127.0.0.1:9/v1", "--model", "m", ...flags], { env });
    expect(code).toBe(2);
    return stderr;
  };
  expect(await refused("--harness", "bash", "--branch", "1")).toContain("from 2 to 1000");
  expect(await refused("--harness", "bash", "--branch", "2", "-n", "3")).toContain("so does --attempts");
  expect(await refused("--harness", "bash", "--branch-turn", "2")).toContain("add --branch K");
  expect(await refused("--harness", "bash,codex", "--checkpoint", "every-turn")).toContain("the harness codex cannot go on in the middle of its work");
  expect(await refused("--harness", "oracle", "--branch", "2")).toContain("the harness oracle cannot");
  expect(await refused("--harness", "bash", "--checkpoint", "often")).toContain("every-turn, or a time span");
});

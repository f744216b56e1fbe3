import { readdirSync, readFileSync, rmSync, mkdtempSync, mkdirSync, cpSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-reverify-"));
const home = join(place, "home");
const env = { MW_HOME: home };
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** Gives 1 to nobody, because it looks for the wrong word. */
const WRONG = 'if [ "$(cat /work/out 2>/dev/null)" = helo ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt';

interface Document {
  readonly rollouts: readonly { readonly rollout: string; readonly was: number | null; readonly reward: number | null; readonly changed: boolean; readonly verifier: string; readonly error: { readonly code: string; readonly message: string } | null; readonly directory: string }[];
  readonly touched: { readonly rollouts: readonly string[]; readonly samples: readonly string[]; readonly leases: readonly string[]; readonly steps: readonly number[] };
}

async function runOf(args: readonly string[]): Promise<{ readonly run: string; readonly rollouts: readonly { readonly rollout: string; readonly reward: number | null }[] }> {
  const { code, stdout, stderr } = await mw(["run", ...args, "--json", "--quiet"], { env });
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout) as never;
}

describe("mw reverify", () => {
  it("runs a changed verifier over what agents left, writes its verdicts beside the old ones, and says what is other than recorded", async () => {
    const task = writeTask(join(place, "fix"), { name: "test/fix", test: WRONG });
    const { run, rollouts } = await runOf([task, "--harness", "oracle,nop", "-n", "4", "--seed", "5", "--keep-workspace"]);
    expect(rollouts.map(({ reward }) => reward)).toEqual([0, 0, 0, 0]);
    const before = readFileSync(join(home, "runs", run, "events.jsonl"), "utf8");
    const original = readFileSync(join(home, "runs", run, "rollouts", rollouts[0]?.rollout ?? "", "verdict.json"), "utf8");
    writeTask(task, { name: "test/fix" });
    const { code, stdout, stderr } = await mw(["reverify", run, "--task", task, "--json", "--quiet", "-j", "2"], { env });
    expect(code, stderr).toBe(0);
    const document = JSON.parse(stdout) as Document;
    const shown = await mw(["show", run, "--json"], { env });
    const harnesses = new Map((JSON.parse(shown.stdout) as { rollouts: { rollout: string; harness: string }[] }).rollouts.map(({ rollout, harness }) => [rollout, harness]));
    expect(new Set(harnesses.values()).size).toBe(2);
    for (const { rollout, was, reward, changed, error } of document.rollouts) expect({ was, reward, changed, error }).toEqual({ was: 0, reward: harnesses.get(rollout) === "oracle" ? 1 : 0, changed: harnesses.get(rollout) === "oracle", error: null });
    expect(document.touched.rollouts).toEqual(document.rollouts.filter(({ changed }) => changed).map(({ rollout }) => rollout));
    // Nothing that was recorded is other than before.
    expect(readFileSync(join(home, "runs", run, "events.jsonl"), "utf8")).toBe(before);
    expect(readFileSync(join(home, "runs", run, "rollouts", rollouts[0]?.rollout ?? "", "verdict.json"), "utf8")).toBe(original);
    const [first] = document.rollouts as [Document["rollouts"][number]];
    expect(readdirSync(first.directory).toSorted()).toEqual(["result.json", "verdict.json", "verifier"]);
    // Again it stands beside both.
    const again = await mw(["reverify", run, "--task", task, "--quiet"], { env });
    expect(again.stdout).toContain("rewards are other than recorded");
    const rollout = await mw(["show", first.rollout, "--json"], { env });
    expect(JSON.parse(rollout.stdout)).toMatchObject({ reward: 0, reverified: [{ number: 1, was: 0, verifier: first.verifier }, { number: 2, was: 0 }], lineage: { verifier: expect.stringMatching(/^sha256:/) as string, delivery: null } });
    expect((await mw(["show", first.rollout], { env })).stdout).toMatch(/verified again[\s\S]*lineage/);
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("is as careful as the first time: what speaks for the verifier is taken away again", async () => {
    // The agent plants a program that its grader would find, and the answer is not there.
    const script = join(place, "plant.sh");
    const task = writeTask(join(place, "planted"), { name: "test/planted", solve: "mkdir -p /work /usr/local/bin; printf '#!/bin/sh\\necho hello\\n' > /usr/local/bin/cat; chmod +x /usr/local/bin/cat; cp /usr/local/bin/cat /bin/cat" });
    rmSync(script, { force: true });
    const { run, rollouts } = await runOf([task, "--harness", "oracle", "--keep-workspace"]);
    expect(rollouts.map(({ reward }) => reward)).toEqual([0]);
    const { code, stdout, stderr } = await mw(["reverify", run, "--task", task, "--json", "--quiet"], { env });
    expect(code, stderr).toBe(0);
    const document = JSON.parse(stdout) as Document;
    expect(document.rollouts).toMatchObject([{ was: 0, reward: 0, changed: false }]);
    const evidence = (path: string): { readonly restored: readonly string[]; readonly removed: readonly string[] } => (JSON.parse(readFileSync(path, "utf8")) as { evidence: { restored: string[]; removed: string[] } }).evidence;
    const [then, now] = [join(home, "runs", run, "rollouts", rollouts[0]?.rollout ?? "", "verdict.json"), join(document.rollouts[0]?.directory ?? "", "verdict.json")].map(evidence);
    expect(now?.restored).toEqual(then?.restored);
    expect(now?.removed).toEqual(then?.removed);
    expect([...(now?.restored ?? []), ...(now?.removed ?? [])].join()).toContain("/cat");
  });

  it("says kindly what it cannot do", async () => {
    const task = writeTask(join(place, "unkept"), { name: "test/unkept" });
    const { run } = await runOf([task, "--harness", "oracle"]);
    const unkept = await mw(["reverify", run, "--task", task], { env });
    expect(unkept.code).toBe(2);
    expect(unkept.stderr).toContain("--keep-workspace");
    const other = writeTask(join(place, "other"), { name: "test/other" });
    const foreign = await mw(["reverify", run, "--task", other], { env });
    expect(foreign.code).toBe(2);
    expect(foreign.stderr).toContain("unkept");
    // Another environment is another task.
    const kept = await runOf([task, "--harness", "oracle", "--keep-workspace"]);
    const changed = join(place, "changed", "unkept");
    mkdirSync(join(changed, ".."));
    cpSync(task, changed, { recursive: true });
    const image = join(place, "image");
    mkdirSync(join(image, "bin"), { recursive: true });
    writeTask(changed, { name: "test/unkept", environment: `docker_image = "dir:${image}"\nnetwork_mode = "no-network"` });
    const moved = await mw(["reverify", kept.run, "--task", changed, "--json", "--quiet"], { env });
    expect(moved.stderr + moved.stdout).toMatch(/only the verifier may have changed|no verified rollout/);
    expect(moved.code).not.toBe(0);
  });
});

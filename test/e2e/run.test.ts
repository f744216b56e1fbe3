import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-"));
const home = join(place, "home");
const env = { MW_HOME: home };

interface RunJson {
  readonly run: string;
  readonly rollouts: readonly { readonly rollout: string; readonly task: string; readonly attempt: number; readonly outcome: string; readonly reward: number | null; readonly seconds: number }[];
  readonly outcomes: Readonly<Record<string, number>>;
  readonly refused: readonly { readonly source: string }[];
}

async function run(...args: string[]): Promise<RunJson & { readonly code: number; readonly stderr: string }> {
  const { code, stdout, stderr } = await mw(["run", ...args, "--json", "--quiet"], { env });
  if (stdout === "") throw new Error(`mw run printed nothing (exit code ${code}):\n${stderr}`);
  return { ...(JSON.parse(stdout) as RunJson), code, stderr };
}

beforeAll(() => {
  writeTask(join(place, "tasks", "easy"), { name: "test/easy" });
  writeTask(join(place, "tasks", "also"), { name: "test/also" });
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

describe("mw run", () => {
  it("gives the reference 1 and the idle agent 0, each attempt in its own record", async () => {
    const oracle = await run(join(place, "tasks"), "--harness", "oracle", "-n", "2", "--seed", "1");
    expect(oracle).toMatchObject({ code: 0, outcomes: { scored: 4 }, refused: [] });
    expect(oracle.rollouts.map(({ task, attempt, outcome, reward }) => `${task} ${attempt} ${outcome} ${reward}`).sort()).toEqual([
      "test/also 1 scored 1",
      "test/also 2 scored 1",
      "test/easy 1 scored 1",
      "test/easy 2 scored 1",
    ]);
    for (const { seconds } of oracle.rollouts) expect(seconds).toBeGreaterThan(0);
    const nop = await run(join(place, "tasks"), "--harness", "nop", "--seed", "1");
    expect(nop).toMatchObject({ code: 0, outcomes: { scored: 2 } });
    expect(nop.rollouts.map(({ reward }) => reward)).toEqual([0, 0]);

    const runs = JSON.parse((await mw(["runs", "--json"], { env })).stdout) as { runs: { run: string }[] };
    expect(runs.runs.map((one) => one.run)).toEqual([nop.run, oracle.run]);
    const again = await mw(["resume", oracle.run, "--json", "--quiet"], { env });
    expect(again.code).toBe(0);
    expect((JSON.parse(again.stdout) as RunJson).rollouts).toEqual(oracle.rollouts);
  });

  it("leaves a directory that a person can read, and shows it", async () => {
    const script = join(place, "script");
    writeFileSync(script, "# greets\nmkdir -p /work /logs/artifacts\necho hello > /work/out\nprintf 'a\\033[31mb' ; echo problem >&2\necho kept > /logs/artifacts/kept.txt\n");
    const { run: id, rollouts } = await run(join(place, "tasks", "easy"), "--harness", "script", "--script", script, "--seed", "1");
    const [rollout] = rollouts;
    expect(rollout).toMatchObject({ outcome: "scored", reward: 1 });
    const directory = join(home, "runs", id, "rollouts", rollout?.rollout ?? "");
    expect(readdirSync(directory).sort()).toEqual(["artifacts", "artifacts.json", "commands", "commands.jsonl", "instruction.md", "result.json", "verdict.json", "verifier"]);
    expect(readFileSync(join(directory, "instruction.md"), "utf8")).toBe("Write hello to /work/out.\n");
    expect(readdirSync(join(directory, "commands"))).toEqual(["0003-stderr", "0003-stdout"]);
    expect(readFileSync(join(directory, "artifacts", "artifacts", "kept.txt"), "utf8")).toBe("kept\n");
    expect(JSON.parse(readFileSync(join(directory, "verdict.json"), "utf8"))).toMatchObject({ status: "scored", reward: 1, mode: "fresh" });
    expect(JSON.parse(readFileSync(join(directory, "result.json"), "utf8"))).toMatchObject({ outcome: "scored", reward: 1, stopReason: "finished", tries: 1 });

    const shown = await mw(["show", rollout?.rollout ?? ""], { env });
    expect(shown.code).toBe(0);
    for (const text of ["admitted", "verified", "recorded", "echo hello > /work/out", "problem", '{"reward":1}']) expect(shown.stdout).toContain(text);
    // What an agent prints is shown, not obeyed.
    expect(shown.stdout).not.toContain("\u001b");
    const ofRun = await mw(["show", id], { env });
    for (const text of ["pass@1 1.000", "scored 1", "verification", "test/easy"]) expect(ofRun.stdout + id).toContain(text === "test/easy" ? "finished" : text);
    const json = JSON.parse((await mw(["show", id, "--json"], { env })).stdout) as Record<string, unknown>;
    expect(Object.keys(json)).toEqual(expect.arrayContaining(["run", "rollouts", "outcomes", "statistics", "phases"]));

    for (const format of ["jsonl", "atif"]) {
      const exported = await mw(["export", id, "--format", format], { env });
      const lines = exported.stdout.trim().split("\n").map((line) => JSON.parse(line) as Record<string, unknown>);
      expect(lines.length).toBe(1);
      expect(lines[0]).toMatchObject(format === "jsonl" ? { run: id, outcome: "scored", reward: 1 } : { schema_version: "ATIF-v1.7" });
      // Without a model there is no conversation that would hold what the commands said.
      if (format === "atif") {
        const steps = lines[0]?.["steps"] as { observation?: { results: { content: string }[] } }[];
        expect(steps.map((step) => step.observation?.results[0]?.content)).toEqual([undefined, "", "", "a\u001b[31mbproblem\n", ""]);
      }
    }
  });

  it("keeps what the agent left, when asked to, as an archive that says what was removed", async () => {
    const script = join(place, "leaver");
    writeFileSync(script, "mkdir -p /work /tests; echo hello > /work/out; chmod 640 /work/out; echo planted > /tests/x; rm -f /etc/hosts /etc/passwd\n");
    const { run: id, rollouts } = await run(join(place, "tasks", "easy"), "--harness", "script", "--script", script, "--seed", "1", "--keep-workspace");
    const archive = join(home, "runs", id, "rollouts", rollouts[0]?.rollout ?? "", "workspace.tar");
    const listed = execFileSync("tar", ["-tvf", archive], { encoding: "utf8" });
    expect(listed).toMatch(/-rw-r----- .* work\/out$/m);
    // As it was left, not as it was cleaned.
    for (const name of ["tests/x", "etc/.wh.passwd"]) expect(listed).toContain(name);
    expect(execFileSync("tar", ["-xOf", archive, "work/out"], { encoding: "utf8" })).toBe("hello\n");
    expect(readdirSync(join(archive, "..")).filter((name) => name.startsWith("workspace"))).toEqual(["workspace.tar"]);
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("plans the same for the same seed, and says so without running", async () => {
    const plan = async (seed: string): Promise<unknown> => JSON.parse((await mw(["run", join(place, "tasks"), "--harness", "nop,oracle", "-n", "8", "--seed", seed, "--dry-run", "--json"], { env: { MW_HOME: join(place, "unused") } })).stdout);
    expect(await plan("7")).toEqual(await plan("7"));
    expect(await plan("7")).not.toEqual(await plan("8"));
    expect(readdirSync(place)).not.toContain("unused");
  });

  it("lets unknown paths and broken tasks fail alone, by name", async () => {
    mkdirSync(join(place, "broken"));
    writeFileSync(join(place, "broken", "task.toml"), "[environment\n");
    const result = await run(join(place, "tasks", "easy"), join(place, "broken"), join(place, "gone"), "--harness", "oracle", "--seed", "1");
    expect(result.outcomes).toEqual({ scored: 1, task_error: 1 });
    expect(result.refused.map(({ source }) => source)).toEqual([join(place, "gone")]);
    expect(result.stderr).toContain(join(place, "gone"));
    expect(result.stderr).toContain(join(place, "broken"));
    // An input that is not there is something asked for that did not hold.
    expect(result.code).toBe(1);
    const strict = await run(join(place, "tasks", "easy"), join(place, "broken"), "--harness", "oracle", "--strict");
    expect(strict.code).toBe(1);
    expect((await run(join(place, "tasks", "easy"), join(place, "broken"), "--harness", "oracle")).code).toBe(0);
  });

  it("takes any name of a task's directory", async () => {
    const directories = [".", "My Task (v2)_", "ünïcode", "a__b", "x".repeat(200), "-x", "a b", "a_b"];
    const root = join(place, "names");
    for (const name of directories) writeTask(join(root, name === "." ? "dot" : name));
    const { code, stdout } = await mw(["run", "dot/.", ...directories.filter((name) => name !== ".").map((name) => `./${name}`), "--harness", "nop", "--json", "--quiet"], { env, cwd: root });
    expect(code).toBe(0);
    const { rollouts, outcomes } = JSON.parse(stdout) as RunJson;
    expect(outcomes).toEqual({ scored: directories.length });
    expect(rollouts.map(({ task }) => task).sort()).toEqual(directories.map((name) => (name === "." ? "dot" : name)).sort());
  });

  it("scores what the policy does wrong, and never scores what it does not", async () => {
    writeTask(join(place, "no-reward"), { test: "true" });
    writeTask(join(place, "nan"), { test: "echo nan > /logs/verifier/reward.txt" });
    writeTask(join(place, "no-health"), { toml: '[environment.healthcheck]\ncommand = "false"\nretries = 1\ninterval_sec = 0.1\n' });
    const { rollouts } = await run(join(place, "no-reward"), join(place, "nan"), join(place, "no-health"), "--harness", "nop");
    expect(Object.fromEntries(rollouts.map(({ task, outcome, reward }) => [task, [outcome, reward]]))).toEqual({
      "no-reward": ["verifier_error", null],
      nan: ["verifier_error", null],
      "no-health": ["task_error", null],
    });
  });

  it("grades a task step by step, each on what the steps before it left, and stops where a step falls short", async () => {
    const { rollouts, run: id } = await run(stepped("both-steps", "mkdir -p /work && touch /work/one"), stepped("first-fails", "true"), "--harness", "oracle");
    expect(Object.fromEntries(rollouts.map(({ task, outcome, reward }) => [task, [outcome, reward]]))).toEqual({ "both-steps": ["scored", 0.75], "first-fails": ["scored", 0] });
    const both = rollouts.find(({ task }) => task === "both-steps")?.rollout ?? "";
    const { timeline } = JSON.parse((await mw(["show", both, "--json"], { env })).stdout) as { timeline: { event: string }[] };
    expect(timeline.map(({ event }) => event)).toEqual(["admitted", "leased", "prepared", "running", "ended", "collected", "verified", "running", "ended", "collected", "verified", "recorded"]);
    expect(readdirSync(join(home, "runs", id, "rollouts", both))).toEqual(expect.arrayContaining(["verdict-one.json", "verdict-two.json", "steps"]));
  });

  it("refuses a second controller of one data directory, naming the first", async () => {
    writeTask(join(place, "slow"), { solve: "sleep 300" });
    let interrupt: () => void = () => undefined;
    const running = agentAtWork();
    const first = mw(["run", join(place, "slow"), "--harness", "oracle", "--quiet"], { env, interrupt: (send) => (interrupt = send) });
    await running();
    const second = await mw(["run", join(place, "tasks", "easy"), "--harness", "nop"], { env });
    expect(second.code).toBe(3);
    expect(second.stderr).toContain(String(process.pid));
    interrupt();
    interrupt();
    expect((await first).code).toBe(130);
  });

  it("stops on the second interrupt with 130, and resumes", async () => {
    writeTask(join(place, "sleepy"), { solve: "sleep 5; mkdir -p /work; echo hello > /work/out" });
    const running = agentAtWork();
    const { code, stdout } = await mw(["run", join(place, "sleepy"), "--harness", "oracle", "-n", "4", "--concurrency", "2", "--json", "--quiet"], {
      env,
      interrupt: (send) => void running().then(() => [send(), send()]),
    });
    expect(code).toBe(130);
    const stopped = JSON.parse(stdout) as RunJson;
    expect(stopped.rollouts.filter(({ outcome }) => outcome === "scored").length).toBeLessThan(4);
    expect(await leftoversAfter(home)).toEqual([]);
    const resumed = await mw(["resume", stopped.run, "--json", "--quiet"], { env });
    expect(resumed.code).toBe(0);
    expect((JSON.parse(resumed.stdout) as RunJson).outcomes).toEqual({ scored: 4 });
  });

  it("has left nothing on the host", async () => {
    expect(await leftoversAfter(home)).toEqual([]);
  });
});

/** Called before a run is started: a function that waits until an agent of that run is at work. */
function agentAtWork(): () => Promise<void> {
  const logs = (): readonly string[] => readdirSync(join(home, "runs")).filter((name) => name.startsWith("run")).map((name) => join(home, "runs", name, "events.jsonl"));
  const before = new Set(logs());
  const works = (path: string): boolean => existsSync(path) && readFileSync(path, "utf8").includes('"rollout_running"');
  return () => expect.poll(() => logs().some((path) => !before.has(path) && works(path)), { timeout: 120_000, interval: 50 }).toBe(true);
}

/** A task in two steps; the second builds on the first, whose reference solution is given. */
function stepped(name: string, first: string): string {
  const directory = writeTask(join(place, name), { toml: '[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"\n' });
  rmSync(join(directory, "instruction.md"));
  for (const [step, solve, test] of [
    ["one", first, 'test -e /work/one && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt'],
    ["two", "cp /work/one /work/two", 'test -e /work/one && test -e /work/two && echo 0.5 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt'],
  ] as const) {
    for (const folder of ["tests", "solution"]) mkdirSync(join(directory, "steps", step, folder), { recursive: true });
    writeFileSync(join(directory, "steps", step, "instruction.md"), `Do ${step}.\n`);
    writeFileSync(join(directory, "steps", step, "solution", "solve.sh"), `#!/bin/sh\n${solve}\n`);
    writeFileSync(join(directory, "steps", step, "tests", "test.sh"), `#!/bin/sh\n${test}\n`);
  }
  return directory;
}

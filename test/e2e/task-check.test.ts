/** `mw task check` as its users run it: JSON shape and exit codes. */
import { readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CERTIFICATE_FILE, certificateSchema } from "../../src/task/check/certificate.ts";
import { mw as runMw, type CliResult } from "../support/cli.ts";
import { MINIMAL, temporaryDirectory, writeTask } from "../support/task-fixture.ts";

let root = "";
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

const TOML = '[environment]\ndocker_image = "host"\nworkdir = "/app"\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\n';
const GOOD = {
  ...MINIMAL,
  "task.toml": TOML,
  "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/answer)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n',
  "solution/solve.sh": "echo 42 > /app/answer\n",
};

const mw = (...inputs: string[]): Promise<CliResult> => runMw(inputs, { cwd: root, env: { MW_HOME: join(root, "home") } });

describe("mw task check", () => {
  test("a sound task passes: the reference gives 1 in each mode, nothing gives 0", async () => {
    await writeTask(root, "good", {}, GOOD);
    const { code, stdout } = await mw("task", "check", "good", "--json", "--quiet");
    const report = JSON.parse(stdout) as { tasks: { runs: unknown[] }[] };
    expect(code).toBe(0);
    expect(report).toMatchObject({ passed: true, tasks: [{ task: "good", passed: true, failures: [], lint: [], differences: [] }] });
    expect(report.tasks[0]?.runs).toMatchObject([
      { agent: "nop", mode: "fresh", outcome: "scored", reward: 0 },
      { agent: "oracle", mode: "fresh", outcome: "scored", reward: 1 },
      { agent: "oracle", mode: "shared", outcome: "scored", reward: 1 },
    ]);
  });

  test("a certificate says what every gate said, for the content that was checked, and is no part of it", async () => {
    await writeTask(root, "certified", {}, GOOD);
    await writeTask(root, "idle", { "solution/solve.sh": "true\n" }, GOOD);
    const { code, stdout } = await mw("task", "check", "certified", "idle", "--certify", "--json", "--quiet");
    expect(code).toBe(1);
    const { tasks } = JSON.parse(stdout) as { tasks: { digest: string; failures: string[] }[] };
    const [certified, idle] = ["certified", "idle"].map((name) => certificateSchema.parse(JSON.parse(readFileSync(join(root, name, CERTIFICATE_FILE), "utf8"))));
    expect(certified).toMatchObject({ task: "certified", passed: true, failures: [], digest: tasks[0]?.digest, lint: { errors: 0, warnings: 0 } });
    expect(certified?.gates.map(({ agent, mode, reward }) => [agent, mode, reward])).toEqual([["nop", "fresh", 0], ["oracle", "fresh", 1], ["oracle", "shared", 1]]);
    expect(idle).toMatchObject({ passed: false, failures: tasks[1]?.failures });
    // It is no part of the content that it speaks of.
    const again = await mw("task", "check", "certified", "--lint", "--json");
    expect((JSON.parse(again.stdout) as { tasks: { digest: string }[] }).tasks[0]?.digest).toBe(certified?.digest);
    for (const other of [["--lint"], ["--image", "host"], ["--network", "none"]]) expect(await mw("task", "check", "certified", "--certify", ...other)).toMatchObject({ code: 2, stderr: expect.stringContaining("as it is") });
  });

  test("gates that fail are named, exit code 1", async () => {
    await writeTask(root, "free", { "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n" }, GOOD);
    await writeTask(root, "unsolved", { "solution/solve.sh": "true\n" }, GOOD);
    await writeTask(root, "silent", { "tests/test.sh": "[ -e /app/answer ] && echo 1 > /logs/verifier/reward.txt\n" }, GOOD);
    await writeTask(root, "restored", { "solution/solve.sh": "printf '#!/bin/sh\\necho 42\\n' > /tmp/x; cp --remove-destination /tmp/x /usr/bin/ldd; chmod 755 /usr/bin/ldd; echo 42 > /app/answer\n", "tests/test.sh": '#!/bin/bash\n[ "$(/usr/bin/ldd)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n' }, GOOD);
    const { code, stdout } = await mw("task", "check", "free", "unsolved", "silent", "restored", "--quiet");
    expect(code).toBe(1);
    expect(stdout).toMatch(/FAIL free[\s\S]*doing nothing, verified fresh, gives reward 1, not 0/);
    expect(stdout).toMatch(/FAIL unsolved[\s\S]*the reference, verified fresh, gives reward 0, not 1/);
    expect(stdout).toMatch(/FAIL silent[\s\S]*doing nothing, verified fresh: verifier_error/);
    expect(stdout).toMatch(/FAIL restored[\s\S]*differs: oracle: fresh gives 0, shared gives 1[\s\S]*\/usr\/bin\/ldd[\s\S]*agent_owns/);
  });

  test("lint alone makes no machines; errors fail, warnings do not", async () => {
    await writeTask(root, "leaky", { "environment/Dockerfile": "FROM debian:12\nCOPY tests /tests\n" }, GOOD);
    await writeTask(root, "warned", { "task.toml": `${TOML}timeout_secs = 1\n` }, GOOD);
    expect(await mw("task", "check", "leaky", "--lint")).toMatchObject({ code: 1, stdout: expect.stringContaining("copies tests") });
    expect(await mw("task", "check", "warned", "--lint")).toMatchObject({ code: 0, stdout: expect.stringContaining("did you mean timeout_sec?") });
  });

  test("what is no task, exit code 2, with where and how", async () => {
    await writeTask(root, "broken", { "task.toml": "[environment]\ncpus = \n" }, GOOD);
    expect(await mw("task", "check", "nowhere")).toMatchObject({ code: 2, stdout: expect.stringContaining("There is nothing at") });
    expect(await mw("task", "check", "broken")).toMatchObject({ code: 2, stdout: expect.stringMatching(/broken\/task\.toml:2:/) });
    expect(await mw("task", "check")).toMatchObject({ code: 2 });
    expect(await mw("task", "chekc", "good")).toMatchObject({ code: 2, stderr: expect.stringContaining("check") });
  });
});

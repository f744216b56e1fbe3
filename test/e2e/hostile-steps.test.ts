/** Agents that do a task's first step and break their machine for the next: there is no way to a missing reward. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot } from "../support/rootfs.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-hostile-steps-"));
const home = join(place, "home");
const image = makeTestRoot(place);
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** Step one wants /work/one; step two brings a file, a set-up script and a health check, and gives half a point for what it finds. */
function stepped(name: string, { shared = false, setup = "test -e /usr/bin || exit 0\n" } = {}): string {
  const mode = shared ? '[steps.verifier]\nenvironment_mode = "shared"\n' : "";
  const directory = writeTask(join(place, name), {
    environment: `docker_image = ${JSON.stringify(`dir:${image.directory}`)}\nnetwork_mode = "no-network"\nworkdir = "/work"`,
    toml: `[[steps]]\nname = "one"\nmin_reward = 0.5\n${mode}[[steps]]\nname = "two"\n${mode}[steps.agent]\nuser = "agent"\n[steps.healthcheck]\ncommand = "test -d /work"\ninterval_sec = 0.1\ntimeout_sec = 30\nretries = 2\n`,
  });
  rmSync(join(directory, "instruction.md"));
  for (const [step, test] of [["one", "test -e /work/one && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"], ["two", "test -e /work/two && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"]] as const) {
    for (const folder of ["tests", "solution"]) mkdirSync(join(directory, "steps", step, folder), { recursive: true });
    writeFileSync(join(directory, "steps", step, "instruction.md"), `Do ${step}.\n`);
    writeFileSync(join(directory, "steps", step, "solution", "solve.sh"), `#!/bin/sh\ntouch /work/${step}\n`);
    writeFileSync(join(directory, "steps", step, "tests", "test.sh"), `#!/bin/sh\n${test}\n`);
  }
  mkdirSync(join(directory, "steps/two/workdir"));
  writeFileSync(join(directory, "steps/two/workdir/data"), "new\n");
  writeFileSync(join(directory, "steps/two/workdir/setup.sh"), setup);
  return directory;
}

const WORK = "mkdir -p /work; touch /work/one";
const BREAKS: Readonly<Record<string, string>> = {
  "a file in place of what the step brings": "mkdir -p /work/data/full; touch /work/data/full/x; mkdir /work/setup.sh",
  "its directory a link to nowhere": "cd /; mv /work /elsewhere; ln -s /elsewhere/missing /work; mkdir -p /elsewhere/missing; touch /elsewhere/missing/one; rm -r /elsewhere/missing/..data 2>/dev/null; true",
  "no shell to set it up with": "rm -f /bin/sh /bin/bash /usr/bin/sh",
  "no user to work as": "rm -f /etc/passwd /etc/group",
};

async function run(task: string, lines: string): Promise<{ outcome: string; reward: number | null; stopReason: string | null; tries: number; error: unknown }[]> {
  const script = `${task}.sh`;
  writeFileSync(script, `${lines}\n`);
  const { stdout, code, stderr } = await mw(["run", task, "--harness", "script", "--script", script, "--seed", "4", "--json", "--quiet"], { env: { MW_HOME: home } });
  expect(code, stderr).toBe(0);
  return (JSON.parse(stdout) as { rollouts: { outcome: string; reward: number | null; stopReason: string | null; tries: number; error: unknown }[] }).rollouts;
}

describe("an agent that breaks its machine between two steps", () => {
  it.each(Object.entries(BREAKS).flatMap(([what, line]) => [false, true].map((shared) => [what, line, shared] as const)))("%s: graded (%#)", async (what, line, shared) => {
    const rollouts = await run(stepped(`${what.replaceAll(/\W/g, "-")}-${shared}`, { shared }), `${WORK}\n${line}`);
    expect(rollouts).toMatchObject([{ outcome: "scored", tries: 1, error: null }]);
    expect(rollouts[0]?.reward).toBeLessThanOrEqual(0.5);
    expect(await leftoversAfter(home)).toEqual([]);
  }, 180_000);

  it("is another than a step that cannot be set up anywhere, which is the task's failure", async () => {
    expect(await run(stepped("bad-setup", { setup: "exit 3\n" }), WORK)).toMatchObject([{ outcome: "task_error", reward: null }]);
  }, 180_000);
});

/** What a policy, a verifier or a model server says reaches a person's terminal as text, never as commands to it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-terminal-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** Sets a title, clears the screen, turns the writing round, goes up a line: with C0, C1 and Unicode. */
const EVIL = "\u001b]0;owned\u0007\u001b[2J\u009b2J\u202egnp.exe\u200f\r\bA\u0000";
/** All that a terminal may be sent besides text: line ends and tabs. */
// oxlint-disable-next-line no-control-regex -- these are what is looked for
const COMMANDS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

it("shows nothing of a rollout to a terminal that it would obey", async () => {
  const test = `printf '{"reward": 1, "\\\\u001b[2J\\\\u009b2J": 1, "\\\\u202ex": 0.5}' > /logs/verifier/reward.json; printf '\\033[2J\\302\\2332J\\n'`;
  const task = writeTask(join(place, "task"), { name: "test/terminal", test });
  const replies = [
    { content: EVIL, reasoning: EVIL, calls: [{ command: `printf '\\033[2J\\302\\2332J\\rx'; echo '${EVIL.replaceAll("\u0000", "")}'` }, { name: `tool${EVIL}`, command: "x" }] },
    { content: EVIL },
  ];
  const engine = await startEngine(replies, { flavour: "sglang" });
  engine.version = `v${EVIL}\nx`;
  const env = { MW_HOME: join(place, "home"), NO_COLOR: "1" };
  try {
    const run = await mw(["run", task, "--harness", "bash", "--upstream", `sglang=${engine.url}`, "--model", "m"], { env });
    expect(run.code, run.stderr).toBe(0);
    const id = /run[0-9a-z]{20,}/.exec(run.stdout + run.stderr)?.[0] ?? "";
    const { rollouts } = JSON.parse((await mw(["show", id, "--json", "--all"], { env })).stdout) as { rollouts: { rollout: string; reward: number }[] };
    expect(rollouts.map(({ reward }) => reward)).toEqual([1]);
    const shown = [run];
    for (const args of [["show", id, "--all"], ["show", rollouts[0]?.rollout ?? "", "--all"], ["show", rollouts[0]?.rollout ?? "", "--tokens", "--all"]]) shown.push(await mw(args, { env }));
    for (const { stdout, stderr } of shown) expect(COMMANDS.exec(stdout + stderr)).toBeNull();
    // It is there, to be read.
    expect(shown.map(({ stdout }) => stdout).join("")).toContain("\\x1b[2J\\x9b2J\\u202egnp.exe");
    expect(shown.at(-1)?.stdout).toContain("v\\x1b]0;owned\\x07");
  } finally {
    await engine.close();
  }
});

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { readAll } from "../support/gateway.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-last-call-"));
const home = join(place, "home");
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** Two turns; the process is over the instant it sees the terminal event of the second. */
const PROGRAM = `
import { request } from "node:http";
const turn = (messages, last) => new Promise((resolve) => {
  const { hostname, port, pathname } = new URL(process.env.OPENAI_BASE_URL + "/chat/completions");
  const asked = request({ hostname, port, path: pathname, method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY } }, (response) => {
    let seen = "";
    response.on("data", (chunk) => {
      seen += chunk;
      if (last && seen.includes("finish_reason\\":\\"stop")) process.reallyExit(0);
    });
    response.on("end", () => resolve());
  });
  asked.end(JSON.stringify({ model: "m", stream: true, messages }));
});
await turn([{ role: "user", content: "one" }], false);
await turn([{ role: "user", content: "one" }, { role: "assistant", content: "first" }, { role: "user", content: "two" }], true);
`;

describe("a hundred agents that end on the terminal event", () => {
  it("have their last call in the log when they are graded, each of them", async () => {
    const task = writeTask(join(place, "task"));
    const engine = await startEngine(({ turn }) => ({ content: turn === 0 ? "first" : "second and last" }), { forgetful: true });
    try {
      const command = `${process.execPath} --input-type=module -e '${PROGRAM}'`;
      const args = ["run", task, "-n", "100", "--concurrency", "4", "--harness", "generic", "--harness-command", command, "--upstream", `vllm=${engine.url}`, "--model", "m", "--require-tokens", "--json", "--quiet"];
      const { stdout, stderr, code } = await mw(args, { env: { MW_HOME: home } });
      expect(code, stderr).toBe(0);
      const { run, rollouts, outcomes } = JSON.parse(stdout) as { run: string; rollouts: { rollout: string }[]; outcomes: unknown };
      expect(outcomes).toEqual({ scored: 100 });
      for (const { rollout } of rollouts) {
        const calls = await readAll(join(home, "runs", run, "rollouts", rollout, "calls.jsonl"));
        expect(calls.map(({ status, answer, tokens }) => [status, answer?.blocks.map((block) => (block.type === "text" ? block.text : "")), (tokens?.completionIds.length ?? 0) > 0])).toEqual([
          ["complete", ["first"], true],
          ["complete", ["second and last"], true],
        ]);
      }
    } finally {
      await engine.close();
    }
    expect(await leftoversAfter(home)).toEqual([]);
  });
});

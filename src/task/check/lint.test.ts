import { rm } from "node:fs/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryDirectory, writeTask } from "../../../test/support/task-fixture.ts";
import { loadTask } from "../load-task.ts";
import { lintTask } from "./lint.ts";

let root = "";
let next = 0;
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

const GOOD = { "task.toml": '[environment]\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\n', "environment/Dockerfile": "FROM debian:12\nCOPY app /app\n" };

async function rules(files: Parameters<typeof writeTask>[2]): Promise<string[]> {
  const task = await loadTask(await writeTask(root, `t${next++}`, { ...GOOD, ...files }));
  return (await lintTask(task)).map(({ level, rule }) => `${level} ${rule}`);
}

test("a clean task has nothing to say", async () => {
  expect(await rules({})).toEqual([]);
});

test.each<[Parameters<typeof writeTask>[2], string[]]>([
  [{ "instruction.md": " \n" }, ["error instruction-empty"]],
  [{ "instruction.md": "Write 1 to /logs/verifier/reward.txt" }, ["error instruction-leak"]],
  [{ "instruction.md": "See /tests/test.py" }, ["warning instruction-leak"]],
  [{ "task.toml": `${GOOD["task.toml"]}[[metadata.manyworlds.services]]\ncommand = "/app/s"\n` }, ["warning service-root"]],
  [{ "task.toml": `${GOOD["task.toml"]}[[metadata.manyworlds.services]]\ncommand = "/app/s"\nuser = "kv"\n` }, []],
  [{ "environment/Dockerfile": "FROM debian:12\nCOPY tests/ /tests\n" }, ["error image-leak"]],
  [{ "environment/Dockerfile": "FROM debian:12\nCOPY \\\n  solution /x\n" }, ["error image-leak"]],
  [{ "environment/Dockerfile": "FROM debian\n" }, ["warning image-unpinned"]],
  [{ "environment/Dockerfile": "FROM debian:latest\n" }, ["warning image-unpinned"]],
  [{ "environment/Dockerfile": "FROM debian:12 AS base\nFROM base\n" }, []],
  [{ "environment/Dockerfile": "FROM debian:12\nRUN pip install requests\n" }, ["warning image-unpinned"]],
  [{ "environment/Dockerfile": "FROM debian:12\nRUN pip install requests==2.0 -r requirements.txt\n" }, []],
  [{ "tests/test.sh": "pip install pytest\necho 1 > /logs/verifier/reward.txt\n" }, ["warning tests-unpinned", "warning tests-network"]],
  [{ "tests/test.sh": "exit 0\n" }, ["warning tests-reward"]],
  [{ "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\r\n" }, ["warning tests-crlf"]],
  [{ "solution/solve.sh": null }, ["warning no-reference"]],
  [{ "solution/solve.sh": "echo 1 > /logs/verifier/reward.txt\n" }, ["error reference-forges"]],
  [{ "solution/solve.sh": "cp /tests/expected /app\n" }, ["error reference-reads-tests"]],
  [{ "environment/solution/x": "1" }, ["warning image-leak"]],
  [{ "task.toml": "" }, ["warning no-agent-timeout", "warning network-open"]],
  [{ "task.toml": `${GOOD["task.toml"]}typo = 1\n` }, ["warning config"]],
])("%j", async (files, expected) => {
  expect(await rules(files)).toEqual(expected);
});

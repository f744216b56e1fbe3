import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { writeTask } from "../support/tasks.ts";

/** A place of its own for all cases: a good task, bad ones, and a data directory that must stay empty. */
const place = mkdtempSync(join(tmpdir(), "mw-bad-"));
const home = join(place, "home");
const good = join(place, "good");

beforeAll(() => {
  writeTask(good);
  mkdirSync(join(place, "empty"));
  mkdirSync(join(place, "no-toml"));
  writeFileSync(join(place, "no-toml", "instruction.md"), "do it");
  writeFileSync(join(place, "script"), "true\n");
  writeFileSync(join(place, "nul-script"), "tr\0ue\n");
  writeFileSync(join(place, "empty-key"), "\n");
  writeFileSync(join(place, "two-line-key"), "one\ntwo\n");
  writeFileSync(join(place, "notes.txt"), "nothing\n");
  for (const [name, toml] of Object.entries({
    "broken-toml": "[environment\n",
    "wrong-type": '[environment]\ndocker_image = "host"\ncpus = "many"\n',
    "no-image": "[environment]\n",
    "unknown-mode": '[environment]\ndocker_image = "host"\nnetwork_mode = "sometimes"\n',
  })) {
    writeTask(join(place, name));
    writeFileSync(join(place, name, "task.toml"), toml);
  }
  writeTask(join(place, "missing-variable"), { toml: '[environment.env]\nTOKEN = "${MW_TEST_IS_NOT_SET}"' });
  writeTask(join(place, "compose"));
  writeFileSync(join(place, "compose", "environment", "docker-compose.yaml"), "services: {}\n");
  mkdirSync(join(place, "bad-config"));
  writeFileSync(join(place, "bad-config", "manyworlds.toml"), "concurency = 3\n");
  mkdirSync(join(place, "bad-value"));
  writeFileSync(join(place, "bad-value", "manyworlds.toml"), '[run]\nconcurrency = "lots"\n');
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

const NOP = ["--harness", "nop"];
const BASH = ["--harness", "bash", "--model", "m"];

interface Case {
  readonly name: string;
  readonly args: readonly string[];
  readonly code?: 2 | 3;
  /** What the message must name. */
  readonly says: readonly (string | RegExp)[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

const CASES: readonly Case[] = [
  { name: "unknown command", args: ["rnu"], says: ["rnu", "run"] },
  { name: "unknown flag", args: ["run", good, ...NOP, "--concurency", "2"], says: ["--concurency", "--concurrency"] },
  { name: "no task", args: ["run", ...NOP], says: ["task"] },
  { name: "empty task name", args: ["run", "", ...NOP], says: ["empty"] },
  { name: "attempts 0", args: ["run", good, ...NOP, "-n", "0"], says: ["--attempts", "from 1", '"0"'] },
  { name: "attempts negative", args: ["run", good, ...NOP, "--attempts=-3"], says: ["--attempts", '"-3"'] },
  { name: "attempts fraction", args: ["run", good, ...NOP, "-n", "1.5"], says: ["--attempts", "whole number"] },
  { name: "attempts text", args: ["run", good, ...NOP, "-n", "many"], says: ["--attempts", "many"] },
  { name: "attempts beyond the limit", args: ["run", good, ...NOP, "-n", "1000000000"], says: ["--attempts"] },
  { name: "attempts without a value", args: ["run", good, ...NOP, "-n"], says: ["attempts"] },
  { name: "concurrency 0", args: ["run", good, ...NOP, "--concurrency", "0"], says: ["--concurrency"] },
  { name: "temperature below 0", args: ["run", good, ...NOP, "--temperature=-1"], says: ["--temperature"] },
  { name: "temperature NaN", args: ["run", good, ...NOP, "--temperature", "NaN"], says: ["--temperature", "NaN"] },
  { name: "top-p above 1", args: ["run", good, ...NOP, "--top-p", "1.5"], says: ["--top-p"] },
  { name: "max-tokens 0", args: ["run", good, ...NOP, "--max-tokens", "0"], says: ["--max-tokens"] },
  { name: "network that is none of ours", args: ["run", good, ...NOP, "--network", "bridge"], says: ["--network", "none", "public"] },
  { name: "timeout multiplier 0", args: ["run", good, ...NOP, "--timeout-multiplier", "0"], says: ["--timeout-multiplier"] },
  { name: "durability that is none of ours", args: ["run", good, ...NOP, "--durability", "maybe"], says: ["--durability", "process", "power"] },
  { name: "seed empty", args: ["run", good, ...NOP, "--seed", ""], says: ["--seed"] },
  { name: "unknown harness", args: ["run", good, "--harness", "orcale"], says: ["orcale", "oracle"] },
  { name: "harness list with a hole", args: ["run", good, "--harness", "nop,,oracle"], says: ["--harness", "empty"] },
  { name: "harness named twice", args: ["run", good, "--harness", "nop,nop"], says: ["nop", "twice"] },
  { name: "script harness without a script", args: ["run", good, "--harness", "script"], says: ["--script"] },
  { name: "script without its harness", args: ["run", good, ...NOP, "--script", join(place, "script")], says: ["--script"] },
  { name: "script that is not there", args: ["run", good, "--harness", "script", "--script", join(place, "gone")], says: [join(place, "gone")] },
  { name: "script that is a directory", args: ["run", good, "--harness", "script", "--script", place], says: [place] },
  { name: "script with a NUL byte", args: ["run", good, "--harness", "script", "--script", join(place, "nul-script")], says: ["NUL"] },
  { name: "generic harness without a command", args: ["run", good, "--harness", "generic"], says: ["--harness-command"] },
  { name: "command without its harness", args: ["run", good, ...NOP, "--harness-command", "true"], says: ["--harness-command", "generic"] },
  { name: "user of an agent CLI without one", args: ["run", good, ...NOP, "--harness-user", "agent"], says: ["--harness-user", "mw harness ls"] },
  { name: "machines that outlive what nobody can go on with", args: ["run", good, "--harness", "oracle", "--take-over", "60"], says: ["--take-over", "oracle", "mw harness ls"] },
  { name: "machines that outlive a server's run", args: ["run", good, "--harness", "pi", "--take-over", "60", "--server", "http://127.0.0.1:1"], says: ["--take-over", "server"] },
  { name: "machines of another backend that outlive their controller", args: ["run", good, "--harness", "pi", "--take-over", "60", "--backend", "oci"], says: ["--take-over", "--backend", "native"] },
  { name: "agent CLI without a model", args: ["run", good, "--harness", "pi"], says: ["pi", "--upstream", "--model"] },
  { name: "baking what has no descriptor", args: ["harness", "bake", "piy"], says: ["piy", "claude-code"] },
  { name: "baking nothing", args: ["harness", "bake"], says: ["--all"] },
  { name: "baking all and one", args: ["harness", "bake", "--all", "pi"], says: ["--all"] },
  { name: "testing what has no descriptor", args: ["harness", "test", "bash"], says: ["bash", "claude-code"] },
  { name: "model harness without a model", args: ["run", good, "--harness", "bash"], says: ["--upstream", "--model"] },
  { name: "upstream where nobody listens", args: ["run", good, "--harness", "bash", "--upstream", "http://127.0.0.1:1/v1", "--model", "m"], code: 3, says: ["http://127.0.0.1:1/v1", "ECONNREFUSED", "start the server"] },
  { name: "upstream without a model name", args: ["run", good, "--harness", "bash", "--upstream", "http://127.0.0.1:1/v1"], says: ["--model"] },
  { name: "upstream without a scheme", args: ["run", good, ...BASH, "--upstream", "127.0.0.1:8000/v1"], says: ["--upstream", "scheme", "http://"] },
  { name: "upstream with another scheme", args: ["run", good, ...BASH, "--upstream", "ftp://host/v1"], says: ["ftp:"] },
  { name: "upstream that is no URL", args: ["run", good, ...BASH, "--upstream", "http://"], says: ["--upstream"] },
  { name: "upstream that is an endpoint", args: ["run", good, ...BASH, "--upstream", "http://h/v1/chat/completions"], says: ["/v1"] },
  { name: "upstream with a key in it", args: ["run", good, ...BASH, "--upstream", "http://user:sesame@h/v1"], says: ["credentials", "--api-key-file"] },
  { name: "upstream from the environment", args: ["run", good, ...BASH], env: { MW_UPSTREAM: "nowhere" }, says: ["MW_UPSTREAM", "nowhere"] },
  { name: "key file that is not there", args: ["run", good, ...BASH, "--upstream", "http://h/v1", "--api-key-file", join(place, "gone")], says: [join(place, "gone")] },
  { name: "empty key file", args: ["run", good, ...BASH, "--upstream", "http://h/v1", "--api-key-file", join(place, "empty-key")], says: ["empty"] },
  { name: "key file with two lines", args: ["run", good, ...BASH, "--upstream", "http://h/v1", "--api-key-file", join(place, "two-line-key")], says: ["two-line-key"] },
  { name: "path that is not there", args: ["run", join(place, "goood"), ...NOP], says: ["goood", join(place, "good")] },
  { name: "directory without tasks", args: ["run", join(place, "empty"), ...NOP], says: ["empty", "task.toml"] },
  { name: "file that names no tasks", args: ["run", join(place, "notes.txt"), ...NOP], says: ["notes.txt"] },
  { name: "task without task.toml", args: ["run", join(place, "no-toml"), ...NOP], says: ["no-toml", "task.toml"] },
  { name: "task.toml that is no TOML", args: ["run", join(place, "broken-toml"), ...NOP], says: ["broken-toml", "task.toml"] },
  { name: "field of the wrong type", args: ["run", join(place, "wrong-type"), ...NOP], says: ["wrong-type", "cpus"] },
  { name: "task without an environment", args: ["run", join(place, "no-image"), ...NOP], says: ["no-image", "docker_image"] },
  { name: "unknown network mode", args: ["run", join(place, "unknown-mode"), ...NOP], says: ["unknown-mode", "network_mode"] },
  { name: "several bad inputs", args: ["run", join(place, "gone"), join(place, "broken-toml"), ...NOP], says: ["gone", "broken-toml", "none of the 2"] },
  { name: "dry run of a bad input", args: ["run", join(place, "gone"), ...NOP, "--dry-run"], says: ["gone"] },
  { name: "configuration with an unknown setting", args: ["run", good, ...NOP], cwd: join(place, "bad-config"), says: ["manyworlds.toml", "concurency"] },
  { name: "configuration with a bad value", args: ["run", good, ...NOP], cwd: join(place, "bad-value"), says: ["manyworlds.toml", "run.concurrency", "lots"] },
  { name: "variable with a bad value", args: ["run", good, ...NOP], env: { MW_CONCURRENCY: "lots" }, says: ["MW_CONCURRENCY", "lots"] },
  { name: "run that does not exist", args: ["show", "run00000000000000000000"], says: ["run00000000000000000000"] },
  { name: "rollout that does not exist", args: ["show", "ro00000000000000000000"], says: ["ro00000000000000000000"] },
  { name: "resume of nothing", args: ["resume", "latest"], says: ["latest"] },
  { name: "name of nothing", args: ["show", "first-try"], says: ["no run, rollout or session", "first-try"] },
  { name: "export in an unknown format", args: ["export", "latest", "--format", "csv"], says: ["--format", "jsonl", "atif"] },
  { name: "path out of the runs directory as a run", args: ["show", "../../etc"], says: ["../../etc"] },
];

describe("bad input is refused with what, where and how to fix it, and leaves nothing behind", () => {
  it.each(CASES)("$name", async ({ args, code, says, env, cwd }) => {
    const result = await mw(args, { env: { MW_HOME: home, ...env }, cwd: cwd ?? place });
    expect(result.stderr).toMatch(/^error: /m);
    expect(result.stderr).toMatch(/^ +fix: \S/m);
    for (const text of says) expect(result.stderr).toMatch(typeof text === "string" ? new RegExp(text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")) : text);
    expect(result.stderr).not.toMatch(/\bat .*\.ts:\d+|sesame/);
    expect(result.stdout).toBe("");
    expect(result.code).toBe(code ?? 2);
    expect(existsSync(join(home, "runs")) ? readdirSync(join(home, "runs")) : []).toEqual([]);
  });

  it("says the same as JSON: nothing on stdout, the error on stderr", async () => {
    const result = await mw(["run", join(place, "gone"), ...NOP, "--json"], { env: { MW_HOME: home } });
    expect(result).toMatchObject({ code: 2, stdout: "" });
  });
});

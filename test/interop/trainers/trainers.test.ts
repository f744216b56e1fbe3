/** The trainers' own classes, as far as they are importable without a GPU, on what the adaptors make of groups, and on real rollouts of `mw serve`. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startEngine, type Engine } from "../../support/engine/index.ts";
import { leftoversAfter } from "../../support/leftovers.ts";
import { listedPackages, python, pythonEnvironment, torchPython } from "../../support/python.ts";
import { serve, type Served } from "../../support/serve.ts";
import { writeTask } from "../../support/tasks.ts";

const base = mkdtempSync(join(tmpdir(), "mw-trainers-"));
const home = join(base, "home");
const zmq = `ipc://${join(base, "zmq")}`;
const KEY = "key-of-trainers";
let program = "";
let env: NodeJS.ProcessEnv = {};
let server: Served;
let engine: Engine;
let task = "";
let broken = "";
beforeAll(async () => {
  program = await torchPython();
  const packages = await listedPackages("requirements-trainers.txt");
  task = writeTask(join(base, "task"), { name: "test/hello" });
  broken = writeTask(join(base, "broken"), { name: "test/broken", test: "exit 3" });
  engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }], { flavour: "vllm" });
  server = await serve({ home, key: KEY, args: ["--zmq", zmq] });
  // One of the packages lies in a directory of its wheel.
  env = { ...pythonEnvironment([packages, join(packages, "skyrl-gym")]), MW_URL: server.url, MW_API_KEY: KEY, RAY_DISABLE_DOCKER_CPU_WARNING: "1" };
  // Each of these programs imports hundreds of megabytes of source: compiled once, it is kept with the packages.
  delete env["PYTHONDONTWRITEBYTECODE"];
  env["PYTHONPYCACHEPREFIX"] = join(packages, ".pyc");
}, 1_200_000);
afterAll(async () => {
  await server.stop();
  await engine.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

async function runs(name: string, args: readonly string[], says: string): Promise<void> {
  const end = await python([join(import.meta.dirname, name), ...args], { program, env });
  expect(end.code, end.stderr.slice(-4000)).toBe(0);
  expect(end.stdout).toContain(says);
}

describe("classes of trainers", () => {
  // One process for several trainers: what takes time is what they import.
  it("take groups with every kind of member, and train on none that is missing: verl, SkyRL, AReaL", async () => runs("classes.py", ["verl", "skyrl", "areal"], "areal: in order"));

  it("get real rollouts: verl, SkyRL, AReaL, slime, miles", async () => runs("served.py", [engine.root, task, broken, base, "verl", "skyrl", "areal", "slime", "miles"], "miles: served"));

  it("verifiers' client gets episodes from the environment server", async () => runs("environment.py", [zmq, engine.root, task, join(base, "broken"), base], ""));

  it("are set up as the pages say", async () => runs("examples.py", [join(import.meta.dirname, "../../../docs/trainers"), task], "examples: in order"));

  it("NeMo Gym reads what POST /run answers", async () => {
    const files = await Promise.all(
      [task, broken].map(async (of, index) => {
        const answer = await fetch(`${server.url}/run`, {
          method: "POST",
          headers: { "content-type": "application/json", "x-api-key": KEY },
          body: JSON.stringify({ responses_create_params: { input: [] }, task: of, policy: { url: engine.root, model: "test-model", kind: "vllm" } }),
        });
        const file = join(base, `answer-${index}.json`);
        writeFileSync(file, await answer.text());
        return file;
      }),
    );
    await runs("nemo.py", files, "nemo: in order");
  });
});

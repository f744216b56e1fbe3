/** The Python package as its users and its authors see it: it installs, imports without anything else, type-checks strictly, and its pages hold code that is code. */
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, expect, it } from "vitest";
import { PACKAGE, python, pythonEnvironment, pythonPath } from "../../support/python.ts";

const run = promisify(execFile);
const home = mkdtempSync(join(tmpdir(), "mw-python-checks-"));
afterAll(() => rmSync(home, { recursive: true, force: true }));

it("installs from the repository, alone, and imports its core with the standard library", async () => {
  const environment = join(home, "env");
  await run("python3", ["-m", "venv", environment]);
  await run(join(environment, "bin/pip"), ["install", "--quiet", "--disable-pip-version-check", PACKAGE], { maxBuffer: 1 << 26 });
  const script = "import manyworlds_rl, manyworlds_rl.local, manyworlds_rl.driven, manyworlds_rl.metrics, manyworlds_rl.trl, importlib.resources as r; print(r.files('manyworlds_rl').joinpath('py.typed').is_file())";
  const { stdout } = await run(join(environment, "bin/python"), ["-c", script], { cwd: home });
  expect(stdout.trim()).toBe("True");
}, 600_000);

it("passes mypy --strict and ruff", async () => {
  const packages = await pythonPath(["mypy==2.4.1", "ruff==0.17.6", "numpy==2.4.6"]);
  const env = pythonEnvironment([packages]);
  const types = await python(["-m", "mypy", "--cache-dir", join(home, "mypy"), "src"], { env, cwd: PACKAGE });
  expect(types.stdout).toContain("Success");
  const lint = await python(["-m", "ruff", "check", "--no-cache", "src", "tests", "examples"], { env, cwd: PACKAGE });
  expect(lint.stdout).toContain("All checks passed");
  const form = await python(["-m", "ruff", "format", "--no-cache", "--check", "src", "tests", "examples"], { env, cwd: PACKAGE });
  expect(form.code, form.stdout).toBe(0);
}, 600_000);

it("writes metrics that TensorBoard reads, and W&B's offline files", async () => {
  const packages = await pythonPath(["tensorboard==2.21.0", "wandb==0.31.0", "setuptools==77.0.3"]);
  const script = `
import sys, glob
sys.path.insert(0, ${JSON.stringify(join(PACKAGE, "tests"))})
from wire import group_facts, sample_facts, safetensors
from manyworlds_rl.decode import SAFETENSORS, decode_lease
from manyworlds_rl.metrics import Metrics
arrays = ([1, 2, 3], [0, 1, 1], [0, -0.5, -0.25], [-1, 2, 3])
batch = decode_lease(safetensors([(group_facts("a", 2, usable=1), [(sample_facts("a", 0, reward=0.5), arrays)])]), SAFETENSORS).groups
with Metrics(tensorboard="board", wandb={"project": "p", "mode": "offline", "dir": "."}, jsonl="out.jsonl") as metrics:
    print(metrics.step(3, batch, version=4, loss=float("nan"))["staleness_max"])
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("board"); read.Reload()
print(read.Scalars("manyworlds/reward")[0].step, read.Scalars("manyworlds/reward")[0].value, read.Scalars("manyworlds/unusable")[0].value)
print(len(glob.glob("wandb/offline-run-*/*.wandb")), "loss" in open("out.jsonl").read())
`;
  const { stdout, stderr } = await python(["-c", script], { env: { ...pythonEnvironment([packages]), WANDB_SILENT: "true" }, cwd: home });
  expect(stdout.trim().split("\n").slice(-3), stderr.slice(-2000)).toEqual(["2.0", "3 0.5 0.5", "1 False"]);
}, 600_000);

it("the pages' Python compiles, and their batch script is one", async () => {
  const trainers = "docs/trainers";
  const pages = ["docs/python.md", ...(existsSync(trainers) ? readdirSync(trainers).map((name) => join(trainers, name)) : [])];
  for (const page of pages) {
    for (const [, code = ""] of readFileSync(page, "utf8").matchAll(/```python\n([\s\S]*?)```/g)) {
      const { code: exit, stderr } = await python(["-c", `compile(${JSON.stringify(code)}, ${JSON.stringify(page)}, "exec")`]);
      expect(exit, stderr).toBe(0);
    }
  }
  const script = /```sbatch\n([\s\S]*?)```/.exec(readFileSync("docs/slurm.md", "utf8"))?.[1] ?? "";
  expect(script).toContain("mw serve");
  writeFileSync(join(home, "job.sbatch"), script);
  await run("bash", ["-n", join(home, "job.sbatch")]);
});

/** Python packages for tests, pinned, in a directory of their own under `node_modules/.cache`. */
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { cached } from "./cache.ts";

const run = promisify(execFile);

/** The package for trainers, in this repository. */
export const PACKAGE: string = join(import.meta.dirname, "../../python");

/** A directory for `PYTHONPATH` that holds these requirements and what they need. */
export function pythonPath(requirements: readonly string[]): Promise<string> {
  const digest = createHash("sha256").update(requirements.join(" ")).digest("hex").slice(0, 12);
  return cached(`python-${digest}`, async (draft) => {
    await run("python3", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", draft, ...requirements], { maxBuffer: 1 << 26 });
  });
}

/** A directory for `PYTHONPATH` that holds just what a list in `python/tests` names, whatever that needs beyond it. */
export function listedPackages(list: string): Promise<string> {
  const file = join(PACKAGE, "tests", list);
  const digest = createHash("sha256").update(readFileSync(file)).digest("hex").slice(0, 12);
  return cached(`python-list-${digest}`, async (draft) => {
    await run("python3", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--ignore-requires-python", "--target", draft, "-r", file], { maxBuffer: 1 << 26 });
  });
}

/**
 * The Python of a virtual environment with PyTorch, transformers and TRL for a CPU. The index has PyTorch for CUDA alone: it is installed without the libraries of CUDA, and stubs stand
 * in for them. An environment, because `dill`, by which `datasets` names its data, takes packages in other places for the user's own code.
 */
export async function torchPython(): Promise<string> {
  const list = join(PACKAGE, "tests/requirements-torch.txt");
  const stubs = join(import.meta.dirname, "cuda-stubs.py");
  const digest = createHash("sha256").update(readFileSync(list)).update(readFileSync(stubs)).digest("hex").slice(0, 12);
  const environment = await cached(`python-torch-${digest}`, async (draft) => {
    await run("python3", ["-m", "venv", draft]);
    const inner = join(draft, "bin/python");
    await run(inner, ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "-r", list], { maxBuffer: 1 << 26 });
    const { stdout } = await run(inner, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    await run(inner, [stubs, stdout.trim()]);
  });
  return join(environment, "bin/python");
}

/** What a Python program of ours needs in its environment; `more` are directories of packages. */
export function pythonEnvironment(more: readonly string[] = []): NodeJS.ProcessEnv {
  return {
    ...process.env,
    PYTHONPATH: [join(PACKAGE, "src"), join(PACKAGE, "examples"), join(PACKAGE, "tests"), ...more].join(":"),
    PYTHONDONTWRITEBYTECODE: "1",
    PYTHONUNBUFFERED: "1",
    // Nothing is to be asked of a hub, and the cores are shared with the machines of the rollouts.
    HF_HUB_OFFLINE: "1",
    TRL_EXPERIMENTAL_SILENCE: "1",
    OMP_NUM_THREADS: "2",
    TOKENIZERS_PARALLELISM: "false",
  };
}

export interface PythonEnd {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface PythonOptions {
  /** Its interpreter; `python3` where absent. */
  readonly program?: string;
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  readonly onStart?: (child: ChildProcess) => void;
}

/** Runs a program to its end, whatever its code. */
export function python(args: readonly string[], options: PythonOptions = {}): Promise<PythonEnd> {
  const child = spawn(options.program ?? "python3", args, { stdio: ["ignore", "pipe", "pipe"], cwd: options.cwd, env: options.env ?? pythonEnvironment() });
  options.onStart?.(child);
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (data: Buffer) => (stdout += data.toString()));
  child.stderr.on("data", (data: Buffer) => (stderr += data.toString()));
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => resolve({ code, stdout, stderr }));
  });
}

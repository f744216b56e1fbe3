/** Takes the baking host's Python along and installs pinned packages beside it. */
import { chmod, copyFile, cp, mkdir, realpath, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { MwError } from "../../core/errors.ts";
import type { PypiInstall } from "../cli/descriptor.ts";
import { runTool } from "./run-tool.ts";
import { removeMatching } from "./tree-files.ts";

export interface PypiRequest {
  readonly install: PypiInstall;
  readonly directory: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal;
}

/** Parts of the standard library that no agent needs. */
const UNUSED = ["test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*", "site-packages", "dist-packages", "sitecustomize.py", "__pycache__"];

const FACTS = "import json, sys, sysconfig; print(json.dumps([sys.version_info[:2], sys.executable, sysconfig.get_path('stdlib'), sysconfig.get_config_var('LIBDIR')]))";

/**
 * `python/` is laid out as Python itself expects, so that it finds its library by its own place and needs no environment variable, which the agent's commands would
 * inherit; `packages/` holds the rest. Returns where the interpreter's own shared libraries lie.
 */
export async function installPypi({ install, directory, env, signal }: PypiRequest): Promise<{ readonly libraries: readonly string[] }> {
  const options = { cwd: directory, env: { ...env, PYTHONDONTWRITEBYTECODE: "1" }, signal, install: "install Python 3 with pip (Debian: apt-get install python3 python3-pip)" };
  // Isolated: no virtual environment's or user's packages.
  const facts = JSON.parse(await runTool(["python3", "-I", "-c", FACTS], { ...options, what: "find this host's Python" })) as [[number, number], string, string, string | null];
  const [[major, minor], executable, stdlib, libraries] = facts;
  const [wantedMajor, wantedMinor] = install.minPython;
  if (major !== wantedMajor || minor < wantedMinor) {
    throw new MwError("environment", `this host's python3 is ${major}.${minor}, and the harness needs ${wantedMajor}.${wantedMinor} or newer`, { fix: "put a newer python3 first on the PATH and bake again" });
  }
  const python = join(directory, "python");
  const library = join(python, "lib", basename(stdlib));
  await mkdir(join(python, "bin"), { recursive: true });
  await copyFile(await realpath(executable), join(python, "bin/python3"));
  await chmod(join(python, "bin/python3"), 0o755);
  await cp(stdlib, library, { recursive: true, dereference: true, filter: (source) => !source.startsWith(join(stdlib, "site-packages")) && !source.startsWith(join(stdlib, "dist-packages")) && !/\/(?:test|__pycache__|config-[^/]*)$/.test(source) });
  await removeMatching(library, UNUSED);
  const packages = join(directory, "packages");
  const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile", "--no-deps", "--only-binary=:all:", "--no-warn-script-location", "--root-user-action=ignore", "--target", packages];
  await runTool(["python3", ...pip, ...install.requirements], { ...options, what: "install the Python packages" });
  await rm(join(packages, "bin"), { recursive: true, force: true });
  await removeMatching(packages, ["**/*.dist-info/RECORD", "**/*.dist-info/INSTALLER", "**/*.dist-info/REQUESTED", "**/*.dist-info/direct_url.json", "__pycache__", "tests"]);
  // Compiled now, since the layer is read-only; by hash and unchecked, so that times do not matter.
  for (const tree of [library, packages]) {
    await runTool(["python3", "-I", "-m", "compileall", "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", directory, "-p", "/", tree], { ...options, what: "compile the Python packages" });
  }
  return { libraries: libraries === null ? [] : [libraries] };
}

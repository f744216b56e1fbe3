// What the scripts share: running programs with readable failures, and installing what is missing where that is possible.
import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));

/** Absolute path of a program on PATH, or null. */
export function which(program) {
  for (const directory of [...(process.env.PATH ?? "").split(delimiter), "/usr/sbin", "/sbin"]) {
    const path = join(directory, program);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // Not here.
    }
  }
  return null;
}

/** Runs to the end; inherits the terminal unless `quiet`, then the output is shown only on failure. Exits the script on failure unless `check` is false. */
export function run(command, args, { quiet = false, check = true, env = {}, cwd = ROOT, stdoutToStderr = false } = {}) {
  const stdio = quiet ? ["ignore", "pipe", "pipe"] : ["inherit", stdoutToStderr ? 2 : "inherit", "inherit"];
  const result = spawnSync(command, args, { cwd, stdio, env: { ...process.env, ...env }, encoding: "utf8", maxBuffer: 256 << 20 });
  const code = result.status ?? 1;
  if (code !== 0 && check) {
    if (quiet) process.stderr.write(`${result.stdout ?? ""}${result.stderr ?? ""}`);
    process.stderr.write(`${command} ${args.slice(0, 4).join(" ")} failed with ${result.error?.message ?? `exit code ${code}`}\n`);
    process.exit(1);
  }
  return { code, stdout: result.stdout ?? "", stderr: result.stderr ?? "" };
}

const isRoot = process.getuid?.() === 0;
let listsUpdated = false;

/**
 * Makes sure that programs are there: `{program: debianPackage}`. As root on a Debian-like system missing ones are installed; elsewhere they are named with the
 * command that installs them. Returns the programs that are still missing.
 */
export function ensurePrograms(programs, { present = (program) => which(program) !== null } = {}) {
  const missing = Object.entries(programs).filter(([program]) => !present(program));
  if (missing.length === 0) return [];
  const packages = [...new Set(missing.map(([, name]) => name))];
  const command = `apt-get install -y --no-install-recommends ${packages.join(" ")}`;
  if (!isRoot || which("apt-get") === null) {
    process.stderr.write(`Missing: ${missing.map(([program]) => program).join(", ")}. Install with: ${isRoot ? "" : "sudo "}${command}\n`);
    return missing.map(([program]) => program);
  }
  process.stderr.write(`Installing ${packages.join(", ")} ...\n`);
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  if (!listsUpdated) {
    run("apt-get", ["update", "-q"], { quiet: true, check: false, env });
    listsUpdated = true;
  }
  const install = (names) => run("apt-get", ["install", "-y", "-q", "--no-install-recommends", ...names], { quiet: true, check: false, env });
  const all = install(packages);
  // One unavailable package must not keep the others away.
  if (all.code !== 0) for (const name of packages) install([name]);
  const still = missing.filter(([program]) => !present(program)).map(([program]) => program);
  if (still.length > 0) process.stderr.write(`Still missing: ${still.join(", ")}. Tried: ${command}\n${all.stderr.split("\n").slice(-6).join("\n")}\n`);
  return still;
}

/** Where everything durable lives: one data directory, owned by one controller at a time. */
import { mkdirSync, statSync } from "node:fs";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { MwError } from "./errors.ts";

type Env = Readonly<Record<string, string | undefined>>;

/** `MW_HOME`, else `$XDG_DATA_HOME/manyworlds`, else `~/.local/share/manyworlds`. Absolute. */
export function dataDirectory(env: Env, cwd: string): string {
  const named = env["MW_HOME"];
  if (named !== undefined && named !== "") return resolve(cwd, named);
  return join(xdgDirectory(env, "XDG_DATA_HOME", ".local/share"), "manyworlds");
}

/** The user's configuration file. */
export function userConfigFile(env: Env): string {
  return join(xdgDirectory(env, "XDG_CONFIG_HOME", ".config"), "manyworlds", "config.toml");
}

/** The XDG rules: a relative value is ignored. */
function xdgDirectory(env: Env, name: string, fallback: string): string {
  const value = env[name];
  if (value !== undefined && isAbsolute(value)) return value;
  return join(env["HOME"] ?? "/", fallback);
}

/**
 * Makes the directory and those above it that are missing, for this user alone. One step at a time: where a file system refuses new names as if something above were missing
 * (`/proc`), making all of them at once never ends (Node 20).
 */
export function makeDataDirectory(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() === true) return;
  const parent = dirname(path);
  if (parent !== path) makeDataDirectory(parent);
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    // Somebody else may have made it in the same moment.
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) throw unusable(path, error);
  }
}

/** `ENOENT` for a name whose parent is there: no new names are taken. */
function unusable(path: string, error: unknown): unknown {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return code === "ENOENT" ? new MwError("environment", `${path} cannot be made: its file system takes no new names`, { fix: "name another data directory in MW_HOME", cause: error }) : error;
}

/** Where everything durable lives: one data directory, owned by one controller at a time. */
import { isAbsolute, join, resolve } from "node:path";

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

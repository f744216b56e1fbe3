/** Finds the value of each setting and remembers where it came from. */
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { parse as parseToml } from "smol-toml";
import { MwError, messageOf } from "../core/errors.ts";
import { dataDirectory, userConfigFile } from "../core/home.ts";
import { FREE_TABLES, SETTINGS, type SettingDefinition, type SettingName, type SettingValue } from "./settings.ts";

/** Where a value came from: `--flag`, a variable's name, `FILE: key`, or `default`. */
export type Origin = string;

export interface Resolved<T> {
  readonly value: T;
  readonly origin: Origin;
}

export interface Config {
  /** Absolute path of the data directory. */
  readonly home: Resolved<string>;
  /** Value of a setting, null when nobody gave one. */
  get<Name extends SettingName>(name: Name): SettingValue<Name> | null;
  origin(name: SettingName): Origin;
  /** Image names mapped to image names: the user's table, overlaid by the project's. */
  readonly imageAliases: Readonly<Record<string, string>>;
  /** Every setting with its value and origin, for `mw doctor`. */
  entries(): readonly { readonly name: string; readonly key: string; readonly value: string | number | null; readonly origin: Origin; readonly brief: string }[];
}

export type FlagValues = { readonly [Name in SettingName]?: SettingValue<Name> | undefined };

/** Reads files and environment. Flags come already parsed. A malformed file or variable is an error that names it. */
export function loadConfig(env: Readonly<Record<string, string | undefined>>, cwd: string, flags: FlagValues = {}): Config {
  const files = [findProjectFile(cwd), userConfigFile(env)].filter((path) => path !== null && existsSync(path)).map((path) => readConfigFile(path as string));
  const found = new Map<SettingName, Resolved<string | number | null>>();
  for (const name of Object.keys(SETTINGS) as SettingName[]) found.set(name, resolveSetting(name, env, cwd, flags, files));
  const home = env["MW_HOME"] === undefined || env["MW_HOME"] === "" ? (env["XDG_DATA_HOME"] === undefined ? "default" : "XDG_DATA_HOME") : "MW_HOME";
  return {
    home: { value: dataDirectory(env, cwd), origin: home },
    // The map holds what the setting's own parser returned.
    get: <Name extends SettingName>(name: Name) => (found.get(name)?.value ?? null) as SettingValue<Name> | null,
    origin: (name) => found.get(name)?.origin ?? "default",
    imageAliases: Object.assign({}, ...files.toReversed().map((file) => file.aliases)) as Record<string, string>,
    entries: () => [...found].map(([name, { value, origin }]) => ({ name, key: SETTINGS[name].key, value, origin, brief: SETTINGS[name].brief })),
  };
}

interface ConfigFile {
  readonly path: string;
  readonly values: ReadonlyMap<string, unknown>;
  readonly aliases: Readonly<Record<string, string>>;
}

function resolveSetting(
  name: SettingName,
  env: Readonly<Record<string, string | undefined>>,
  cwd: string,
  flags: FlagValues,
  files: readonly ConfigFile[],
): Resolved<string | number | null> {
  // One view for all settings; each parser returns what its own setting holds.
  const definition = SETTINGS[name] as SettingDefinition<string | number>;
  const flag = flags[name];
  if (flag !== undefined) return { value: definition.path === true ? resolve(cwd, String(flag)) : flag, origin: `--${kebab(name)}` };
  const variable = env[definition.env];
  if (variable !== undefined && variable !== "") {
    const value = parseOr(definition, variable, `environment variable ${definition.env}`);
    return { value: definition.path === true ? resolve(cwd, String(value)) : value, origin: definition.env };
  }
  for (const file of files) {
    const raw = file.values.get(definition.key);
    if (raw === undefined) continue;
    if (typeof raw !== "string" && typeof raw !== "number" && typeof raw !== "bigint") {
      throw new MwError("invalid_input", `${file.path}: ${definition.key} is a ${Array.isArray(raw) ? "list" : typeof raw}, expected text or a number`, { fix: `correct ${definition.key}` });
    }
    const value = parseOr(definition, String(raw), `${file.path}: ${definition.key}`);
    return { value: definition.path === true ? resolve(dirname(file.path), String(value)) : value, origin: `${file.path}: ${definition.key}` };
  }
  const { fallback } = definition;
  return { value: typeof fallback === "function" ? fallback() : fallback, origin: "default" };
}

function parseOr<T>(definition: SettingDefinition<T>, text: string, where: string): T {
  try {
    return definition.parse(text);
  } catch (error) {
    throw new MwError("invalid_input", `${where}: ${messageOf(error)}, got ${JSON.stringify(text)}`, { fix: `correct or remove it (${definition.brief})` });
  }
}

/** `manyworlds.toml` in the working directory or the nearest one above it. */
function findProjectFile(cwd: string): string | null {
  for (let directory = cwd; ; directory = dirname(directory)) {
    const path = join(directory, "manyworlds.toml");
    if (existsSync(path)) return path;
    if (dirname(directory) === directory) return null;
  }
}

function readConfigFile(path: string): ConfigFile {
  let document: unknown;
  try {
    document = parseToml(readFileSync(path, "utf8"));
  } catch (error) {
    throw new MwError("invalid_input", `cannot read the configuration ${path}: ${messageOf(error)}`, { fix: "correct the file, or move it away", cause: error });
  }
  const values = new Map<string, unknown>();
  flatten(document, "", values);
  const aliases: Record<string, string> = {};
  const known = new Set<string>(Object.values(SETTINGS).map((setting) => setting.key));
  for (const [key, value] of values) {
    const table = FREE_TABLES.find((name) => key.startsWith(`${name}.`));
    if (table !== undefined) {
      if (typeof value !== "string") throw new MwError("invalid_input", `${path}: ${key} is no text`, { fix: 'write "name" = "image"' });
      aliases[key.slice(table.length + 1)] = value;
    } else if (!known.has(key)) {
      throw new MwError("invalid_input", `${path}: there is no setting ${JSON.stringify(key)}`, { fix: `settings are ${[...known].join(", ")} and the table [image.aliases]` });
    }
  }
  return { path, values, aliases };
}

function flatten(node: unknown, prefix: string, into: Map<string, unknown>): void {
  if (typeof node === "object" && node !== null && !Array.isArray(node) && !(node instanceof Date)) {
    for (const [key, value] of Object.entries(node)) flatten(value, prefix === "" ? key : `${prefix}.${key}`, into);
  } else {
    into.set(prefix, node);
  }
}

function kebab(name: string): string {
  return name.replaceAll(/[A-Z]/g, (char) => `-${char.toLowerCase()}`);
}

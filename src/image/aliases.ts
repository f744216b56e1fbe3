/** The alias table: image names mapped to other images, so that a task's `FROM python:3.12-slim` can mean something that is made on this machine. */
import { readFile, rename, writeFile } from "node:fs/promises";
import { parse, stringify } from "smol-toml";
import { MwError, messageOf } from "../core/errors.ts";
import { ownName } from "./holder.ts";
import { fullName, parseImageReference, type RegistryName } from "./reference.ts";

export interface Alias {
  readonly name: string;
  readonly image: string;
  /** `shipped`, the data directory's file, or `configuration`. */
  readonly origin: string;
}

export class AliasTable {
  readonly #file: string;
  readonly #configured: Readonly<Record<string, string>>;

  constructor(file: string, configured: Readonly<Record<string, string>>) {
    this.#file = file;
    this.#configured = configured;
  }

  /** What the name stands for, or null. The most specific table that has the name decides. */
  async lookup(name: RegistryName): Promise<string | null> {
    const wanted = fullName(name);
    const found = (await this.list()).find((alias) => normal(alias) === wanted);
    return found === undefined || found.image === "" ? null : found.image;
  }

  /** Every alias in force, sorted by name. */
  async list(): Promise<readonly Alias[]> {
    const byName = new Map<string, Alias>();
    const shipped = await readTable(new URL("./aliases.toml", import.meta.url));
    const own = await readTable(this.#file);
    for (const [table, origin] of [[shipped, "shipped"], [own, this.#file], [this.#configured, "configuration"]] as const) {
      for (const [name, image] of Object.entries(table)) {
        const alias = { name, image, origin };
        byName.set(normal(alias), alias);
      }
    }
    return [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** Writes one line of the data directory's table; null takes it out. */
  async set(name: string, image: string | null): Promise<void> {
    if (parseImageReference(name).kind !== "name") throw new MwError("usage", `${JSON.stringify(name)} cannot be an alias`, { fix: "an alias is a name such as python:3.12-slim" });
    if (image !== null && image !== "") parseImageReference(image);
    const table = { ...(await readTable(this.#file)) };
    if (image === null) delete table[name];
    else table[name] = image;
    const temporary = `${this.#file}.${ownName()}`;
    await writeFile(temporary, `${stringify(table)}\n`);
    await rename(temporary, this.#file);
  }
}

/** The full name that the alias is for. A malformed name in a table matches nothing but itself. */
function normal(alias: Alias): string {
  try {
    const parsed = parseImageReference(alias.name);
    return parsed.kind === "name" ? fullName(parsed.name) : alias.name;
  } catch {
    return alias.name;
  }
}

async function readTable(file: string | URL): Promise<Readonly<Record<string, string>>> {
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  let table: unknown;
  try {
    table = parse(text);
  } catch (error) {
    throw new MwError("invalid_input", `the alias table ${String(file)} is malformed: ${messageOf(error)}`, { fix: 'write lines of the form "name" = "image"', cause: error });
  }
  for (const [name, image] of Object.entries(table as Record<string, unknown>)) {
    if (typeof image !== "string") throw new MwError("invalid_input", `the alias table ${String(file)} maps ${JSON.stringify(name)} to something that is no text`, { fix: 'write "name" = "image"' });
  }
  return table as Record<string, string>;
}

/**
 * From the bytes of `task.toml` to a validated configuration. Everything wrong with it is collected into one error, each finding with file, line and field; keys
 * that nobody knows become warnings.
 */
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { didYouMean } from "./did-you-mean.ts";
import { manyworldsSchema, SCHEMA_VERSIONS, taskConfigSchema, type ManyworldsConfig, type TaskConfig } from "./task-config.ts";
import { decodeText, parseToml, type Table } from "./toml.ts";

export interface ReadConfig {
  readonly config: TaskConfig;
  readonly manyworlds: ManyworldsConfig;
  readonly warnings: readonly string[];
}

type Path = readonly (string | number)[];

/** Throws `invalid_task`. `file` is the path as messages name it. */
export function readConfig(bytes: Uint8Array, file: string): ReadConfig {
  if (bytes.length > LIMITS.taskConfigBytes) {
    throw new MwError("invalid_task", `${file} has ${bytes.length} bytes, more than ${LIMITS.taskConfigBytes}`, { fix: "Move data out of task.toml.", facts: { file } });
  }
  const table = parseToml(bytes, file);
  const text = decodeText(bytes, file);
  const at = (path: Path): string => {
    const line = lineOf(text, path);
    return `${file}${line === null ? "" : `:${line}`}: ${fieldName(path)}`;
  };

  const parsed = taskConfigSchema.safeParse(table, { reportInput: true });
  const own = manyworldsSchema.safeParse(asTable(asTable(table["metadata"])["manyworlds"]), { reportInput: true });
  const findings = [
    ...(parsed.error?.issues ?? []).map((issue) => ({ path: issue.path as Path, message: issueText(issue) })),
    ...(own.error?.issues ?? []).map((issue) => ({ path: ["metadata", "manyworlds", ...issue.path] as Path, message: issueText(issue) })),
    ...strictKeys(asTable(asTable(table["metadata"])["manyworlds"])),
  ];
  if (parsed.success) findings.push(...contradictions(parsed.data));
  if (findings.length > 0 || !parsed.success || !own.success) {
    const lines = findings.map(({ path, message }) => `${at(path)} ${message}`);
    throw new MwError("invalid_task", lines.length === 1 ? (lines[0] ?? "") : `${file} has ${lines.length} faults:\n${lines.map((line) => `  ${line}`).join("\n")}`, {
      fix: `Correct ${findings.map(({ path }) => fieldName(path)).join(", ")} in ${file}.`,
      facts: { file, field: fieldName(findings[0]?.path ?? []) },
    });
  }
  const warnings = [
    ...unknownKeys(table, taskConfigSchema, []).map(({ path, near }) => `${at(path)} is not a known key and is ignored${near === null ? "" : `; did you mean ${near}?`}`),
    ...oddities(table, parsed.data).map(({ path, message }) => `${at(path)} ${message}`),
  ];
  return { config: parsed.data, manyworlds: own.data, warnings };
}

/** What each value may be alone, but not together. */
function contradictions(config: TaskConfig): { path: Path; message: string }[] {
  const found: { path: Path; message: string }[] = [];
  const version = config.version ?? config.schema_version;
  const [major, minor] = version.split(".");
  if (major !== "1" || !/^\d+$/.test(minor ?? "")) {
    found.push({ path: [config.version === undefined ? "schema_version" : "version"], message: `"${version}" is not a known schema; known are ${SCHEMA_VERSIONS.join(", ")}` });
  }
  const network = (path: Path, entry: { network_mode?: string | undefined; allowed_hosts?: readonly string[] | undefined } | undefined): void => {
    if (entry === undefined) return;
    if (entry.network_mode !== "allowlist" && (entry.allowed_hosts?.length ?? 0) > 0) found.push({ path: [...path, "allowed_hosts"], message: 'is only valid with network_mode = "allowlist"' });
  };
  const verifier = (path: Path, entry: TaskConfig["verifier"]): void => {
    network(path, entry);
    network([...path, "environment"], entry.environment);
    if (entry.environment_mode === "shared" && entry.environment !== undefined) {
      found.push({ path: [...path, "environment_mode"], message: `"shared" contradicts [${[...path, "environment"].join(".")}]: leave the environment out, or use "separate"` });
    }
  };
  network(["environment"], config.environment);
  network(["agent"], config.agent);
  verifier(["verifier"], config.verifier);
  const seen = new Map<string, number>();
  for (const [index, step] of config.steps.entries()) {
    network(["steps", index, "agent"], step.agent);
    verifier(["steps", index, "verifier"], step.verifier);
    const fault = stepNameFault(step.name);
    if (fault !== null) found.push({ path: ["steps", index, "name"], message: fault });
    const key = step.name.normalize("NFC").toLowerCase();
    const first = seen.get(key);
    if (first !== undefined) found.push({ path: ["steps", index, "name"], message: `"${step.name}" is already the name of step ${first + 1}` });
    seen.set(key, index);
  }
  for (const [path, entries] of [[["artifacts"], config.artifacts], ...config.steps.map((step, index) => [["steps", index, "artifacts"], step.artifacts])] as [Path, TaskConfig["artifacts"]][]) {
    for (const [index, entry] of entries.entries()) {
      const fault = artifactFault(entry);
      if (fault !== null) found.push({ path: [...path, index], message: fault });
    }
  }
  return found;
}

/** Step names become directory names on any host. */
function stepNameFault(name: string): string | null {
  // oxlint-disable-next-line no-control-regex -- control characters are what is refused
  if (name.trim() === "" || name === "." || name === ".." || /[. ]$/.test(name) || /[<>:"/\\|?*\u0000-\u001f\u007f]/.test(name)) {
    return `"${name}" cannot be a directory name: no separators, control or reserved characters, no trailing dot or blank`;
  }
  return Buffer.byteLength(name) > 255 ? "is longer than 255 bytes" : null;
}

function artifactFault(entry: TaskConfig["artifacts"][number]): string | null {
  const { source, destination, service } = typeof entry === "string" ? { source: entry, destination: undefined, service: undefined } : entry;
  if (source.split("/").includes("..")) return `source "${source}" must not contain ".."`;
  if (service !== undefined && service !== "main" && !source.startsWith("/")) return `source "${source}" of service "${service}" must be absolute`;
  if (destination === undefined || destination === "") return null;
  const parts = destination.split("/").filter((part) => part !== "" && part !== ".");
  if (destination.includes("\\")) return `destination "${destination}" must use forward slashes`;
  if (destination.startsWith("/")) return `destination "${destination}" must be relative`;
  if (parts.includes("..") || parts.length === 0) return `destination "${destination}" must name something below the artifacts directory`;
  return parts.join("/") === "manifest.json" ? 'destination "manifest.json" is reserved' : null;
}

/** Accepted, but perhaps not what the author thinks. */
function oddities(table: Table, config: TaskConfig): { path: Path; message: string }[] {
  const found: { path: Path; message: string }[] = [];
  const environment = asTable(table["environment"]);
  for (const [old, now] of [["memory", "memory_mb"], ["storage", "storage_mb"]] as const) {
    const before = config.environment[old];
    const after = config.environment[now];
    if (before !== undefined && after !== undefined && before !== after) found.push({ path: ["environment", old], message: `is overruled by ${now} = ${after}` });
  }
  if (environment["allow_internet"] !== undefined && config.environment.network_mode !== undefined) found.push({ path: ["environment", "allow_internet"], message: "is overruled by network_mode" });
  const version = config.version ?? config.schema_version;
  if (!SCHEMA_VERSIONS.some((known) => known === version)) found.push({ path: ["schema_version"], message: `"${version}" is newer than ${SCHEMA_VERSIONS.at(-1)}; it is read as that` });
  if (config.task !== undefined && !/^[a-zA-Z0-9][\w.-]*\/[a-zA-Z0-9][\w.-]*$/.test(config.task.name)) found.push({ path: ["task", "name"], message: `"${config.task.name}" is not of the form org/name, which registries ask for` });
  return found;
}

function strictKeys(table: Table): { path: Path; message: string }[] {
  return unknownKeys(table, manyworldsSchema, ["metadata", "manyworlds"]).map(({ path, near }) => ({
    path,
    message: `is not a known key${near === null ? "" : `; did you mean ${near}?`}`,
  }));
}

/** Keys that the schema does not have. Records and loose objects have no unknown keys. */
function unknownKeys(value: unknown, schema: z.ZodType, path: Path): { path: Path; near: string | null }[] {
  const inner = unwrap(schema);
  if (inner instanceof z.ZodArray && Array.isArray(value)) return value.flatMap((item, index) => unknownKeys(item, inner.element as z.ZodType, [...path, index]));
  if (inner instanceof z.ZodUnion) {
    const object = (inner.options as z.ZodType[]).find((option) => unwrap(option) instanceof z.ZodObject);
    return object === undefined ? [] : unknownKeys(value, object, path);
  }
  if (!(inner instanceof z.ZodObject) || typeof value !== "object" || value === null) return [];
  const shape = inner.shape as Record<string, z.ZodType>;
  const found: { path: Path; near: string | null }[] = [];
  const loose = inner.def.catchall !== undefined;
  for (const [key, child] of Object.entries(value)) {
    const known = Object.hasOwn(shape, key) ? shape[key] : undefined;
    if (known !== undefined) found.push(...unknownKeys(child, known, [...path, key]));
    else if (!loose) found.push({ path: [...path, key], near: didYouMean(key, Object.keys(shape)) });
  }
  return found;
}

function unwrap(schema: z.ZodType): z.ZodType {
  let current = schema;
  for (;;) {
    if (current instanceof z.ZodOptional || current instanceof z.ZodDefault || current instanceof z.ZodPrefault) current = current.def.innerType as z.ZodType;
    else if (current instanceof z.ZodPipe) current = (current.def.in instanceof z.ZodTransform ? current.def.out : current.def.in) as z.ZodType;
    else return current;
  }
}

function issueText(issue: z.core.$ZodIssue): string {
  if (issue.code === "invalid_value") {
    const given = typeof issue.input === "string" ? didYouMean(issue.input, issue.values.map(String)) : null;
    return `must be one of ${issue.values.map((value) => JSON.stringify(value)).join(", ")}${given === null ? "" : `; did you mean ${JSON.stringify(given)}?`}`;
  }
  if (issue.code === "invalid_union") {
    const kinds = issue.errors.flat().map((inner) => issueText(inner));
    return kinds.length === 0 ? "has the wrong type" : [...new Set(kinds)].join(", or ");
  }
  if (issue.code === "invalid_type") return `must be ${typeName(issue.expected)}`;
  return issue.message;
}

function typeName(expected: string): string {
  const names: Record<string, string> = { string: "text in quotes", number: "a number", int: "a whole number", boolean: "true or false", array: "a list [...]", object: "a table", record: "a table" };
  return names[expected] ?? expected;
}

function fieldName(path: Path): string {
  let out = "";
  for (const part of path) out += typeof part === "number" ? `[${part}]` : out === "" ? part : `.${part}`;
  return out === "" ? "the document" : out;
}

/** Line of a field: the last key of the path below its table's header; else the header's. Good for plain TOML, null where it is written another way. */
function lineOf(text: string, path: Path): number | null {
  const keys = path.filter((part): part is string => typeof part === "string");
  // Only the outermost list is told apart; that is enough for [[steps]] and the like.
  const nth = path.find((part): part is number => typeof part === "number");
  let table: string[] = [];
  let item = -1;
  let best: { line: number; depth: number } | null = null;
  const counts = new Map<string, number>();
  for (const [index, line] of text.split("\n").entries()) {
    const header = /^\s*(\[\[?)\s*([^\]]+?)\s*\]/.exec(line);
    if (header?.[1] !== undefined && header[2] !== undefined) {
      table = header[2].split(".").map((part) => part.trim().replace(/^["']|["']$/g, ""));
      const name = table.join(".");
      if (header[1] === "[[") {
        counts.set(name, (counts.get(name) ?? -1) + 1);
        item = counts.get(name) ?? 0;
      }
      const wanted = nth === undefined || item === -1 || item === nth;
      if (wanted && table.every((part, at) => keys[at] === part)) best = { line: index + 1, depth: table.length };
      continue;
    }
    const key = /^\s*(?:"([^"]+)"|'([^']+)'|([\w-]+(?:\s*\.\s*[\w-]+)*))\s*=/.exec(line);
    if (key === null) continue;
    const full = [...table, ...(key[1] ?? key[2] ?? key[3] ?? "").split(".").map((part) => part.trim())];
    const wanted = nth === undefined || item === -1 || item === nth;
    if (wanted && full.length <= keys.length && full.length > (best?.depth ?? 0) && full.every((part, at) => keys[at] === part)) best = { line: index + 1, depth: full.length };
  }
  return best?.line ?? null;
}

function asTable(value: unknown): Table {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Table) : {};
}

/**
 * What `mw run` is given: a task directory, a directory of tasks, or a dataset file (Harbor's dataset.toml and registry.json, or JSON Lines), read as a stream.
 *
 * Nothing here stops the run: a path that leads nowhere and a task that cannot be read are values that say what, where and how to fix it, and fail alone.
 */
import { readdir, readFile, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { messageOf, MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { didYouMean } from "./did-you-mean.ts";
import { readJsonLines } from "./json-lines.ts";
import { loadTask } from "./load-task.ts";
import type { Task } from "./task.ts";
import { parseToml } from "./toml.ts";

export type DatasetEntry =
  | { readonly kind: "task"; readonly input: string; readonly task: Task }
  /** `input` is what was asked for, `error` an `MwError` of exit code 2. */
  | { readonly kind: "broken"; readonly input: string; readonly error: MwError };

/** Directories of tasks are searched this deep. */
const SEARCH_DEPTH = 4;

/** One entry per task, in the order of the inputs; within a directory by name. Never throws for a bad input. */
export async function* readDataset(inputs: readonly string[]): AsyncGenerator<DatasetEntry> {
  for await (const entry of locateTasks(inputs)) yield "kind" in entry ? entry : await readLocated(entry);
}

/** A place where a task should be, before it is read. */
export interface Located {
  readonly input: string;
  readonly directory: string;
  readonly digest?: string | undefined;
}

/** Where the tasks are, in the same order, without reading them: a long dataset can be drawn from before its tasks are loaded. */
export async function* locateTasks(inputs: readonly string[]): AsyncGenerator<Located | DatasetEntry> {
  let count = 0;
  for (const input of inputs) {
    for await (const found of guarded(input, expand(input))) {
      if (++count > LIMITS.tasksPerRun) {
        yield broken(input, new MwError("limit_exceeded", `The inputs name more than ${LIMITS.tasksPerRun} tasks`, { fix: "Split the run." }));
        return;
      }
      yield found;
    }
  }
}

async function* guarded(input: string, entries: AsyncIterable<Located | DatasetEntry>): AsyncGenerator<Located | DatasetEntry> {
  try {
    yield* entries;
  } catch (error) {
    yield broken(input, error instanceof MwError ? error : new MwError("invalid_input", `Cannot read ${input}: ${messageOf(error)}`, { cause: error }));
  }
}

/** Reads one task. What is wrong with it is a value. */
export async function readLocated({ input, directory, digest }: Located): Promise<DatasetEntry> {
  try {
    const task = await loadTask(directory);
    if (digest !== undefined && task.digest !== digest) {
      return broken(
        input,
        new MwError("invalid_task", `The task in ${directory} is not the pinned one: its digest is ${task.digest}, the dataset pins ${digest}`, {
          fix: "Get the pinned version of the task, or update the digest in the dataset.",
          facts: { directory, digest: task.digest, pinned: digest },
        }),
      );
    }
    return { kind: "task", input, task };
  } catch (error) {
    return broken(input, error instanceof MwError ? error : new MwError("invalid_task", `Cannot read the task ${directory}: ${messageOf(error)}`, { cause: error }));
  }
}

async function* expand(input: string): AsyncGenerator<Located | DatasetEntry> {
  // `registry.json#name@version` picks one dataset of a registry.
  const hash = input.lastIndexOf("#");
  const whole = await stat(resolve(input)).catch(() => null);
  const path = resolve(whole === null && hash > 0 ? input.slice(0, hash) : input);
  const fragment = whole === null && hash > 0 ? input.slice(hash + 1) : null;
  const kind = whole ?? (await stat(path).catch(() => null));
  if (kind === null) throw await notFound(input, path);
  if (kind.isDirectory()) {
    yield* expandDirectory(input, path);
    return;
  }
  if (basename(path) === "task.toml") yield { input, directory: dirname(path) };
  else if (path.endsWith(".toml")) yield* expandManifest(path);
  else if (path.endsWith(".json")) yield* expandRegistry(path, fragment);
  else if (path.endsWith(".jsonl") || path.endsWith(".ndjson")) yield* expandJsonLines(path);
  else {
    throw new MwError("invalid_input", `${input} is a file, but not one that names tasks`, {
      fix: "Give a task directory, a directory of tasks, or a dataset file: dataset.toml, registry.json, or one JSON value a line in a .jsonl file.",
      facts: { input },
    });
  }
}

async function* expandDirectory(input: string, path: string): AsyncGenerator<Located | DatasetEntry> {
  if (await isFile(join(path, "task.toml"))) {
    yield { input, directory: path };
    return;
  }
  if (await isFile(join(path, "dataset.toml"))) {
    yield* expandManifest(join(path, "dataset.toml"));
    return;
  }
  let found = 0;
  for await (const entry of search(path, SEARCH_DEPTH)) {
    found++;
    yield entry;
  }
  if (found > 0) return;
  throw new MwError("invalid_input", `${input} holds no tasks: there is no task.toml in it, nor in a directory up to ${SEARCH_DEPTH} levels below`, {
    fix: "Give a directory that holds task.toml, or one with such directories.",
    facts: { input },
  });
}

async function* search(directory: string, depth: number): AsyncGenerator<Located | DatasetEntry> {
  const entries = await readdir(directory, { withFileTypes: true }).catch((error: unknown) => messageOf(error));
  if (typeof entries === "string") {
    yield broken(directory, new MwError("invalid_input", `Cannot look for tasks in ${directory}: ${entries}`, { fix: "Make the directory readable, or give the task directories.", facts: { directory } }));
    return;
  }
  const names = entries
    .filter((entry) => (entry.isDirectory() || entry.isSymbolicLink()) && !entry.name.startsWith(".") && entry.name !== "node_modules")
    .map((entry) => entry.name)
    .sort();
  for (const name of names) {
    const path = join(directory, name);
    const kind = await stat(path).catch(() => null);
    if (kind !== null && !kind.isDirectory()) continue;
    if (await isFile(join(path, "task.toml"))) yield { input: path, directory: path };
    else if (await isFile(join(path, "instruction.md"))) {
      yield broken(path, new MwError("invalid_task", `${path} has an instruction.md but no task.toml`, { fix: `Add ${join(path, "task.toml")}.`, facts: { directory: path } }));
    } else if (kind !== null && depth > 1) yield* search(path, depth - 1);
  }
}

/** Harbor's dataset.toml: names and digests. The tasks are looked for beside the file. */
async function* expandManifest(file: string): AsyncGenerator<Located | DatasetEntry> {
  const table = parseToml(await readFile(file), file);
  const tasks = table["tasks"];
  if (!Array.isArray(tasks)) {
    throw new MwError("invalid_input", `${file} has no [[tasks]]`, { fix: "A dataset.toml lists its tasks as [[tasks]] with name and digest.", facts: { file, field: "tasks" } });
  }
  const root = dirname(file);
  let index: Promise<ReadonlyMap<string, string>> | null = null;
  for (const [at, entry] of tasks.entries()) {
    const field = `tasks[${at}]`;
    const name = text(entry, "name");
    const path = text(entry, "path");
    const digest = text(entry, "digest");
    if (name === undefined && path === undefined) {
      yield broken(`${file} ${field}`, new MwError("invalid_input", `${file}: ${field} has no name`, { fix: 'Add name = "org/name".', facts: { file, field } }));
      continue;
    }
    const label = name ?? path ?? "";
    if (digest !== undefined && !/^sha256:[0-9a-f]{64}$/.test(digest)) {
      yield broken(label, new MwError("invalid_input", `${file}: ${field}.digest is not "sha256:" and 64 hexadecimal digits`, { fix: "Copy the digest again.", facts: { file, field } }));
      continue;
    }
    const directory = path === undefined ? await locate(root, label, () => (index ??= namesBelow(root))) : resolve(root, path);
    if (directory === null) {
      yield broken(
        label,
        new MwError("not_found", `${file} names the task ${label}, which is not in ${root}`, { fix: `Download the dataset's tasks into ${root}, one directory each.`, facts: { file, field, task: label } }),
      );
    } else yield { input: label, directory, digest };
  }
}

/** `org/name` as a directory beside the manifest, by path first, then by the name that the tasks give themselves. */
async function locate(root: string, name: string, index: () => Promise<ReadonlyMap<string, string>>): Promise<string | null> {
  const short = name.split("/").at(-1) ?? name;
  if (name.split("/").some((part) => part === ".." || part === "")) return null;
  for (const place of [name, short, join("tasks", name), join("tasks", short)]) if (await isFile(join(root, place, "task.toml"))) return join(root, place);
  return (await index()).get(name) ?? null;
}

async function namesBelow(root: string): Promise<ReadonlyMap<string, string>> {
  const names = new Map<string, string>();
  for await (const entry of search(root, SEARCH_DEPTH)) {
    if ("kind" in entry) continue;
    const file = join(entry.directory, "task.toml");
    const table = await readFile(file).then((bytes) => parseToml(bytes, file)).catch(() => null);
    const name = text(table?.["task"], "name");
    if (name !== undefined && !names.has(name)) names.set(name, entry.directory);
  }
  return names;
}

/** Harbor's older registry.json: datasets whose tasks are paths in repositories. Only what is here already can be run. */
async function* expandRegistry(file: string, fragment: string | null): AsyncGenerator<Located | DatasetEntry> {
  const size = (await stat(file)).size;
  if (size > LIMITS.registryFileBytes) throw new MwError("invalid_input", `${file} has ${size} bytes, more than ${LIMITS.registryFileBytes}`, { fix: "Use JSON Lines, which is read as a stream.", facts: { file } });
  const document = parseJson(await readFile(file, "utf8"), file);
  const datasets = Array.isArray(document) ? document : [document];
  const names = datasets.map((dataset) => [text(dataset, "name"), text(dataset, "version")] as const);
  const chosen = datasets.filter((_, at) => {
    const [name, version] = names[at] ?? [];
    return fragment === null || fragment === name || fragment === `${name}@${version}`;
  });
  if (chosen.length === 0) {
    const known = names.map(([name, version]) => (version === undefined ? `${name}` : `${name}@${version}`));
    const near = fragment === null ? null : didYouMean(fragment, known);
    throw new MwError("not_found", `${file} has no dataset ${fragment ?? ""}`, { fix: near === null ? `It has: ${known.slice(0, 20).join(", ")}.` : `Did you mean ${near}?`, facts: { file } });
  }
  for (const dataset of chosen) {
    const tasks = typeof dataset === "object" && dataset !== null ? (dataset as Record<string, unknown>)["tasks"] : undefined;
    if (!Array.isArray(tasks)) {
      yield broken(file, new MwError("invalid_input", `${file}: the dataset ${text(dataset, "name") ?? "(unnamed)"} has no "tasks" list`, { facts: { file } }));
      continue;
    }
    for (const entry of tasks as unknown[]) yield await registryTask(file, entry);
  }
}

async function registryTask(file: string, entry: unknown): Promise<Located | DatasetEntry> {
  const path = text(entry, "path");
  const name = text(entry, "name") ?? path ?? "(unnamed)";
  if (path === undefined) return broken(name, new MwError("invalid_input", `${file}: the task ${name} has no path`, { facts: { file, task: name } }));
  const directory = resolve(dirname(file), path);
  const repository = text(entry, "git_url");
  if (repository !== undefined && !(await isFile(join(directory, "task.toml")))) {
    const commit = text(entry, "git_commit_id") ?? "HEAD";
    return broken(
      name,
      new MwError("not_found", `${file} names the task ${name} in the repository ${repository} (${commit}), which is not checked out beside it`, {
        fix: `Check the repository out at ${dirname(file)}, so that ${directory} exists.`,
        facts: { file, task: name },
      }),
    );
  }
  return { input: name, directory };
}

/** One task a line: a path as a JSON string, or an object with `path` and perhaps `digest`. Paths are relative to the file. */
async function* expandJsonLines(file: string): AsyncGenerator<Located | DatasetEntry> {
  for await (const { line, value, error } of readJsonLines(file)) {
    const where = `${file}:${line}`;
    const path = typeof value === "string" ? value : (text(value, "path") ?? text(value, "task") ?? text(value, "directory"));
    if (error !== null) yield broken(where, error);
    else if (path === undefined || path === "") {
      yield broken(where, new MwError("invalid_input", `${where} names no task`, { fix: 'Each line is a path in quotes, or {"path": "...", "digest": "sha256:..."}.', facts: { file, line } }));
    } else yield { input: path, directory: resolve(dirname(file), path), digest: text(value, "digest") };
  }
}

async function notFound(input: string, path: string): Promise<MwError> {
  const siblings = await readdir(dirname(path)).catch(() => [] as string[]);
  const near = didYouMean(basename(path), siblings);
  return new MwError("not_found", `There is nothing at ${input}`, {
    fix: near === null ? "Give a task directory, a directory of tasks, or a dataset file." : `Did you mean ${join(dirname(input), near)}?`,
    facts: { input, path },
  });
}

function parseJson(content: string, file: string): unknown {
  try {
    return JSON.parse(content.replace(/^\uFEFF/, "")) as unknown;
  } catch (error) {
    throw new MwError("invalid_input", `${file} is not JSON: ${messageOf(error)}`, { fix: `Correct ${file}.`, cause: error, facts: { file } });
  }
}

function text(entry: unknown, key: string): string | undefined {
  const value = typeof entry === "object" && entry !== null ? (entry as Record<string, unknown>)[key] : undefined;
  return typeof value === "string" ? value : undefined;
}

function broken(input: string, error: MwError): DatasetEntry {
  return { kind: "broken", input, error };
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => null))?.isFile() ?? false;
}

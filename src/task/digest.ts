/**
 * The identity of a task's content, byte for byte as Harbor (0.26) computes it, so that digests pinned in dataset files can be checked.
 *
 * SHA-256 over one line `path NUL sha256-of-content LF` for each file, sorted by path: task.toml, instruction.md, README.md, trajectory.json and everything below
 * environment/, tests/, solution/ and steps/, without what the task's .gitignore (or a short default list) names, and without what a .harborignore leaves out of tests
 * and solutions. Links to files count with the content of their target; linked directories are not entered.
 */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile, readdir, realpath, stat } from "node:fs/promises";
import { join, relative } from "node:path";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { parseIgnore, type IgnoreRules } from "./gitignore.ts";
import { taskFileFilter } from "./file-filter.ts";

const SINGLE_FILES = ["task.toml", "instruction.md", "README.md", "trajectory.json"];
const DIRECTORIES = ["environment", "tests", "solution", "steps"];
const DEFAULT_IGNORES = parseIgnore("__pycache__/\n*.pyc\n.DS_Store\n*.swp\n*.swo\n*~");

/** `sha256:...` of the task in `directory`. */
export async function taskDigest(directory: string): Promise<string> {
  return digestOf(directory, await taskFiles(directory));
}

/** `sha256:...` over everything below one directory of the task, for the verifier's record. Null directories have no content. */
export async function treeDigest(directories: readonly (string | null)[]): Promise<string> {
  const outer = createHash("sha256");
  for (const directory of directories) {
    if (directory === null) continue;
    const files: string[] = [];
    await collect(directory, directory, () => false, files);
    for (const file of files.sort(byCodePoint)) outer.update(`${file}\0${await fileHash(join(directory, file))}\n`);
    outer.update("\n");
  }
  return `sha256:${outer.digest("hex")}`;
}

/** The task's files that count, as sorted relative paths. */
export async function taskFiles(directory: string): Promise<readonly string[]> {
  const root = await realpath(directory);
  const filter = taskFileFilter(root);
  const files: string[] = [];
  for (const name of SINGLE_FILES) if (await isFile(join(root, name))) files.push(name);
  for (const name of DIRECTORIES) {
    const path = join(root, name);
    if ((await stat(path).catch(() => null))?.isDirectory()) await collect(root, path, (file, isDirectory) => filter.excludes(file, isDirectory), files);
  }
  const ignore = await ignoreRules(root);
  return files.filter((file) => ignore.check(file) !== true).sort(byCodePoint);
}

async function digestOf(directory: string, files: readonly string[]): Promise<string> {
  const outer = createHash("sha256");
  for (const file of files) outer.update(`${file}\0${await fileHash(join(directory, file))}\n`);
  return `sha256:${outer.digest("hex")}`;
}

async function collect(root: string, directory: string, excluded: (path: string, isDirectory: boolean) => boolean | Promise<boolean>, files: string[]): Promise<void> {
  if (root !== directory && (await excluded(directory, true))) return;
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) await collect(root, path, excluded, files);
    else if (!(await excluded(path, false)) && (await isFile(path))) files.push(relative(root, path));
    if (files.length > LIMITS.treeEntries) throw new MwError("limit_exceeded", `${root} has more than ${LIMITS.treeEntries} files`, { facts: { directory: root } });
  }
}

async function ignoreRules(root: string): Promise<IgnoreRules> {
  const text = await readFile(join(root, ".gitignore"), "utf8").catch(() => null);
  return text === null ? DEFAULT_IGNORES : parseIgnore(text);
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => null))?.isFile() ?? false;
}

async function fileHash(path: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(path)) hash.update(chunk as Uint8Array);
  return hash.digest("hex");
}

/** By code points, as UTF-8 bytes and Python sort; JavaScript's own order differs above U+FFFF. */
function byCodePoint(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}


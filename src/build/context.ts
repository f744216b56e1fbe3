/**
 * The build context: the only host files that a build sees. Sources are matched inside it without following links out of it, `.dockerignore` applied, and staged
 * into a directory of their own that has exactly what the image is to get.
 */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { chmod, copyFile, lstat, mkdir, readFile, readdir, readlink, realpath, symlink, utimes, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { MwError } from "../core/errors.ts";
import { parseDockerignore, pathMatcher, type IgnoreRules } from "./dockerignore.ts";

export interface BuildContext {
  readonly directory: string;
  readonly ignore: IgnoreRules;
}

/** Opens a context directory; `<Dockerfile>.dockerignore` beside the Dockerfile wins over `.dockerignore`, as in Docker. */
export async function openContext(directory: string, dockerfile: string): Promise<BuildContext> {
  for (const path of [`${dockerfile}.dockerignore`, join(directory, ".dockerignore")]) {
    const text = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return null;
      throw error;
    });
    if (text !== null) return { directory, ignore: parseDockerignore(text) };
  }
  return { directory, ignore: parseDockerignore("") };
}

export interface StagedSource {
  /** Host path of the staged file or directory. */
  readonly path: string;
  readonly name: string;
  readonly isDirectory: boolean;
}

/**
 * Copies what the patterns match into `target` (an empty directory), one numbered entry per source. `mode` overrides every mode. Throws `invalid_image` when a
 * pattern matches nothing.
 */
export async function stageSources(
  context: BuildContext,
  sources: readonly string[],
  options: { readonly target: string; readonly exclude: readonly string[]; readonly mode: number | null; readonly where: string },
): Promise<readonly StagedSource[]> {
  const staged: StagedSource[] = [];
  const excluded = options.exclude.map((pattern) => pathMatcher(pattern.replace(/^\/+/, "")));
  const keep = (path: string): boolean => !context.ignore.ignores(path) && !excluded.some((matches) => matches(path) || matches(basename(path)));
  for (const source of sources) {
    const pattern = normalise(source);
    const matches = pattern === "." ? [""] : await glob(context, pattern);
    if (matches.length === 0) {
      throw new MwError("invalid_image", `${options.where}: ${source} is not in the build context ${context.directory}`, {
        fix: "Check the path (it is relative to the context and may be left out by .dockerignore).",
      });
    }
    for (const match of matches) {
      const from = await followed(context, match, source, options.where);
      const stats = await lstat(from);
      const path = join(options.target, String(staged.length));
      await stage(from, match, path, { keep, mode: options.mode, enterIgnored: context.ignore.hasExceptions });
      staged.push({ path, name: match === "" ? "." : basename(match), isDirectory: stats.isDirectory() });
    }
  }
  return staged;
}

/** A source that is itself a link stands for what it leads to, as in Docker, as long as that is in the context. Links below a source stay links. */
async function followed(context: BuildContext, match: string, source: string, where: string): Promise<string> {
  const path = join(context.directory, match);
  if (!(await lstat(path)).isSymbolicLink()) return path;
  const [target, root] = await Promise.all([realpath(path).catch(() => ""), realpath(context.directory)]);
  if (target.startsWith(`${root}/`)) return target;
  throw new MwError("invalid_image", `${where}: ${source} is a link that leads out of the build context`, { fix: "Copy what it leads to into the context." });
}

/** Context paths are absolute or relative to the same place; `..` cannot leave it. */
function normalise(source: string): string {
  const parts: string[] = [];
  for (const part of source.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return parts.length === 0 ? "." : parts.join("/");
}

/** Paths in the context that match, segment by segment; a link on the way is never followed. */
async function glob(context: BuildContext, pattern: string): Promise<string[]> {
  let found = [""];
  for (const segment of pattern.split("/")) {
    const matches = pathMatcher(segment);
    const next: string[] = [];
    for (const parent of found) {
      const directory = join(context.directory, parent);
      const stats = await lstat(directory).catch(() => null);
      if (stats === null || !stats.isDirectory()) continue;
      for (const name of (await readdir(directory)).sort()) if (name === segment || matches(name)) next.push(parent === "" ? name : `${parent}/${name}`);
    }
    found = next;
  }
  return found.filter((path) => !context.ignore.ignores(path) || context.ignore.hasExceptions);
}

interface StageOptions {
  readonly keep: (path: string) => boolean;
  readonly mode: number | null;
  readonly enterIgnored: boolean;
}

async function stage(from: string, path: string, to: string, options: StageOptions): Promise<void> {
  const stats = await lstat(from);
  if (stats.isDirectory()) {
    await mkdir(to, { recursive: true });
    for (const name of await readdir(from)) {
      const child = path === "" ? name : `${path}/${name}`;
      const childStats = await lstat(join(from, name));
      if (options.keep(child) || (childStats.isDirectory() && options.enterIgnored)) await stage(join(from, name), child, join(to, name), options);
    }
    await chmod(to, options.mode ?? stats.mode & 0o7777);
  } else if (stats.isSymbolicLink()) {
    await mkdir(dirname(to), { recursive: true });
    await symlink(await readlink(from), to);
    return;
  } else if (stats.isFile()) {
    await mkdir(dirname(to), { recursive: true });
    await copyFile(from, to);
    await chmod(to, options.mode ?? stats.mode & 0o7777);
  } else return;
  await utimes(to, stats.atime, stats.mtime);
}

/** Writes a heredoc as a file source. */
export async function stageHeredoc(target: string, name: string, content: string, mode: number | null): Promise<StagedSource> {
  const path = join(target, `heredoc-${name}`);
  await writeFile(path, content);
  await chmod(path, mode ?? 0o644);
  return { path, name, isDirectory: false };
}

/** Digest over names, types, modes and contents, not over times: the key under which a copy step is cached. */
export async function hashTree(path: string): Promise<string> {
  const hash = createHash("sha256");
  await addToHash(path, "", hash);
  return hash.digest("hex");
}

async function addToHash(path: string, name: string, hash: ReturnType<typeof createHash>): Promise<void> {
  const stats = await lstat(path);
  hash.update(`${name}\0${(stats.mode & 0o170000).toString(8)}\0${(stats.mode & 0o7777).toString(8)}\0`);
  if (stats.isDirectory()) {
    for (const child of (await readdir(path)).sort()) await addToHash(join(path, child), `${name}/${child}`, hash);
  } else if (stats.isSymbolicLink()) hash.update(await readlink(path));
  else {
    hash.update(`${stats.size}\0`);
    for await (const chunk of createReadStream(path)) hash.update(chunk as Uint8Array);
  }
}

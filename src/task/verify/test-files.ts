/** The tests of a task or step as they go into the verifier's machine. */
import { readdir, readFile, realpath, stat } from "node:fs/promises";
import { join, relative } from "node:path";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { taskFileFilter } from "../file-filter.ts";
import type { Task, TaskStep } from "../task.ts";
import type { ImageUser } from "./image-users.ts";

export interface TestFiles {
  /** Host directories in the order in which they are laid over each other at /tests. */
  readonly directories: readonly string[];
  /** Content of the script that runs, with LF line ends. */
  readonly script: Uint8Array;
  readonly executable: boolean;
  /** Shell scripts whose CRLF line ends were made LF, by their path below /tests. */
  readonly normalised: ReadonlyMap<string, Uint8Array>;
  /** Which reward files the tests mention anywhere. */
  readonly mentions: { readonly json: boolean; readonly text: boolean };
  /** Paths left out by .harborignore, per directory. */
  readonly excluded: readonly (readonly string[])[];
}

/** Files larger than this are not searched for the names of the reward files. */
const SEARCH_BYTES = 1024 * 1024;

export async function readTestFiles(task: Task, step: TaskStep | null): Promise<TestFiles> {
  const directories = [task.tests, step?.tests ?? null].filter((directory) => directory !== null);
  const normalised = new Map<string, Uint8Array>();
  const excluded: string[][] = [];
  const mentions = { json: false, text: false };
  let script: Uint8Array | null = null;
  let executable = false;
  const root = await realpath(task.directory);
  const filter = taskFileFilter(root);
  for (const directory of directories) {
    const left: string[] = [];
    for await (const path of walk(directory, async (path, isDirectory) => {
      const out = await filter.excludes(join(root, relative(task.directory, path)), isDirectory);
      if (out) left.push(relative(directory, path));
      return out;
    })) {
      const name = relative(directory, path);
      const bytes = await readFile(path);
      if (bytes.includes("reward.json")) mentions.json = true;
      if (bytes.includes("reward.txt")) mentions.text = true;
      const clean = /\.(?:sh|bash)$/.test(name) && bytes.includes("\r\n") ? Buffer.from(bytes.toString("latin1").replaceAll("\r\n", "\n"), "latin1") : bytes;
      if (clean !== bytes) normalised.set(name, clean);
      else normalised.delete(name);
      if (name === "test.sh") {
        script = clean;
        executable = ((await stat(path)).mode & 0o111) === 0o111;
      }
    }
    excluded.push(left);
  }
  if (script === null) throw new MwError("invalid_task", `The task ${task.directory} has no tests/test.sh${step === null ? "" : ` for the step ${step.name}`}`, { fix: "Add tests/test.sh.", facts: { directory: task.directory } });
  return { directories, script, executable, normalised, mentions, excluded };
}

/** Puts the tests at /tests, owned by root; nothing that was there before stays. Everybody may read them, or, with `reader`, only root and that user's group. */
export async function uploadTests(sandbox: Sandbox, tests: TestFiles, reader: ImageUser | null, signal: AbortSignal): Promise<readonly string[]> {
  const { files } = sandbox;
  const notes: string[] = [];
  await files.remove("/tests");
  await files.mkdir("/tests", access(reader));
  for (const [index, directory] of tests.directories.entries()) {
    const exclude = (tests.excluded[index] ?? []).map((path) => path.replace(/[*?[\]\\]/g, "?"));
    const report = await files.upload(directory, "/tests", { owner: "0:0", exclude, signal });
    for (const { path, reason } of report.refused) notes.push(`tests/${path} was not copied: ${reason}`);
  }
  for (const [path, content] of tests.normalised) await files.write(`/tests/${path}`, content, { mode: 0o755, owner: "0:0" });
  // Run through its interpreter it needs no execute bit, but other scripts may call it by its name.
  if (!tests.normalised.has("test.sh") && !tests.executable) await files.write("/tests/test.sh", tests.script, { mode: 0o755, owner: "0:0" });
  if (tests.normalised.size > 0) notes.push(`CRLF line ends were made LF in ${[...tests.normalised.keys()].map((path) => `tests/${path}`).join(", ")}`);
  return notes;
}

/** Of the directory: what is in it has modes of its own. */
function access(reader: ImageUser | null): { readonly mode: number; readonly owner: string } {
  const [, uid, gid] = /^(\d+):(\d+)$/.exec(reader?.exec ?? "") ?? [];
  if (uid === undefined || gid === undefined) return { mode: 0o755, owner: "0:0" };
  // Not by the group of root, which is that of users without an entry as well.
  return uid === "0" || gid === "0" ? { mode: 0o700, owner: `${uid}:0` } : { mode: 0o750, owner: `0:${gid}` };
}

/** Regular files below a directory, small enough to be looked into. */
async function* walk(directory: string, excluded: (path: string, isDirectory: boolean) => Promise<boolean>, depth = 0): AsyncGenerator<string> {
  if (depth > 64) throw new MwError("limit_exceeded", `${directory} is nested deeper than 64 directories`);
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (await excluded(path, entry.isDirectory())) continue;
    if (entry.isDirectory()) yield* walk(path, excluded, depth + 1);
    else {
      const info = await stat(path).catch(() => null);
      if (info?.isFile() && info.size <= (entry.name === "test.sh" ? LIMITS.verifierOutputBytes : SEARCH_BYTES)) yield path;
    }
  }
}

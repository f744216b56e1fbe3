/** Task directories written for one test, in a temporary directory that the caller removes. */
import { mkdir, mkdtemp, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

export type Files = Readonly<Record<string, string | Uint8Array | { readonly link: string }>>;

export const MINIMAL: Files = {
  "task.toml": '[environment]\ndocker_image = "host"\n',
  "instruction.md": "Do it.\n",
  "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
  "solution/solve.sh": "true\n",
};

export async function temporaryDirectory(): Promise<string> {
  return mkdtemp(join(tmpdir(), "mw-task-"));
}

/** Writes files below `root/name` and returns that directory. A null value leaves one of `base` out. */
export async function writeTask(root: string, name: string, files: Readonly<Record<string, Files[string] | null>> = {}, base: Files = MINIMAL): Promise<string> {
  const directory = join(root, name);
  await mkdir(directory, { recursive: true });
  for (const [path, content] of Object.entries({ ...base, ...files })) {
    if (content === null) continue;
    const file = join(directory, path);
    await mkdir(dirname(file), { recursive: true });
    if (typeof content === "object" && "link" in content) await symlink(content.link, file);
    else await writeFile(file, content);
  }
  return directory;
}

import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { temporaryDirectory, writeTask } from "../../test/support/task-fixture.ts";
import { readDataset, type DatasetEntry } from "./dataset.ts";
import { taskDigest } from "./digest.ts";

let root = "";
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

/** `name` of each task that was read, `!code message` of each that was not. */
async function read(...inputs: string[]): Promise<string[]> {
  const found: string[] = [];
  for await (const entry of readDataset(inputs)) found.push(summary(entry));
  return found;
}

const summary = (entry: DatasetEntry): string => (entry.kind === "task" ? entry.task.name : `!${entry.error.code} ${entry.error.message} ${entry.error.fix ?? ""}`);

describe("inputs", () => {
  test("a task, its task.toml, a directory of tasks by name, nested families", async () => {
    const set = join(root, "set");
    for (const name of ["b", "a", "more/c", ".hidden/d"]) await writeTask(set, name);
    await writeFile(join(set, "README.md"), "x");
    expect(await read(join(set, "a"), join(set, "b/"), join(set, "a/task.toml"))).toEqual(["a", "b", "a"]);
    expect(await read(set)).toEqual(["a", "b", "c"]);
  });

  test("broken ones fail alone and say where", async () => {
    const set = join(root, "mixed");
    await writeTask(set, "good");
    await writeTask(set, "bad", { "task.toml": "x = \n" });
    await writeTask(set, "no-toml", { "task.toml": null });
    const found = await read(join(set, "god"), set, join(root, "nowhere/at/all"));
    expect(found).toEqual([
      expect.stringMatching(/^!not_found There is nothing at .*god Did you mean .*good\?/),
      expect.stringMatching(/^!invalid_task .*bad\/task\.toml:1/),
      "good",
      expect.stringMatching(/^!invalid_task .*no-toml has an instruction\.md but no task\.toml/),
      expect.stringMatching(/^!not_found/),
    ]);
  });

  test("an empty directory and a file of another kind", async () => {
    await mkdir(join(root, "empty"));
    await writeFile(join(root, "x.txt"), "x");
    expect(await read(join(root, "empty"), join(root, "x.txt"))).toEqual([
      expect.stringMatching(/^!invalid_input .*holds no tasks/),
      expect.stringMatching(/^!invalid_input .*not one that names tasks/),
    ]);
  });
});

describe("dataset.toml", () => {
  test("finds tasks by directory and by their own name, checks digests", async () => {
    const set = join(root, "manifest");
    const one = await writeTask(set, "one");
    await writeTask(set, "elsewhere", { "task.toml": '[task]\nname = "org/two"\n[environment]\ndocker_image = "host"\n' });
    await writeFile(
      join(set, "dataset.toml"),
      `[dataset]\nname = "org/set"\n[[tasks]]\nname = "org/one"\ndigest = "${await taskDigest(one)}"\n[[tasks]]\nname = "org/two"\n[[tasks]]\nname = "org/three"\n[[tasks]]\nname = "org/one"\ndigest = "sha256:${"0".repeat(64)}"\n[[tasks]]\ndigest = "x"\n[[tasks]]\nname = "org/../../etc"\n`,
    );
    const expected = [
      "one",
      "org/two",
      expect.stringMatching(/^!not_found .*names the task org\/three/),
      expect.stringMatching(/^!invalid_task .*not the pinned one: its digest is sha256:/),
      expect.stringMatching(/^!invalid_input .*tasks\[4\] has no name/),
      expect.stringMatching(/^!not_found/),
    ];
    expect(await read(join(set, "dataset.toml"))).toEqual(expected);
    expect(await read(set)).toEqual(expected);
  });

  test("not TOML, no tasks", async () => {
    await writeFile(join(root, "bad.toml"), "[dataset\n");
    await writeFile(join(root, "none.toml"), "[dataset]\nname = 'a/b'\n");
    expect(await read(join(root, "bad.toml"), join(root, "none.toml"))).toEqual([expect.stringMatching(/bad\.toml:1/), expect.stringMatching(/has no \[\[tasks\]\]/)]);
  });
});

describe("registry.json", () => {
  test("paths beside it, repositories that are not here, one dataset of several", async () => {
    const set = join(root, "registry");
    await writeTask(set, "tasks/one");
    const file = join(set, "registry.json");
    await writeFile(
      file,
      JSON.stringify([
        { name: "d", version: "1", tasks: [{ name: "one", path: "tasks/one" }, { name: "far", git_url: "https://x.example/r.git", git_commit_id: "abc", path: "tasks/far" }] },
        { name: "e", version: "2", tasks: [{ name: "nopath" }] },
      ]),
    );
    expect(await read(file)).toEqual(["one", expect.stringMatching(/^!not_found .*repository https:\/\/x\.example\/r\.git \(abc\)/), expect.stringMatching(/nopath has no path/)]);
    expect(await read(`${file}#d@1`)).toHaveLength(2);
    expect(await read(`${file}#dd`)).toEqual([expect.stringMatching(/has no dataset dd/)]);
    await writeFile(file, "{");
    expect(await read(file)).toEqual([expect.stringMatching(/is not JSON/)]);
  });
});

describe("JSON Lines", () => {
  test("is a stream of paths; bad lines fail alone", async () => {
    const set = join(root, "lines");
    await writeTask(set, "one");
    await writeFile(join(set, "set.jsonl"), `\uFEFF"one"\r\n\n{"path": "one", "digest": "sha256:${"0".repeat(64)}"}\nnope\n{"x": 1}\n${"a".repeat(2 * 1024 * 1024)}\n{"task": "one"}`);
    expect(await read(join(set, "set.jsonl"))).toEqual([
      "one",
      expect.stringMatching(/not the pinned one/),
      expect.stringMatching(/set\.jsonl:4 is not JSON/),
      expect.stringMatching(/set\.jsonl:5 names no task/),
      expect.stringMatching(/set\.jsonl:6 is longer than/),
      "one",
    ]);
  });

  test("is read no further than asked", async () => {
    const set = join(root, "long");
    await writeTask(set, "one");
    await writeFile(join(set, "set.jsonl"), '"one"\n'.repeat(200_000));
    let seen = 0;
    for await (const entry of readDataset([join(set, "set.jsonl")])) {
      expect(entry.kind).toBe("task");
      if (++seen === 3) break;
    }
    expect(seen).toBe(3);
  });
});

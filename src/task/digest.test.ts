import { rm } from "node:fs/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { temporaryDirectory, writeTask, type Files } from "../../test/support/task-fixture.ts";
import { taskDigest, taskFiles, treeDigest } from "./digest.ts";

const BASE: Files = {
  "task.toml": 'version = "1.0"\n',
  "instruction.md": "Do it.\n",
  "environment/Dockerfile": "FROM debian\n",
  "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
  "solution/solve.sh": "true\n",
};

/** The digests were computed with Harbor 0.26.0's own packager over the same files. */
const GOLDEN: { name: string; files: Readonly<Record<string, Files[string] | null>>; digest: string }[] = [
  { name: "plain", files: {}, digest: "sha256:d4cb4c59c5d927f27df7ad691f75508fcadeb1f4a295de9b0278385952b75cfb" },
  {
    name: "default ignores, extra files, names beyond U+FFFF",
    files: {
      "README.md": "r",
      "trajectory.json": "{}",
      "notes.txt": "not counted",
      "environment/data/ü 北.txt": "u",
      "environment/\u{1F600}.txt": "e",
      "environment/\uFFEE.txt": "h",
      "environment/__pycache__/a.pyc": "c",
      "tests/x.pyc": "c",
      "tests/a~": "c",
      "environment/.DS_Store": "c",
      "environment/.env": "A=1",
    },
    digest: "sha256:a97c8c1b17268fd4842416e4d55e17dbf178b2526141595017bb222a2fce43cc",
  },
  {
    name: ".gitignore",
    files: {
      ".gitignore": "*.log\n!keep.log\n/environment/build/\ntests/**/tmp\n# c\n\\#lit\nfoo*/\n",
      "environment/a.log": "1",
      "environment/keep.log": "2",
      "environment/build/x": "3",
      "environment/sub/build/y": "4",
      "tests/a/b/tmp/z": "5",
      "tests/#lit": "6",
      "solution/foobar/q": "7",
      "solution/foobar2": "8",
      "environment/__pycache__/k": "9",
    },
    digest: "sha256:9482e8f173aed305ba68eecd37b939c21198103a3d80f4483db1b3c3480c5749",
  },
  {
    name: ".harborignore",
    files: {
      "tests/.harborignore": "*.big\n!important.big\nsecret/\n",
      "tests/a.big": "1",
      "tests/important.big": "2",
      "tests/secret/x": "3",
      "tests/sub/.harborignore": "!b.big\n",
      "tests/sub/b.big": "4",
      "tests/sub/c.big": "5",
      "environment/.harborignore": "*",
      "environment/x.big": "6",
    },
    digest: "sha256:86eadcbec63088a5e19edc4889b2707f1f305812e63cb3cd8114b630ff71a79b",
  },
  {
    name: "steps",
    files: {
      "instruction.md": null,
      "steps/one/instruction.md": "a",
      "steps/one/tests/test.sh": "b",
      "steps/two/workdir/setup.sh": "c",
      "steps/one/tests/.harborignore": "n*\n",
      "steps/one/tests/note": "x",
    },
    digest: "sha256:6850d38cf1899acf7bcfd615c364ff6cfc829c69516e1bc820ed6290878c7b46",
  },
  {
    name: "links",
    files: {
      "environment/real.txt": "hello",
      "environment/link.txt": { link: "real.txt" },
      "environment/dirlink": { link: "../tests" },
      "environment/dangling": { link: "nowhere" },
    },
    digest: "sha256:6f42652a6c01a4551241a8632c5ee9f3b559e7ff4018d3052aae038876514968",
  },
];

let root = "";
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

describe("task digest", () => {
  test.each(GOLDEN)("as Harbor computes it: $name", async ({ name, files, digest }) => {
    const directory = await writeTask(root, `golden ${name}`, files, BASE);
    expect(await taskFiles(directory)).not.toHaveLength(0);
    expect(await taskDigest(directory)).toBe(digest);
  });

  test("changes with content and name, not with files beside the task's own", async () => {
    const directory = await writeTask(root, "change", {}, BASE);
    const before = await taskDigest(directory);
    await writeTask(root, "change", { "scratch/other": "x" }, BASE);
    expect(await taskDigest(directory)).toBe(before);
    await writeTask(root, "change", { "tests/test.sh": "echo 0\n" }, BASE);
    expect(await taskDigest(directory)).not.toBe(before);
  });

  test("of the tests that ran covers every file", async () => {
    const directory = await writeTask(root, "tree", { "tests/sub/a": "1" }, BASE);
    const before = await treeDigest([`${directory}/tests`]);
    await writeTask(root, "tree", { "tests/sub/a": "2" }, BASE);
    expect(await treeDigest([`${directory}/tests`])).not.toBe(before);
    expect(await treeDigest([null])).toMatch(/^sha256:[0-9a-f]{64}$/);
  });
});

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, expect, it } from "vitest";
import type { RootFilesystem, Workspace, WorkspaceChange } from "../../sandbox/sandbox.ts";
import type { Task } from "../task.ts";
import { cleanWorkspace, type CleanJournal } from "./clean-workspace.ts";
import { imageView } from "./image-view.ts";
import type { Sanitation } from "./sanitation.ts";

const directory = mkdtempSync(join(tmpdir(), "mw-clean-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const SITE = "/usr/lib/python3/dist-packages";
for (const path of ["/usr/bin/bash", "/usr/bin/python3", "/etc/ld.so.cache", "/etc/passwd", `${SITE}/pytest/__init__.py`, "/app/main.py"]) {
  mkdirSync(join(directory, dirname(path)), { recursive: true });
  writeFileSync(join(directory, path), "");
}
const root = { digest: "sha256:a", layers: [directory], parts: [], env: {}, workdir: "/app", user: "" } as unknown as RootFilesystem;

const LEFT: Readonly<Record<string, WorkspaceChange["kind"]>> = {
  "/app/main.py": "changed",
  "/app/__pycache__/main.cpython-311.pyc": "added",
  "/usr/bin/bash": "changed",
  "/usr/bin/python3": "removed",
  "/etc/ld.so.cache": "changed",
  "/tests/planted": "added",
  [`${SITE}/__editable__.x.pth`]: "added",
  [`${SITE}/__editable___x_finder.py`]: "added",
};
const TEXTS: Readonly<Record<string, string>> = {
  [`${SITE}/__editable__.x.pth`]: "import __editable___x_finder; __editable___x_finder.install()\n",
  [`${SITE}/__editable___x_finder.py`]: "MAPPING: dict[str, str] = {'x': '/app/x'}\n",
};

class Killed extends Error {}

/** What an agent left, and who cleans it, who dies at the start of the given piece of work. */
class Left {
  readonly files = new Map(Object.entries(LEFT));
  written: Sanitation | null = null;
  #pieces = 0;

  async clean(diesAt = Number.POSITIVE_INFINITY): Promise<Sanitation> {
    this.#pieces = 0;
    const work = (): void => {
      if (this.#pieces++ === diesAt) throw new Killed();
    };
    const workspace = {
      changes: async () => [...this.files].map(([path, kind]) => ({ path: Buffer.from(path), kind, type: "file", mode: 0o644, size: 1, target: null })),
      read: async (path: Uint8Array) => (this.files.has(Buffer.from(path).toString()) ? Buffer.from(TEXTS[Buffer.from(path).toString()] ?? "x") : null),
      discard: async (paths: readonly Uint8Array[]) => {
        for (const path of paths.map((one) => Buffer.from(one).toString())) {
          work();
          for (const file of this.files.keys()) if (file === path || file.startsWith(`${path}/`)) this.files.delete(file);
        }
      },
    } as unknown as Workspace;
    const journal: CleanJournal = {
      earlier: this.written,
      write: async (all) => {
        work();
        this.written = all;
      },
    };
    return await cleanWorkspace(workspace, { task: { environment: { workdir: null } } as unknown as Task, root, image: imageView(root), agentOwns: [], instruction: "", notes: ["archived"], journal });
  }

  get pieces(): number {
    return this.#pieces;
  }
}

it("is cleaned as by one, and said to be, by those of whom each but the last dies at any moment", async () => {
  const whole = new Left();
  const { discard: _, ...said } = await whole.clean();
  expect(said).toMatchObject({ restored: expect.arrayContaining(["/usr/bin/bash", "/usr/bin/python3"]) as unknown, removed: expect.arrayContaining(["/tests/planted"]) as unknown, refreshLoaderCache: true, editable: [{}], notes: ["archived", expect.stringContaining("compiled Python")] });
  expect([...whole.files.keys()]).toContain("/app/main.py");
  expect(whole.pieces).toBeGreaterThan(5);
  for (let first = 0; first < whole.pieces; first++) {
    for (const second of [0, 1, first, first + 1]) {
      const left = new Left();
      await expect(left.clean(first)).rejects.toThrow(Killed);
      await left.clean(second).catch((error: unknown) => expect(error).toBeInstanceOf(Killed));
      const { discard: _discard, ...again } = await left.clean();
      expect(again).toEqual(said);
      expect([...left.files]).toEqual([...whole.files]);
    }
  }
});

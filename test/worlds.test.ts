/** The shipped tasks, without running them: complete, loadable, uniquely named, offline, graded by the shared grader, and with instructions that give no answer away. */
import { readFile, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parse } from "smol-toml";
import { beforeAll, describe, expect, it } from "vitest";
import { loadTask, type Task } from "../src/task/index.ts";

const WORLDS = fileURLToPath(new URL("../worlds/", import.meta.url));
const TERMINAL = join(WORLDS, "terminal");
const WRONG = fileURLToPath(new URL("./worlds/wrong/", import.meta.url));
const FAMILIES = ["repair", "data", "git", "sysadmin", "build"];
/** Only these may stand in the Dockerfile of a task: what the built-in builder can do. */
const INSTRUCTIONS = /^(FROM|RUN|COPY|ENV|WORKDIR|USER|ARG)$/;
const NETWORK = /https?:\/\/(?!(?:127\.0\.0\.1|localhost)\b|[\w.-]*\bexample\b)|\b(?:apt-get|apt|pip3?|npm|npx|cpan|curl|wget|git clone (?:https?|ssh|git@))\s+(?:install|update|-(?!H)|https?|i\b)/;

const entries = await readdir(TERMINAL, { withFileTypes: true });
const slugs = entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);

/** Files below a directory, as paths relative to it. */
async function files(directory: string): Promise<string[]> {
  const found = await readdir(directory, { withFileTypes: true, recursive: true });
  return found.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name).slice(directory.length + 1));
}

/** One for an ordinary task, one for each step of one with steps: where its parts are. */
function parts(task: Task): readonly { instruction: string; tests: string | null; solution: string | null }[] {
  if (task.steps.length > 0) return task.steps;
  return [{ instruction: task.instruction, tests: task.tests, solution: task.solution.directory }];
}

describe("worlds/terminal", () => {
  const tasks = new Map<string, Task>();
  beforeAll(async () => {
    for (const slug of slugs) tasks.set(slug, await loadTask(join(TERMINAL, slug)));
  });
  const taskOf = (slug: string): Task => {
    const task = tasks.get(slug);
    if (task === undefined) throw new Error(`${slug} was not loaded`);
    return task;
  };

  it("covers five kinds of work, with enough tasks of each", () => {
    expect(slugs.length).toBeGreaterThanOrEqual(18);
    const families = [...tasks.values()].map((task) => task.family);
    for (const family of FAMILIES) expect(families.filter((name) => name === family).length, family).toBeGreaterThanOrEqual(3);
    expect(families.filter((name) => !FAMILIES.includes(name))).toEqual([]);
  });

  it("names every task once, by its directory", () => {
    for (const slug of slugs) expect(taskOf(slug).name).toBe(`manyworlds/${slug}`);
    expect(new Set([...tasks.values()].map((task) => task.digest)).size).toBe(slugs.length);
  });

  it("lists every task in the README", async () => {
    const readme = await readFile(join(WORLDS, "README.md"), "utf8");
    for (const slug of slugs) expect(readme).toContain(`| \`${slug}\` | ${taskOf(slug).family} |`);
  });

  it("has a task for each feature of the format that it is to exercise", () => {
    const all = [...tasks.values()];
    expect(all.some((task) => task.verifier.services.length > 0), "a service").toBe(true);
    expect(all.some((task) => task.steps.length > 1), "steps").toBe(true);
    expect(all.some((task) => task.artifacts.length > 0), "artifacts").toBe(true);
    expect(all.some((task) => task.environment.healthcheck !== null), "a health check").toBe(true);
  });

  it("starts from one image that needs no registry", async () => {
    const aliases = parse(await readFile("src/image/aliases.toml", "utf8"));
    expect(aliases["manyworlds/terminal"]).toMatch(/^mmdebstrap:bookworm(?:\+[a-z0-9.+-]+(?:,[a-z0-9.+-]+)*)$/);
  });

  describe.each(slugs)("%s", (slug) => {
    const root = join(TERMINAL, slug);

    it("declares limits, no network and a difficulty, and loads without warnings", () => {
      const task = taskOf(slug);
      expect(task.warnings).toEqual([]);
      expect(task.schemaVersion).toBe("1.4");
      expect(task.environment).toMatchObject({ network: "none", image: null });
      expect(task.environment.cpus).toBeGreaterThan(0);
      expect(task.environment.memoryBytes).toBeGreaterThanOrEqual(512 << 20);
      expect(task.environment.diskBytes).toBeGreaterThanOrEqual(256 << 20);
      expect(task.agent.timeoutMs).toBeGreaterThanOrEqual(300_000);
      expect(task.verifier.timeoutMs).toBeGreaterThanOrEqual(60_000);
      expect(["easy", "medium", "hard"]).toContain(task.metadata["difficulty"]);
    });

    it("has an instruction, a solution and tests of the right kind", async () => {
      for (const { instruction, tests, solution } of parts(taskOf(slug))) {
        expect(instruction.length).toBeGreaterThan(300);
        expect(instruction).toContain("/app");
        expect(instruction).not.toMatch(/(?<!\/app)\/(?:tests|solution|logs)|verifier|grader|hidden (?:input|test)/i);
        if (tests === null || solution === null) throw new Error(`${slug} lacks tests or a solution`);
        expect((await stat(join(solution, "solve.sh"))).mode & 0o111).toBeGreaterThan(0);
        expect((await stat(join(tests, "test.sh"))).mode & 0o111).toBeGreaterThan(0);
        expect(await readFile(join(tests, "checks.py"), "utf8")).toContain("@check(");
        // Copies, since a task directory stands alone; cp worlds/support/* into tests/ after a change.
        for (const name of ["test.sh", "grade.py"]) expect(await readFile(join(tests, name), "utf8")).toBe(await readFile(join(WORLDS, "support", name), "utf8"));
      }
    });

    it("does not give its solution away in the instruction or the environment", async () => {
      const task = taskOf(slug);
      const environment = await Promise.all((await files(join(root, "environment"))).map((name) => readFile(join(root, "environment", name), "utf8")));
      for (const { instruction, solution } of parts(task)) {
        const lines = (await readFile(join(solution ?? "", "solve.sh"), "utf8")).split("\n").map((line) => line.trim());
        // Lines of code that are neither a schema which the instruction must state nor part of what the agent starts from.
        const telling = lines.filter((line) => line.length > 40 && !/^(#|CREATE TABLE|import |from )/.test(line) && !environment.some((text) => text.includes(line)));
        expect(telling.length, "lines of the solution to look for").toBeGreaterThan(0);
        const leaked = telling.filter((line) => instruction.includes(line) && !/PRIMARY KEY|add\|remove ITEM COUNT|retry \[-n/.test(line));
        expect(leaked).toEqual([]);
      }
      expect(environment.some((text) => text.includes("from grade import"))).toBe(false);
    });

    it("builds from the shared image, with nothing from the network", async () => {
      const dockerfile = await readFile(join(root, "environment", "Dockerfile"), "utf8");
      expect(dockerfile.split("\n")[0]).toBe("FROM manyworlds/terminal");
      for (const line of dockerfile.split("\n").filter((text) => /^[A-Z]/.test(text))) expect(line.split(" ")[0]).toMatch(INSTRUCTIONS);
      expect(dockerfile).not.toMatch(/\.\.\/|\bsolution\//);
      for (const name of await files(root)) {
        if (/\.(?:wlog|csv|jsonl|log|pub)$/.test(name)) continue;
        expect(NETWORK.exec(await readFile(join(root, name), "utf8"))?.[0] ?? null, name).toBeNull();
      }
    });

    it("says when it needs users besides root", async () => {
      const task = taskOf(slug);
      const texts = await Promise.all((await files(join(root, "environment"))).map((name) => readFile(join(root, "environment", name), "utf8")));
      const makes = texts.some((text) => /useradd|chown|^USER /m.test(text));
      expect(task.needsUsers || task.verifier.services.some(({ user }) => user !== null)).toBe(makes);
    });

    it("comes with a solution that looks right and is wrong", async () => {
      const wrong = await readdir(join(WRONG, slug));
      expect(wrong.length).toBeGreaterThan(0);
      for (const name of wrong) expect(await readFile(join(WRONG, slug, name), "utf8")).toMatch(/^# /);
    });
  });
});

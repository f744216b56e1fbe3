/** The examples in the documentation are run as they stand there, and print what the documentation says. */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { expect, test } from "vitest";

const PAGES = ["README.md", "ARCHITECTURE.md", "SECURITY.md", "SPECIFICATION.md", "worlds/README.md", ...readdirSync("docs", { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".md")).map((name) => join("docs", name))];

function block(page: string, language: string): string {
  const match = new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, "m").exec(readFileSync(page, "utf8"));
  if (match?.[1] === undefined) throw new Error(`${page} has no ${language} block`);
  return match[1];
}

test("the TypeScript example of docs/sandbox.md", () => {
  const directory = mkdtempSync(join(tmpdir(), "mw-docs-"));
  try {
    mkdirSync(join(directory, "node_modules"));
    symlinkSync(resolve("."), join(directory, "node_modules/manyworlds"));
    writeFileSync(join(directory, "example.mts"), block("docs/sandbox.md", "ts"));
    const printed = execFileSync(process.execPath, ["--import", import.meta.resolve("tsx"), "example.mts"], { cwd: directory, encoding: "utf8", env: { ...process.env, MW_HOME: join(directory, "home") } });
    expect(printed).toBe(block("docs/sandbox.md", "text"));
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});

test("links between pages lead somewhere", () => {
  const broken: string[] = [];
  for (const page of PAGES) {
    for (const [, target = ""] of readFileSync(page, "utf8").matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)) {
      if (!/^https?:/.test(target) && !existsSync(join(dirname(page), target))) broken.push(`${page}: ${target}`);
    }
  }
  expect(PAGES.length).toBeGreaterThan(8);
  expect(broken).toEqual([]);
});

test("every `mw` command that the pages show exists", () => {
  const help = (path: readonly string[]): string => execFileSync(process.execPath, ["dist/cli/main.js", ...path, "--help"], { encoding: "utf8" });
  const known = new Map<string, string>();
  for (const page of PAGES) {
    for (const [, command = "", sub] of readFileSync(page, "utf8").matchAll(/(?:^|[\s`(])(?:\.\/)?mw ([a-z]+)(?: ([a-z]+)(?=[\s`]))?/gm)) {
      if (!known.has(command)) known.set(command, help([command]));
      if (sub !== undefined && ["sandbox", "image", "task"].includes(command)) help([command, sub]);
    }
  }
  expect(known.size).toBeGreaterThan(6);
});

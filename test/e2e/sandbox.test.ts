/** `mw sandbox` as a user runs it: one-shot commands, a held machine reached from other processes, exit codes, and nothing left. */
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { mortal } from "../support/mortal.ts";

const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
let base = "";
let image: TestRoot;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-cli-sandbox-"));
  image = makeTestRoot(base);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

const env = (): NodeJS.ProcessEnv => ({ PATH: process.env["PATH"], HOME: base, MW_HOME: join(base, "home") });

function mw(inputs: readonly string[], stdin = ""): { readonly code: number | null; readonly out: string; readonly err: string } {
  const result = spawnSync(process.execPath, [MAIN, "sandbox", ...inputs], { env: env(), input: stdin, encoding: "utf8", timeout: 150_000 });
  return { code: result.status, out: result.stdout, err: result.stderr };
}

const reference = (): string => `dir:${image.directory}`;

test("run: bytes pass through, the exit code is the command's, limits and deadlines are named, nothing is left", () => {
  expect(mw(["run", reference(), "--", "sh", "-c", "cat; exit 7"])).toMatchObject({ code: 7, out: "" });
  expect(mw(["run", "-i", "--env", "A=b c", reference(), "--", "sh", "-c", 'cat; echo "$A"; echo e >&2'], "in\n")).toMatchObject({ code: 0, out: "in\nb c\n" });
  const late = mw(["run", "--timeout", "300ms", reference(), "--", "sleep", "30"]);
  expect(late.code).toBe(124);
  expect(late.err).toContain("killed after 0.3 s");
  const document = JSON.parse(mw(["run", "--json", reference(), "--", "sh", "-c", "echo a; kill -9 $$"]).out) as unknown;
  expect(document).toMatchObject({ code: 137, signal: "SIGKILL", ended: "exited", cause: null, stdout: "a\n", stdoutBytes: 2, truncated: false });
  expect(readdirSync(join(base, "home/held"))).toEqual([]);
});

test("bad input is told what, where and how", () => {
  for (const inputs of [["run", reference()], ["run", "--memory", "lots", reference(), "--", "true"], ["exec", "nope", "--", "true"], ["rm", "nope"], ["cp", "/a", "/b"], ["run", "dir:/no/such", "--", "true"]]) {
    const { code, err } = mw(inputs);
    expect(code, inputs.join(" ")).toBe(2);
    expect(err, inputs.join(" ")).toMatch(/^error: .+\n {2}fix: /m);
  }
});

test("create holds a machine that other processes reach, until rm", async () => {
  const holder = mortal(spawn(process.execPath, [MAIN, "sandbox", "create", reference()], { env: env(), stdio: ["ignore", "pipe", "ignore"] }));
  const ended = new Promise<number | null>((resolve) => holder.once("exit", resolve));
  const id = await new Promise<string>((resolve, reject) => {
    holder.stdout.once("data", (data: Buffer) => resolve(data.toString().trim()));
    holder.once("exit", (code) => reject(new Error(`create ended with ${code}`)));
  });
  expect(JSON.parse(mw(["ls", "--json"]).out)).toMatchObject({ sandboxes: [{ sandbox: id, owner: "create" }] });
  writeFileSync(join(base, "file"), "moved\n");
  expect(mw(["cp", join(base, "file"), `${id}:/tmp/f`]).code).toBe(0);
  expect(mw(["exec", "--workdir", "/tmp", id, "--", "sh", "-c", "cat f; echo more >> f; exit 3"])).toMatchObject({ code: 3, out: "moved\n" });
  expect(mw(["cp", `${id}:/tmp/f`, join(base, "back")]).code).toBe(0);
  expect(readFileSync(join(base, "back"), "utf8")).toBe("moved\nmore\n");
  expect(mw(["rm", id])).toMatchObject({ code: 0, out: `${id}\n` });
  expect(await ended).toBe(0);
  expect(JSON.parse(mw(["ls", "--json"]).out)).toEqual({ sandboxes: [] });
  expect(readdirSync(join(base, "home/held"))).toEqual([]);
});

/** Starts a holder and resolves to its machine's id. */
async function held(inputs: readonly string[]): Promise<{ readonly id: string; readonly ended: Promise<number | null> }> {
  const holder = mortal(spawn(process.execPath, [MAIN, "sandbox", "create", ...inputs], { env: env(), stdio: ["ignore", "pipe", "pipe"] }));
  let err = "";
  holder.stderr.on("data", (data: Buffer) => (err += data.toString()));
  const ended = new Promise<number | null>((resolve) => holder.once("exit", resolve));
  const id = await new Promise<string>((resolve, reject) => {
    holder.stdout.once("data", (data: Buffer) => resolve(data.toString().trim()));
    holder.once("exit", (code) => reject(new Error(`create ended with ${code}: ${err}`)));
  });
  return { id, ended };
}

test("a held machine is kept, forked, paused and resumed by other processes, and another starts from its snapshot", async () => {
  const { id, ended } = await held([reference()]);
  expect(mw(["exec", id, "--", "sh", "-c", "echo one > /f"]).code).toBe(0);
  const taken = mw(["snapshot", id, "--name", "first"]);
  expect(taken).toMatchObject({ code: 0, out: expect.stringMatching(/^snap[0-9a-z]+\n$/), err: expect.stringContaining("stood still") });
  expect(mw(["exec", id, "--", "sh", "-c", "echo two > /f"]).code).toBe(0);
  const children = mw(["fork", id, "-n", "2"]).out.trim().split("\n");
  expect(children.length).toBe(2);
  expect(mw(["exec", children[0] ?? "", "--", "sh", "-c", "cat /f; hostname"]).out).toBe(`two\n${children[0]}\n`);
  expect(mw(["pause", id])).toMatchObject({ code: 0, out: `${id}\n` });
  expect(mw(["exec", id, "--", "true"])).toMatchObject({ code: 1, err: expect.stringContaining(`mw sandbox resume ${id}`) });
  expect((JSON.parse(mw(["ls", "--json"]).out) as { sandboxes: { sandbox: string; state: string }[] }).sandboxes.find(({ sandbox }) => sandbox === id)?.state).toBe("paused");
  expect(mw(["resume", id]).code).toBe(0);
  expect(mw(["exec", id, "--", "cat", "/f"]).out).toBe("two\n");
  // The parent goes, its children stay with the same holder.
  expect(mw(["rm", id]).code).toBe(0);
  expect(mw(["exec", children[1] ?? "", "--", "cat", "/f"]).out).toBe("two\n");
  const second = await held(["--snapshot", "first"]);
  expect(mw(["exec", second.id, "--", "cat", "/f"]).out).toBe("one\n");
  expect(mw(["rm", ...children, second.id]).code).toBe(0);
  expect([await ended, await second.ended]).toEqual([0, 0]);
  expect(mw(["snapshots", "export", "first", join(base, "first.snap")]).code).toBe(0);
  expect(mw(["snapshots", "rm", "first"]).code).toBe(0);
  expect(mw(["snapshots", "import", join(base, "first.snap"), "--name", "back"]).code).toBe(0);
  expect(mw(["snapshots", "ls"]).out).toContain("back");
  expect(mw(["run", "--snapshot", "back", reference(), "--", "cat", "/f"])).toMatchObject({ code: 0, out: "one\n" });
  expect(mw(["run", "--snapshot", "nope", reference(), "--", "cat", "/f"])).toMatchObject({ code: 2, err: expect.stringContaining("nope") });
  expect(mw(["snapshots", "rm", "back"]).code).toBe(0);
  expect(JSON.parse(mw(["snapshots", "gc", "--json"]).out)).toEqual({ layers: 0, bytes: 0 });
  expect(readdirSync(join(base, "home/held"))).toEqual([]);
  for (const part of ["records", "layers", "memory", "work", "holds"]) expect(readdirSync(join(base, "home/snapshots", part)), part).toEqual([]);
});

test("a paused machine goes with its holder, and leaves nothing on disk", async () => {
  const { id, ended } = await held([reference()]);
  expect(mw(["pause", id]).code).toBe(0);
  expect(mw(["snapshots", "ls"]).out).toContain(`paused ${id}`);
  expect(mw(["rm", id]).code).toBe(0);
  expect(await ended).toBe(0);
  expect(mw(["snapshots", "ls"]).out).toBe("");
});

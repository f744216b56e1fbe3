/** The official Python SDKs of the E2B protocol, unmodified, at two versions, against `mw serve` with real machines. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { leftoversAfter } from "../support/leftovers.ts";
import { python, pythonPath } from "../support/python.ts";
import { serve, type Served } from "../support/serve.ts";

const home = mkdtempSync(join(tmpdir(), "mw-e2b-python-"));
const KEY = `e2b_${"b2".repeat(20)}`;
let server: Served;
beforeAll(async () => {
  server = await serve({ home, key: KEY });
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(home, { recursive: true, force: true });
});

it.each(["2.51.0", "2.45.0"])("e2b %s", async (version) => {
  const packages = await pythonPath([`e2b==${version}`]);
  const end = await python([join(import.meta.dirname, "e2b-python.py")], { env: { PATH: process.env["PATH"], HOME: home, PYTHONPATH: packages, PYTHONDONTWRITEBYTECODE: "1", E2B_API_URL: server.url, E2B_SANDBOX_URL: server.url, E2B_API_KEY: KEY } });
  expect(end.stderr).toBe("");
  expect(JSON.parse(end.stdout)).toEqual({
    running: true,
    run: [0, "out b\n", "err\n"],
    exit: 5,
    listed: true,
    killed: true,
    killed_again: false,
    bytes: true,
    text: "text ü",
    entries: ["b", "t"],
    made: [true, false],
    exists: [true, false],
    missing: true,
    watched: true,
    terminal: [4, true],
    info: ["host", { from: "python ü" }, true],
    found: true,
    connected: "again\n",
    kill: [true, false],
    gone: false,
    several: [0, 1, 2, 3, 4],
  });
}, 600_000);

/** The official SDKs of the E2B protocol, unmodified, at two versions, against `mw serve` with real machines. */
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import * as newer from "e2b";
import * as older from "e2b-245";
import { afterAll, beforeAll, expect, it } from "vitest";
import { e2bSuite, type Sdk } from "../support/e2b-suite.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-e2b-"));
const home = join(base, "home");
// In the form that the older client checks keys for.
const KEY = `e2b_${"a1".repeat(20)}`;
let server: Served;
beforeAll(async () => {
  server = await serve({ home, key: KEY });
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

e2bSuite({ version: "2.51.0", sdk: newer, server: () => server, key: KEY });
// The same names, of the types of another version.
e2bSuite({ version: "2.45.0", sdk: older as unknown as Sdk, server: () => server, key: KEY });

const run = promisify(execFile);

it("the example of docs/e2b.md", async () => {
  const example = /^```js\n([\s\S]*?)^```/m.exec(readFileSync("docs/e2b.md", "utf8"))?.[1] ?? "";
  mkdirSync(join(base, "app"));
  symlinkSync(resolve("node_modules"), join(base, "app/node_modules"));
  writeFileSync(join(base, "app/app.mjs"), example);
  const { stdout } = await run(process.execPath, ["app.mjs"], { cwd: join(base, "app"), env: { PATH: process.env["PATH"], E2B_API_URL: server.url, E2B_SANDBOX_URL: server.url, E2B_API_KEY: KEY } });
  expect(stdout).toBe("Linux\n\n");
});

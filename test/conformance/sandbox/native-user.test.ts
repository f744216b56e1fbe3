/**
 * The same suite as an ordinary user: started again through setpriv, with subordinate ids and without. What cannot be enforced there is declared absent, and the
 * suite asserts that it is refused. The accounts exist in a mount namespace of the test's own; the host's files are not touched.
 */
import { execFile } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const CHECKOUT = fileURLToPath(new URL("../../../", import.meta.url));
const USER = 54_322;
const isRoot = process.getuid?.() === 0;
let base = "";

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-user-suite-"));
  chmodSync(base, 0o755);
  for (const name of ["checkout", "home", "tmp"]) mkdirSync(join(base, name));
  if (!isRoot) return;
  for (const name of ["home", "tmp"]) chownSync(join(base, name), USER, USER);
  writeFileSync(join(base, "passwd"), `${readFileSync("/etc/passwd", "utf8")}mwsuite:x:${USER}:${USER}::${join(base, "home")}:/bin/sh\n`);
  writeFileSync(join(base, "subid"), "mwsuite:800000:65536\n");
});

afterAll(() => rmSync(base, { recursive: true, force: true }));

interface SuiteReport {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly testResults: readonly { readonly message: string; readonly assertionResults: readonly { readonly status: string; readonly fullName: string; readonly failureMessages: readonly string[] }[] }[];
}

/** Runs the suite as the user. The checkout may lie where that user cannot look, so it is bound to where it can. */
async function runSuite(subordinate: boolean): Promise<SuiteReport> {
  const report = join(base, "tmp", `report-${subordinate}.json`);
  const binds = [`mount --bind ${CHECKOUT} ${base}/checkout`, `mount --bind ${base}/passwd /etc/passwd`, ...(subordinate ? ["subuid", "subgid"].map((name) => `mount --bind ${base}/subid /etc/${name}`) : [])];
  const environment = `env -i PATH=${process.env["PATH"] ?? ""} HOME=${base}/home TMPDIR=${base}/tmp`;
  const vitest = `${process.execPath} node_modules/vitest/vitest.mjs run --configLoader runner --reporter=json --outputFile=${report} test/conformance/sandbox/native.test.ts test/conformance/sandbox/native-layers.test.ts`;
  const script = `${binds.join(" && ")} && cd ${base}/checkout && exec setpriv --reuid=${USER} --regid=${USER} --clear-groups ${environment} ${vitest}`;
  const output = await new Promise<string>((resolve) => {
    execFile("unshare", ["--mount", "/bin/sh", "-c", script], { maxBuffer: 64 << 20, timeout: 400_000 }, (_error, stdout, stderr) => resolve(stdout + stderr));
  });
  try {
    return JSON.parse(readFileSync(report, "utf8")) as SuiteReport;
  } catch {
    throw new Error(`The suite wrote no report as an ordinary user:\n${output.slice(-4000)}`);
  }
}

function failures(report: SuiteReport): readonly string[] {
  return report.testResults.flatMap((file) => [file.message, ...file.assertionResults.filter((result) => result.status === "failed").map((result) => `${result.fullName}: ${result.failureMessages.join("\n").slice(0, 500)}`)]).filter((text) => text !== "");
}

// Who is no root already runs the suites as an ordinary user in the other files.
test.runIf(isRoot)("without subordinate ids", async () => {
  const report = await runSuite(false);
  expect(failures(report)).toEqual([]);
  expect(report.numPassedTests).toBeGreaterThan(90);
}, 420_000);

test.runIf(isRoot)("with subordinate ids", async () => {
  const report = await runSuite(true);
  expect(failures(report)).toEqual([]);
  expect(report.numPassedTests).toBeGreaterThan(90);
}, 420_000);

/**
 * The same suites as an ordinary user, with subordinate ids and without. What cannot be enforced there is declared absent, and the suites assert that it is refused.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ordinaryUser, type OrdinaryUser } from "../../support/as-user.ts";

const isRoot = process.getuid?.() === 0;
let user: OrdinaryUser;

beforeAll(() => {
  if (isRoot) user = ordinaryUser();
});

afterAll(() => {
  if (isRoot) user.remove();
});

interface SuiteReport {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly testResults: readonly { readonly message: string; readonly assertionResults: readonly { readonly status: string; readonly fullName: string; readonly failureMessages: readonly string[] }[] }[];
}

async function runSuite(subordinateIds: boolean): Promise<SuiteReport> {
  const report = join(user.tmp, `report-${subordinateIds}.json`);
  const files = ["native", "native-layers"].map((name) => `test/conformance/sandbox/${name}.test.ts`).join(" ");
  const { output } = await user.run(`exec ${process.execPath} node_modules/vitest/vitest.mjs run --configLoader runner --reporter=json --outputFile=${report} ${files}`, { subordinateIds });
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
}, 900_000);

test.runIf(isRoot)("with subordinate ids", async () => {
  const report = await runSuite(true);
  expect(failures(report)).toEqual([]);
  expect(report.numPassedTests).toBeGreaterThan(90);
}, 900_000);

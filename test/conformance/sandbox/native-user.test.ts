/**
 * The same suites as an ordinary user, with subordinate ids and without. What cannot be enforced there is declared absent, and the suites assert that it is refused.
 */
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

const FILES = ["native", "native-layers"].map((name) => `test/conformance/sandbox/${name}.test.ts`);

// Who is no root already runs the suites as an ordinary user in the other files.
test.runIf(isRoot)("without subordinate ids", async () => {
  const report = await user.suite(FILES, { subordinateIds: false });
  expect(report.failures).toEqual([]);
  expect(report.passed).toBeGreaterThan(90);
}, 900_000);

test.runIf(isRoot)("with subordinate ids", async () => {
  const report = await user.suite(FILES, { subordinateIds: true });
  expect(report.failures).toEqual([]);
  expect(report.passed).toBeGreaterThan(90);
}, 900_000);

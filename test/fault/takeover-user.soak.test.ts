/** Take-overs as an ordinary user, with subordinate ids and without. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ordinaryUser, type OrdinaryUser } from "../support/as-user.ts";

// Who is no root already runs them as an ordinary user.
describe.runIf(process.getuid?.() === 0)("machines of an ordinary user are taken over", () => {
  let user: OrdinaryUser;
  beforeAll(() => {
    user = ordinaryUser();
  });
  afterAll(() => user.remove());

  test.each([true, false])("with subordinate ids: %s", async (subordinateIds) => {
    const { passed, failures } = await user.suite(["test/fault/takeover.test.ts"], { subordinateIds });
    expect(failures).toEqual([]);
    expect(passed).toBeGreaterThan(15);
  }, 900_000);
});

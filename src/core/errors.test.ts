import { mkdirSync, statSync, writeFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { toMwError, type MwError } from "./errors.ts";

describe("what the file system refuses", () => {
  it("is the host's state, with a way on, and no bug", () => {
    for (const act of [() => statSync("/proc/self/status/x"), () => mkdirSync("/proc/self/status"), () => writeFileSync("/proc/version/x", "")]) {
      const error = refusal(act);
      expect(error.code).toBe("environment");
      expect(error.fix).toContain("MW_HOME");
    }
  });

  it("stays a bug where no path is named", () => {
    expect(toMwError(Object.assign(new Error("x"), { code: "EACCES" })).code).toBe("internal");
    expect(toMwError(Object.assign(new Error("x"), { code: "ENOENT", path: "/x" })).code).toBe("internal");
  });
});

function refusal(act: () => unknown): MwError {
  try {
    act();
  } catch (error) {
    return toMwError(error);
  }
  throw new Error("it was allowed");
}

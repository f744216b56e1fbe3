import { expect, it } from "vitest";
import { MwError, type ErrorCode } from "../core/errors.ts";
import { attribute, type WorkPhase } from "./attribution.ts";

const PHASES: readonly WorkPhase[] = ["image", "lease", "prepare", "agent", "collect", "verify"];
const outcomes = (error: unknown): Record<string, string> => Object.fromEntries(PHASES.map((phase) => [phase, attribute(phase, error)]));
const of = (code: ErrorCode): Record<string, string> => outcomes(new MwError(code, "x"));

it("keeps bugs and damaged data of ours apart from what is the task's", () => {
  const ours = { image: "sandbox_error", lease: "sandbox_error", prepare: "sandbox_error", agent: "harness_error", collect: "sandbox_error", verify: "sandbox_error" };
  expect(outcomes(new TypeError("undefined is not a function"))).toEqual(ours);
  expect(of("internal")).toEqual(ours);
  expect(of("corrupt")).toEqual(ours);
});

it("blames the host for what the host lacks, and the task for what cannot be built", () => {
  const full = Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC", path: "/home/images/tmp/x", syscall: "write" });
  expect(attribute("image", full)).toBe("sandbox_error");
  expect(attribute("image", new MwError("environment", "mmdebstrap is missing"))).toBe("sandbox_error");
  expect(of("host_exhausted")).toEqual(Object.fromEntries(PHASES.map((phase) => [phase, "sandbox_error"])));
  for (const code of ["image_failed", "invalid_image", "invalid_task", "not_found", "unsupported"] as const) expect(attribute("image", new MwError(code, "x"))).toBe("task_error");
});

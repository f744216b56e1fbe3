import { expect, it } from "vitest";
import { MwError } from "../../core/errors.ts";
import { agentCaused } from "./agent-caused.ts";

it("takes what files in a machine answer for the agent's doing", () => {
  expect(agentCaused(new MwError("not_found", "In the machine: no such file", { facts: { errno: "ENOENT" } }))).toBe(true);
  expect(agentCaused(new MwError("sandbox_failed", "In the machine: too many links", { facts: { errno: "ELOOP" } }))).toBe(true);
});

it("never takes what the maker of machines answers, or a machine or workspace that is gone, for it", () => {
  for (const code of ["not_found", "conflict", "invalid_input", "limit_exceeded", "host_exhausted", "sandbox_failed"] as const) {
    expect(agentCaused(new MwError(code, "Making a machine failed", { facts: { native: "ENOENT", errno: "EPERM" } }))).toBe(false);
  }
  expect(agentCaused(new MwError("sandbox_gone", "There is no sealed workspace"))).toBe(false);
  expect(agentCaused(new Error("something else"))).toBe(false);
});

import { expect, it } from "vitest";
import type { RootFilesystem } from "../../sandbox/sandbox.ts";
import type { Task } from "../../task/task.ts";
import { checkGoesOn } from "./go-on.ts";
import type { Survivor, SurvivorPhase } from "./survivors.ts";

const root = { digest: "sha256:a" } as unknown as RootFilesystem;

/** Why it does not go on; null: it does. */
function whyNot(phase: SurvivorPhase, { mode = "fresh", hooks = 0, isSealed = false, digest = "sha256:a" }: { readonly mode?: string; readonly hooks?: number; readonly isSealed?: boolean; readonly digest?: string } = {}): string | null {
  const survivor = { sandbox: { spec: { root: { digest } } }, phase, isSealed } as unknown as Survivor;
  try {
    checkGoesOn(survivor, root, { verifier: { mode, collect: Array.from({ length: hooks }) } } as unknown as Task);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

it("goes on where nothing happens twice in the agent's machine", () => {
  for (const phase of ["running", "ended", "collected"] as const) expect(whyNot(phase)).toBeNull();
  expect(whyNot("running", { mode: "shared", hooks: 1 })).toBeNull();
  expect(whyNot("ended", { mode: "shared" })).toBeNull();
  expect(whyNot("collected", { hooks: 1 })).toBeNull();
  expect(whyNot("collected", { isSealed: true })).toBeNull();
  expect(whyNot("collected", { mode: "separate" })).toBeNull();
});

it("begins anew where it would, and says why", () => {
  expect(whyNot("running", { digest: "sha256:b" })).toMatch(/stands on the image sha256:b, which is sha256:a now/);
  expect(whyNot("ended", { hooks: 1 })).toMatch(/commands that collect what it left may have run/);
  expect(whyNot("collected", { mode: "shared" })).toMatch(/its tests may have run in its machine/);
  expect(whyNot("collected", { mode: "separate", isSealed: true })).toMatch(/its machine has ended/);
});

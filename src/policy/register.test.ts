import { expect, it } from "vitest";
import { settle, VirtualRuntime } from "../../test/support/delivery/virtual-runtime.ts";
import { startDeadline } from "../core/deadline.ts";
import { PolicyRegister } from "./register.ts";

const POLICY = { version: 1, model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] };

/** Lets virtual time pass, and everything happen that comes of it. */
async function pass(runtime: VirtualRuntime, ms: number): Promise<void> {
  const until = runtime.monotonic() + ms;
  while (runtime.step(until)) await settle(() => true);
}

it("time for which the policy is being updated does not count for whoever is limited by it", async () => {
  const runtime = new VirtualRuntime();
  const register = new PolicyRegister(runtime);
  register.set({ ...POLICY, state: "live" });
  await pass(runtime, 5_000);
  const time = startDeadline(runtime, 10_000, "the agent", undefined, () => register.updatingMs);
  await pass(runtime, 4_000);
  register.set({ ...POLICY, state: "updating" });
  // Told again, it goes on.
  await pass(runtime, 3_000);
  register.set({ ...POLICY, state: "updating" });
  await pass(runtime, 27_000);
  expect(time.signal.aborted).toBe(false);
  register.set({ ...POLICY, version: 2, state: "live" });
  expect(register.updatingMs).toBe(30_000);
  await pass(runtime, 5_500);
  expect(time.passed).toBe(false);
  await pass(runtime, 1_000);
  expect(time.passed).toBe(true);
  expect(time.signal.reason).toMatchObject({ code: "timeout", message: expect.stringContaining("10 s") as string });
  await pass(runtime, 60_000);
  expect(register.updatingMs).toBe(30_000);
});

it("a deadline that was cleared, or whose parent was aborted, waits for nothing more", async () => {
  const runtime = new VirtualRuntime();
  const cleared = startDeadline(runtime, 1_000, "x", undefined, () => runtime.monotonic());
  await pass(runtime, 5_000);
  cleared.clear();
  expect(runtime.next).toBeNull();
  const parent = new AbortController();
  const child = startDeadline(runtime, 1_000, "x", parent.signal);
  parent.abort("over");
  expect(child.signal.reason).toBe("over");
  expect(child.passed).toBe(false);
});

import { describe, expect, it } from "vitest";
import { systemRuntime, type Runtime } from "../core/runtime.ts";
import { PolicyGate } from "./policy-gate.ts";

const signal = new AbortController().signal;
const tokens = { promptIds: [1], completionIds: [2, 3], logprobs: [-1, -2], versions: [] };
const settled = (promise: Promise<unknown>): Promise<boolean> => Promise.race([promise.then(() => true, () => true), new Promise<boolean>((resolve) => setImmediate(() => resolve(false)))]);

describe("a policy gate", () => {
  it("lets calls pass while the policy is live, and stamps their tokens", async () => {
    const gate = new PolicyGate(systemRuntime, { version: "3" });
    const pass = await gate.enter(signal);
    expect(pass.stamp(tokens).versions).toEqual([["3", 2]]);
    expect(pass.stamp({ ...tokens, versions: [["engine", 2]] }).versions).toEqual([["engine", 2]]);
    expect(pass.stamp({ ...tokens, completionIds: [], logprobs: [] }).versions).toEqual([]);
    expect((await new PolicyGate(systemRuntime).enter(signal)).stamp(tokens)).toBe(tokens);
  });

  it("holds new calls until every update is over, and gives them the new version; those that had entered keep theirs", async () => {
    const gate = new PolicyGate(systemRuntime, { version: "1" });
    const before = await gate.enter(signal);
    const [first, second] = [gate.hold(), gate.hold()];
    expect(gate.state).toBe("updating");
    const waiting = gate.enter(signal);
    first();
    first();
    expect(await settled(waiting)).toBe(false);
    second("2");
    expect((await waiting).version).toBe("2");
    expect(before.stamp(tokens).versions).toEqual([["1", 2]]);
    expect(gate.state).toBe("live");
  });

  it("holds again those that wait when one update follows on another", async () => {
    const gate = new PolicyGate(systemRuntime);
    const lift = gate.hold();
    const waiting = gate.enter(signal);
    lift();
    const again = gate.hold();
    expect(await settled(waiting)).toBe(false);
    again("9");
    expect((await waiting).version).toBe("9");
  });

  it("sends calls away when an update takes too long, and lets those go that give up", async () => {
    const slept: number[] = [];
    const runtime: Runtime = { ...systemRuntime, sleep: (ms, abort) => (slept.push(ms), ms === 50 ? Promise.resolve() : systemRuntime.sleep(ms, abort)) };
    const late = new PolicyGate(runtime, { holdMs: 50 });
    late.hold();
    await expect(late.enter(signal)).rejects.toMatchObject({ kind: "overloaded", details: { retryAfterMs: 5000 } });
    const gate = new PolicyGate(runtime, { holdMs: 60_000 });
    gate.hold();
    const abort = new AbortController();
    const waiting = gate.enter(abort.signal);
    const reason = new Error("the harness hung up");
    abort.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    await expect(gate.enter(abort.signal)).rejects.toBe(reason);
    expect(slept).toEqual([50, 60_000]);
  });
});

import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openMachines, type Machines } from "../../test/support/harness-machine.ts";
import { systemRuntime } from "../core/runtime.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { PauseOnThink } from "./pause-on-think.ts";

let machines: Machines;
beforeAll(async () => {
  machines = await openMachines();
});
afterAll(async () => await machines.close());

/** A session of which only one thing is known: how many of its calls are thinking. */
class Thinking {
  #listener: (thinking: number) => void = () => undefined;
  onThinking(listener: (thinking: number) => void): () => void {
    this.#listener = listener;
    return () => (this.#listener = () => undefined);
  }
  tell(thinking: number): void {
    this.#listener(thinking);
  }
}

/** A machine in which something counts as fast as it can. */
async function counting(): Promise<{ readonly sandbox: Sandbox; readonly cpuMs: () => Promise<number> }> {
  const sandbox = await machines.make("sh");
  await sandbox.exec({ command: "while :; do :; done", user: "0" });
  return { sandbox, cpuMs: async () => (await sandbox.metrics()).cpuMs ?? Number.NaN };
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  const latest = performance.now() + 30_000;
  while (performance.now() < latest) {
    if (await condition()) return;
    await systemRuntime.sleep(20);
  }
  throw new Error("it did not happen");
}

/** Whether the machine uses no CPU time at all for a while. */
async function still(cpuMs: () => Promise<number>): Promise<boolean> {
  const before = await cpuMs();
  await systemRuntime.sleep(300);
  return (await cpuMs()) === before;
}

describe("PauseOnThink", () => {
  it("has the machine stand still while nothing of an answer has come, and run at all other times", async () => {
    const { sandbox, cpuMs } = await counting();
    const session = new Thinking();
    const pause = new PauseOnThink(sandbox, session, systemRuntime);
    await until(async () => !(await still(cpuMs)));
    session.tell(1);
    await until(() => still(cpuMs));
    // A second call beside the first changes nothing, nor does the end of one of them.
    session.tell(2);
    session.tell(1);
    expect(await still(cpuMs)).toBe(true);
    session.tell(0);
    await until(async () => !(await still(cpuMs)));
    expect((await sandbox.run({ command: "echo alive" })).code).toBe(0);
    expect(await pause.stop()).toBeGreaterThan(300);
    session.tell(1);
    expect(await pause.stop()).toBe(await pause.stop());
    expect((await sandbox.run({ command: "echo alive" })).code).toBe(0);
    await sandbox.kill();
  });

  it("leaves a running machine behind when it is stopped in the middle of a thought", async () => {
    const { sandbox, cpuMs } = await counting();
    const session = new Thinking();
    const pause = new PauseOnThink(sandbox, session, systemRuntime);
    session.tell(1);
    await until(() => still(cpuMs));
    await pause.stop();
    expect((await sandbox.run({ command: "echo alive" })).code).toBe(0);
    await sandbox.kill();
  });

  it("does not freeze for answers that come at once, and bears a machine that ends meanwhile", async () => {
    const { sandbox } = await counting();
    const calls: string[] = [];
    const spied = { freeze: () => (calls.push("freeze"), sandbox.freeze()), thaw: () => (calls.push("thaw"), sandbox.thaw()) };
    const session = new Thinking();
    const pause = new PauseOnThink(spied, session, { ...systemRuntime, sleep: (_ms, signal) => systemRuntime.sleep(60_000, signal) });
    for (let n = 0; n < 10; n++) {
      session.tell(1);
      session.tell(0);
    }
    expect(await pause.stop()).toBe(0);
    expect(calls).toEqual([]);
    await sandbox.kill();
    const later = new PauseOnThink(sandbox, session, systemRuntime);
    session.tell(1);
    await systemRuntime.sleep(100);
    session.tell(0);
    expect(await later.stop()).toBe(0);
  });
});

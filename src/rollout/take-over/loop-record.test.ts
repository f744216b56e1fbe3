import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { harnessContext } from "../../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import { execIdOf } from "../../core/ids.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { Hands } from "../../harness/agent/hands.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { AgentFacts } from "./agent-record.ts";
import { LoopRecord } from "./loop-record.ts";

const CALL = 7;
/** Nothing of them is looked at here. */
const FACTS = {} as AgentFacts;
const now = (): number => systemRuntime.now();

let machines: Machines;
let sandbox: Sandbox;
let hands: Hands;
let place: string;
/** Of the controller that dies. */
let record: LoopRecord;
const records: LoopRecord[] = [];
beforeAll(async () => {
  machines = await openMachines();
});
afterAll(async () => await machines.close());
beforeEach(async () => {
  place = mkdtempSync(join(tmpdir(), "mw-loop-record-"));
  sandbox = await machines.make("bash");
  hands = await Hands.open(harnessContext(sandbox).context);
  record = await LoopRecord.make(join(place, "handover"), sandbox, now, () => FACTS);
  return async () => {
    await sandbox.kill();
    for (const one of [record, ...records.splice(0)]) await one.remove();
    rmSync(place, { recursive: true, force: true });
  };
});

const next = async (acting = true): Promise<LoopRecord> => {
  const taken = await LoopRecord.takeUp(join(place, "handover"), sandbox, now, FACTS, acting);
  records.push(taken);
  return taken;
};
const inMachine = async (command: string): Promise<string> => Buffer.from((await sandbox.run({ command })).stdout).toString();
const shell = (command: string) => ({ tool: "shell", command }) as const;

describe("a tool call whose controller dies", () => {
  it("while its command runs: the next one attaches to it, with all of its output", async () => {
    const action = shell("echo once >> /tmp/log; echo before; until [ -e /tmp/go ]; do sleep 0.05; done; echo after");
    const dead = hands.act(action, await record.acting(CALL, 0)).catch((error: unknown) => error);
    await expect.poll(() => inMachine("cat /tmp/log")).toBe("once\n");
    const text = hands.act(action, await (await next()).acting(CALL, 0));
    // The next one has it.
    expect(await dead).toMatchObject({ code: "conflict" });
    await inMachine("touch /tmp/go");
    expect(await text).toBe("Exit code: 0\nbefore\nafter\n");
    expect(await inMachine("cat /tmp/log")).toBe("once\n");
  });

  it("behind its end, before the result is in the history: the next one gets the same, again and again", async () => {
    const action = shell("echo once | tee -a /tmp/log; head -c 700000 /dev/zero | tr '\\0' x; exit 3");
    const text = await hands.act(action, await record.acting(CALL, 0));
    expect(text).toMatch(/^Exit code: 3\nonce\nx+/);
    for (let death = 0; death < 3; death++) expect(await hands.act(action, await (await next()).acting(CALL, 0))).toBe(text);
    expect(await inMachine("cat /tmp/log")).toBe("once\n");
  });

  it("behind the result, before the machine is told: it is told", async () => {
    await hands.act(shell("true"), await record.acting(CALL, 0));
    await (await sandbox.attach(execIdOf(CALL, 0))).exit;
    await next(false);
    await expect(sandbox.attach(execIdOf(CALL, 0))).rejects.toMatchObject({ code: "not_found" });
  });

  it("before its command begins, written down or not: it begins, once", async () => {
    const action = shell("echo once >> /tmp/log");
    await (await record.acting(CALL, 0)).beginning();
    expect(await hands.act(action, await (await next()).acting(CALL, 0))).toBe("Exit code: 0\n(no output)");
    expect(await hands.act(action, await (await next()).acting(CALL, 1))).toBe("Exit code: 0\n(no output)");
    expect(await inMachine("cat /tmp/log")).toBe("once\nonce\n");
    await expect(sandbox.attach(execIdOf(CALL, 0))).rejects.toMatchObject({ code: "not_found" });
  });

  it("when a file is edited: it is not edited again, and the model is told of what was done", async () => {
    await inMachine("printf 'a b a' > /tmp/file");
    const action = { tool: "edit", path: "/tmp/file", old: "a", new: "aa", everywhere: true } as const;
    const text = await hands.act(action, await record.acting(CALL, 0));
    expect(await hands.act(action, await (await next()).acting(CALL, 0))).toBe(text);
    expect(text).toBe("Replaced 2 occurrences in /tmp/file.");
    expect(await inMachine("cat /tmp/file")).toBe("aa b aa");
  });

  it("and whose result is in the history: the machine has forgotten it", async () => {
    await hands.act(shell("true"), await record.acting(CALL, 0));
    await record.acted();
    await expect(sandbox.attach(execIdOf(CALL, 0))).rejects.toMatchObject({ code: "not_found" });
  });
});

/** What the tests of init share: one machine of a file of tests, and what runs in it. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll } from "vitest";
import type { NativeExec } from "../../src/sandbox/backends/native/exec.ts";
import type { ExecExit } from "../../src/sandbox/sandbox.ts";
import { type InitMachine, startInitMachine } from "./init-machine.ts";

export let machine: InitMachine;

/** For a file of tests. */
export function initTests(): void {
  beforeAll(async () => {
    machine = await startInitMachine();
  });
  afterAll(async () => {
    await machine.stop();
  });
}

export const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString();

export async function collect(exec: NativeExec): Promise<{ stdout: string; exit: ExecExit }> {
  let stdout = "";
  for await (const { stream, data } of exec.output) if (stream === "stdout") stdout += text(data);
  return { stdout, exit: await exec.exit };
}

/** Processes of the machine whose command line holds `marker`, as the machine sees them. */
export async function processes(marker: string): Promise<string[]> {
  const { stdout } = await machine.run(["ps", "-eo", "pid,stat,args"]);
  return text(stdout).split("\n").filter((line) => line.includes(marker) && !line.includes("ps -eo"));
}

export async function environment(more: object): Promise<string[]> {
  return text((await machine.run(["/usr/bin/env"], more)).stdout).trim().split("\n").sort();
}

export async function until(what: () => Promise<boolean> | boolean): Promise<void> {
  const end = performance.now() + 60_000;
  while (!(await what())) {
    if (performance.now() > end) throw new Error("waited too long");
    await sleep(20);
  }
}

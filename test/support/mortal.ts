/** Processes of a test, which outlive it in no case: after an assertion that fails nobody ends them. */
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { onTestFinished } from "vitest";

/** The same child, killed when the test that is running has ended and the child has not. */
export function mortal<T extends ChildProcess>(child: T): T {
  onTestFinished(async () => {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill("SIGKILL");
    await gone;
  });
  return child;
}

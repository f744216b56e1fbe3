/** Waits for a program that native/oci.c starts: it has been told by one byte on its descriptor 4 that somebody can connect to it. */
import type { ChildProcess } from "node:child_process";
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";

/** Resolves to the controller's end of descriptor 4. Rejects `sandbox_failed` when the program ends before. */
export function listening(child: ChildProcess): Promise<Duplex> {
  const told = child.stdio[4] as Duplex;
  told.on("error", () => undefined);
  return new Promise((resolve, reject) => {
    const fail = (how: string, cause?: Error): void => reject(new MwError("sandbox_failed", `${child.spawnfile} ${how}`, cause === undefined ? {} : { cause }));
    child.once("error", (error) => fail(`does not start: ${error.message}`, error));
    child.once("exit", (code, signal) => fail(`ended with ${signal ?? code} before it listened`));
    told.once("data", () => resolve(told));
  });
}

/** Makes a machine's default working directory when its image has none, without asking the machine when the image's directories answer. */
import { lstatSync } from "node:fs";
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { Sandbox, SandboxSpec } from "../../sandbox.ts";

export async function prepareWorkdir(sandbox: Sandbox, workdir: string, spec: SandboxSpec): Promise<void> {
  if (workdir === "/" || inImage(workdir, spec)) return;
  const user = spec.user ?? spec.root.user;
  try {
    await sandbox.files.mkdir(workdir, user === "" ? {} : { owner: user });
  } catch (error) {
    // Whoever wrote a workspace may have put anything there: a machine that starts from it still has to start.
    if ((spec.workspace === undefined && spec.snapshot === undefined) || !(error instanceof MwError) || error.code === "sandbox_gone") throw error;
  }
}

/**
 * True when the topmost directory that has anything at the path's first component holds the whole path as plain directories: nothing above can hide it then.
 * Anything less certain is left to the machine.
 */
function inImage(workdir: string, { workspace, snapshot, layers = [], root }: SandboxSpec): boolean {
  if (workspace !== undefined || snapshot !== undefined || root.parts.length > 0) return false;
  const parts = workdir.split("/").filter((part) => part !== "");
  const first = parts[0] ?? "";
  const top = [...layers.map((layer) => layer.path), ...root.layers].find((layer) => lstatSync(join(layer, first), { throwIfNoEntry: false }) !== undefined);
  if (top === undefined) return false;
  return parts.every((_, index) => lstatSync(join(top, ...parts.slice(0, index + 1)), { throwIfNoEntry: false })?.isDirectory() === true);
}

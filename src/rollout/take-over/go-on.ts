/** Where a try goes on in the machine that outlived its controller, or on what is left of it, and where it cannot. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { HandoverLost } from "../../harness/handover.ts";
import { removeTree } from "../../image/unpacker.ts";
import type { RootFilesystem } from "../../sandbox/sandbox.ts";
import type { Task } from "../../task/task.ts";
import type { VerifyRequest } from "../../task/verify/verify.ts";
import { guarded } from "../recorder.ts";
import type { Survivor } from "./survivors.ts";

/** Throws `HandoverLost` where something may have happened in the machine that must not happen twice, or that cannot be made up for. */
export function checkGoesOn({ sandbox, isSealed, phase }: Survivor, root: RootFilesystem, { verifier }: Task): void {
  const { digest } = sandbox.spec.root;
  if (digest !== root.digest) throw new HandoverLost(`its machine stands on the image ${digest}, which is ${root.digest} now`);
  if (phase === "ended" && verifier.collect.length > 0) throw new HandoverLost("its agent had ended, and commands that collect what it left may have run in its machine");
  if (phase === "collected" && verifier.mode === "shared") throw new HandoverLost("its tests may have run in its machine");
  if (phase === "collected" && verifier.mode === "separate" && isSealed) throw new HandoverLost("its machine has ended, of which the verifier's was to have a part");
}

/** What was half done with what the agent left is done again from its beginning. `directory`: of the rollout. */
export async function clearHalfDone(directory: string, phase: Survivor["phase"], isCleaned: boolean): Promise<void> {
  if (phase === "ended") await removeTree(join(directory, "artifacts"));
  if (phase !== "collected" || isCleaned) return;
  await removeTree(join(directory, "workspace.tar.tree"));
  await guarded(directory, () => rm(join(directory, "workspace.tar"), { force: true }));
}

/** Where all of it is collected. */
export async function leftIn({ sandbox, isSealed }: Survivor): Promise<Pick<VerifyRequest, "sandbox" | "workspace">> {
  return isSealed ? { sandbox, workspace: await sandbox.seal() } : { sandbox };
}

/** Runs with rollouts that can be gone on with in machines that wait for a controller. Read off files alone: who looks need not be that controller. */
import { readdir } from "node:fs/promises";
import type { RolloutId, RunId, SandboxId } from "../../core/ids.ts";
import { handoverDirectory, handoversDirectory, listRuns } from "../../store/run-directory.ts";
import { readAgentFacts } from "./agent-record.ts";

export interface WaitingRun {
  readonly run: RunId;
  readonly rollouts: number;
}

/** `isThere`: whether something of a machine is there. Newest first. */
export async function waitingRuns(home: string, isThere: (sandbox: SandboxId) => boolean): Promise<readonly WaitingRun[]> {
  const found: WaitingRun[] = [];
  for (const run of await listRuns(home)) {
    const names = await readdir(handoversDirectory(home, run)).catch(() => []);
    const agents = await Promise.all(names.map((name) => readAgentFacts(handoverDirectory(home, run, name as RolloutId))));
    const rollouts = agents.filter((facts) => facts !== null && isThere(facts.sandbox)).length;
    if (rollouts > 0) found.push({ run, rollouts });
  }
  return found;
}

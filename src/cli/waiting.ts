/** What waits in a data directory whose controller died, and which command goes on with it. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { RunId, SandboxId } from "../core/ids.ts";
import { waitingRuns } from "../rollout/take-over/waiting.ts";
import { runDirectory } from "../sandbox/index.ts";
import { Marks, recordedSandboxes } from "../server/index.ts";

/** What a command goes on with; machines of anything else are not its to take over. */
export type Claim = "nothing" | "server" | RunId;

const SERVER = "a server started with mw serve --take-over SECONDS";

/** Of others, in the words of a fix; empty: nothing that anybody could go on with. */
export async function waitingForOthers(home: string, claim: Claim): Promise<readonly string[]> {
  // Private directories have names for their data directory only where that is.
  const isThere = (sandbox: SandboxId): boolean => existsSync(home) && existsSync(join(runDirectory(home), sandbox));
  const servers = new Set<string>((await new Marks(home).all(() => undefined)).map(({ run }) => run));
  const words: string[] = [];
  for (const { run, rollouts } of await waitingRuns(home, isThere)) {
    if (claim === run || (claim === "server" && servers.has(run))) continue;
    words.push(`${servers.has(run) ? SERVER : `mw resume ${run}`} goes on with ${rollouts} of the run's rollouts`);
  }
  const sandboxes = claim === "server" ? 0 : (await recordedSandboxes(home)).filter(isThere).length;
  return sandboxes === 0 ? words : [...words, `${SERVER} goes on with ${sandboxes} sandboxes of its clients`];
}

/** Takes out of a sealed workspace what must not reach the verifier, and makes sure that it is out. */
import { MwError } from "../../core/errors.ts";
import type { RootFilesystem, Workspace } from "../../sandbox/sandbox.ts";
import type { Task } from "../task.ts";
import { imageHomes } from "./image-users.ts";
import type { ImageView } from "./image-view.ts";
import { DEFAULT_PATH } from "./protected-paths.ts";
import { planSanitation, type Sanitation, type SanitationFacts } from "./sanitation.ts";

export interface CleanFacts {
  readonly task: Task;
  readonly root: RootFilesystem;
  readonly image: ImageView;
  readonly agentOwns: readonly string[];
  readonly instruction: string;
}

/** What one pass can bring to light for the next: a restored directory shows files that were hidden. */
const PASSES = 4;

export async function cleanWorkspace(workspace: Workspace, { task, root, image, agentOwns, instruction }: CleanFacts): Promise<Sanitation> {
  const workdir = task.environment.workdir ?? root.workdir;
  const facts: SanitationFacts = {
    image,
    path: root.env["PATH"] ?? DEFAULT_PATH,
    workdir,
    homes: await imageHomes(image),
    agentOwns,
    instruction,
    read: (path: Uint8Array, maxBytes: number) => workspace.read(path, maxBytes),
  };
  let total = await pass(workspace, facts);
  for (let more = total, passes = 1; more.restored.length + more.removed.length > 0; passes++) {
    more = await pass(workspace, facts);
    total = { ...total, restored: union(total.restored, more.restored), removed: union(total.removed, more.removed) };
    if (more.restored.length + more.removed.length === 0) break;
    if (passes < PASSES) continue;
    throw new MwError("sandbox_failed", `The workspace ${workspace.id} still has what was discarded from it: ${[...more.restored, ...more.removed].slice(0, 5).join(", ")}`, {
      facts: { workspace: workspace.id },
    });
  }
  return total;
}

async function pass(workspace: Workspace, facts: SanitationFacts): Promise<Sanitation> {
  const plan = await planSanitation(await workspace.changes(), facts);
  await workspace.discard(plan.discard);
  return plan;
}

function union(a: readonly string[], b: readonly string[]): readonly string[] {
  return [...new Set([...a, ...b])];
}

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

/** Reads as code that runs at start, as a plugin, and as a configuration of pytest. */
const UNREADABLE = Buffer.from("import unreadable\n[pytest11]\n[pytest]\n[tool:pytest]\n[tool.pytest]\n");

export async function cleanWorkspace(workspace: Workspace, { task, root, image, agentOwns, instruction }: CleanFacts): Promise<Sanitation> {
  const workdir = task.environment.workdir ?? root.workdir;
  const facts: SanitationFacts = {
    image,
    path: root.env["PATH"] ?? DEFAULT_PATH,
    workdir,
    homes: await imageHomes(image),
    agentOwns,
    instruction,
    // A file that cannot be read within the bound is treated as one that says the worst.
    read: (path: Uint8Array, maxBytes: number) =>
      workspace.read(path, maxBytes).catch((error: unknown) => {
        if (error instanceof MwError && (error.code === "limit_exceeded" || error.code === "invalid_input")) return UNREADABLE;
        throw error;
      }),
  };
  const first = await pass(workspace, facts);
  const restored = new Set(first.restored);
  const removed = new Set(first.removed);
  let last = first;
  for (let passes = 1; last.restored.length + last.removed.length > 0; passes++) {
    if (passes > PASSES) {
      throw new MwError("sandbox_failed", `The workspace ${workspace.id} still has what was discarded from it: ${[...last.restored, ...last.removed].slice(0, 5).join(", ")}`, {
        facts: { workspace: workspace.id },
      });
    }
    last = await pass(workspace, facts);
    for (const path of last.restored) restored.add(path);
    for (const path of last.removed) removed.add(path);
  }
  return { ...first, restored: [...restored], removed: [...removed] };
}

async function pass(workspace: Workspace, facts: SanitationFacts): Promise<Sanitation> {
  const plan = await planSanitation(await workspace.changes(), facts);
  await workspace.discard(plan.discard);
  return plan;
}

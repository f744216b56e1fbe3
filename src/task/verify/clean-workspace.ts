/** Takes out of a sealed workspace what must not reach the verifier, and makes sure that it is out. */
import { MwError } from "../../core/errors.ts";
import type { RootFilesystem, Workspace } from "../../sandbox/sandbox.ts";
import type { Task } from "../task.ts";
import { imageHomes } from "./image-users.ts";
import type { ImageView } from "./image-view.ts";
import { DEFAULT_PATH } from "./protected-paths.ts";
import { planSanitation, type Sanitation, type SanitationFacts } from "./sanitation.ts";

/** What is taken out is written down before it is, where somebody else may have to go on with the workspace: once it is out, nothing shows that it was there. */
export interface CleanJournal {
  /** As it was written down last, by an earlier one. */
  readonly earlier: Sanitation | null;
  /** Durable when it resolves. */
  write(all: Sanitation): Promise<void>;
}

export interface CleanFacts {
  readonly task: Task;
  readonly root: RootFilesystem;
  readonly image: ImageView;
  readonly agentOwns: readonly string[];
  readonly instruction: string;
  /** Of what was done with the workspace before. */
  readonly notes: readonly string[];
  readonly journal: CleanJournal | undefined;
}

/** What one pass can bring to light for the next: a restored directory shows files that were hidden. */
const PASSES = 4;

/** Reads as code that runs at start, as a plugin, and as a configuration of pytest. */
const UNREADABLE = Buffer.from("import unreadable\n[pytest11]\n[pytest]\n[tool:pytest]\n[tool.pytest]\n");

/** `notes` of the answer have the given ones before its own. */
export async function cleanWorkspace(workspace: Workspace, { task, root, image, agentOwns, instruction, notes, journal }: CleanFacts): Promise<Sanitation> {
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
  let all = journal?.earlier ?? null;
  if (all !== null) await workspace.discard(all.discard);
  for (let passes = 0; ; passes++) {
    const plan = await planSanitation(await workspace.changes(), facts);
    const isLast = plan.restored.length + plan.removed.length === 0;
    if (!isLast && passes >= PASSES) {
      throw new MwError("sandbox_failed", `The workspace ${workspace.id} still has what was discarded from it: ${[...plan.restored, ...plan.removed].slice(0, 5).join(", ")}`, {
        facts: { workspace: workspace.id },
      });
    }
    all = all === null ? { ...plan, notes: [...notes, ...plan.notes] } : { ...all, discard: [...all.discard, ...plan.discard], restored: union(all.restored, plan.restored), removed: union(all.removed, plan.removed) };
    await journal?.write(all);
    await workspace.discard(plan.discard);
    if (isLast) return all;
  }
}

function union(one: readonly string[], two: readonly string[]): readonly string[] {
  return [...new Set([...one, ...two])];
}

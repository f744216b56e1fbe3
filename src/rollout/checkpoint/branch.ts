/** Groups whose members branch from the first: who goes on where, and what is still needed for it. */
import type { RunId, SnapshotId } from "../../core/ids.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import type { RolloutState } from "../rollout-state.ts";
import type { Checkpoint, CheckpointSource } from "./record.ts";

type Group = readonly RolloutState[];

/** Behind which turn of this rollout others branch; null: nowhere. */
export function branchTurn(group: Group, { rollout }: RolloutState): number | null {
  return group.find(({ branch }) => branch?.parent === rollout)?.branch?.turn ?? null;
}

/** A branch goes on with the setup that its parent drew. */
export function setupSeed(group: Group, rollout: RolloutState): string {
  return parentOf(group, rollout)?.seed ?? rollout.seed;
}

/** A branch can begin: its parent has come so far, or has ended before. */
export function canBegin(group: Group, rollout: RolloutState): boolean {
  const parent = parentOf(group, rollout);
  return parent === null || parent.branchPoint !== null || parent.phase === "recorded";
}

/** Where its next try goes on; null: at the task's beginning. */
export function sourceOf(home: string, run: RunId, group: Group, rollout: RolloutState): CheckpointSource | null {
  if (rollout.checkpoint !== null) return { checkpoint: rollout.checkpoint, parent: null, directory: rolloutDirectory(home, run, rollout.rollout) };
  const parent = parentOf(group, rollout);
  const checkpoint = parent === null || rollout.branchLost ? null : branchPointOf(parent);
  return checkpoint === null || parent === null ? null : { checkpoint, parent: parent.rollout, directory: rolloutDirectory(home, run, parent.rollout) };
}

/** Snapshots that a later try of somebody in the group may begin with. */
export function neededSnapshots(group: Group): ReadonlySet<SnapshotId> {
  const needed = new Set<SnapshotId>();
  const add = (checkpoint: Checkpoint | null): void => void (checkpoint !== null && needed.add(checkpoint.snapshot));
  for (const rollout of group) {
    if (rollout.phase !== "recorded") add(rollout.checkpoint);
    if (group.some(({ branch, phase }) => branch?.parent === rollout.rollout && phase !== "recorded")) add(rollout.branchPoint ?? rollout.checkpoint);
  }
  return needed;
}

function branchPointOf(parent: RolloutState): Checkpoint | null {
  return parent.branchPoint ?? (parent.phase === "recorded" ? parent.checkpoint : null);
}

function parentOf(group: Group, { branch }: RolloutState): RolloutState | null {
  return branch === null ? null : (group.find(({ rollout }) => rollout === branch.parent) ?? null);
}

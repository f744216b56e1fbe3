/** Snapshots of checkpoints that nobody will go on from: left by a death between two steps, or by a rollout that has ended. */
import { isId, type RunId } from "../../core/ids.ts";
import type { Snapshot, SnapshotStore } from "../../sandbox/sandbox.ts";
import { loadRunState, type RunState } from "../run-state.ts";
import type { RolloutState } from "../rollout-state.ts";
import { neededSnapshots } from "./branch.ts";

/** Of all runs of a data directory. For its owner, before it begins anything. */
export async function sweepCheckpoints(home: string, snapshots: SnapshotStore): Promise<void> {
  const all = (await snapshots.list()).filter(isCheckpoint);
  for (const run of new Set(all.map(runOf))) {
    // A run whose directory is gone needs nothing; of one whose log cannot be read nobody knows.
    const state = isId("run", run) ? await loadRunState(home, run).catch(() => null) : null;
    if (state !== null) await removeUnneeded(snapshots, all.filter((snapshot) => runOf(snapshot) === run), state);
  }
}

/** Of the group of a rollout that has just been recorded. */
export async function releaseCheckpoints(run: RunId, group: readonly RolloutState[], snapshots: SnapshotStore): Promise<void> {
  if (group.every(({ checkpoints }) => checkpoints.count === 0)) return;
  const own = new Set<string>(group.map(({ rollout }) => rollout));
  const needed = neededSnapshots(group);
  for (const snapshot of await snapshots.list()) {
    if (isCheckpoint(snapshot) && snapshot.labels["run"] === run && own.has(snapshot.labels["rollout"] ?? "") && !needed.has(snapshot.id)) await snapshots.remove(snapshot.id);
  }
}

async function removeUnneeded(snapshots: SnapshotStore, kept: readonly Snapshot[], state: RunState): Promise<void> {
  const needed = new Set(state.groups.flatMap(({ rollouts }) => [...neededSnapshots(rollouts)]));
  for (const { id } of kept) if (!needed.has(id)) await snapshots.remove(id);
}

function runOf({ labels }: Snapshot): string {
  return labels["run"] ?? "";
}

function isCheckpoint({ labels }: Snapshot): boolean {
  return labels["checkpoint"] !== undefined && labels["rollout"] !== undefined;
}

/** What rests on rewards that turned out to be others. */
import type { RunId } from "../core/ids.ts";
import type { Reverified } from "../rollout/reverify.ts";
import type { RunState } from "../rollout/run-state.ts";
import { rolloutTokens } from "../rollout/samples/rollout-samples.ts";
import { rolloutDirectory } from "../store/run-directory.ts";
import { fateOf, openDeliveryLineage } from "./lineage.ts";

export interface Touched {
  readonly rollouts: readonly string[];
  /** `<rollout>/<segment>`: samples of the rollouts, whether they were delivered or not. */
  readonly samples: readonly string[];
  readonly leases: readonly string[];
  /** Trainer steps that consumed them, and that the trainer has not gone back behind. */
  readonly steps: readonly number[];
  readonly checkpoints: readonly string[];
}

export async function touchedBy(home: string, run: RunId, state: RunState, all: readonly Reverified[]): Promise<Touched> {
  const delivery = await openDeliveryLineage(home, run);
  const samples: string[] = [];
  const [leases, steps, checkpoints] = [new Set<string>(), new Set<number>(), new Set<string>()];
  const changed = all.filter((one) => one.changed);
  for (const { rollout } of changed) {
    const { set } = await rolloutTokens(rolloutDirectory(home, run, rollout), { builder: "prefix-merge" });
    samples.push(...set.samples.map((_, segment) => `${rollout}/${segment}`));
    const fate = fateOf(delivery, state, state.rollout(rollout));
    for (const { lease } of fate?.leases ?? []) leases.add(lease);
    const { step = null, checkpoint = null } = fate?.consumed ?? {};
    if (step !== null) steps.add(step);
    if (checkpoint !== null) checkpoints.add(checkpoint);
  }
  return { rollouts: changed.map(({ rollout }) => rollout), samples, leases: [...leases], steps: [...steps].sort((a, b) => a - b), checkpoints: [...checkpoints] };
}

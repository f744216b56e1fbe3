/** A rollout's reward, back to what it rests on and forward to what rests on it. */
import type { RunId } from "../core/ids.ts";
import { DeliveryLineage, type GroupEnd, type SampleFate } from "../delivery/lineage.ts";
import { readRunConfig } from "../rollout/run-config.ts";
import type { GroupState, RunState } from "../rollout/run-state.ts";
import type { RolloutState } from "../rollout/rollout-state.ts";
import type { RolloutTokens } from "../rollout/samples/rollout-samples.ts";

export interface RolloutLineage {
  readonly taskDigest: string | null;
  readonly image: string | null;
  readonly verifier: string | null;
  readonly calls: number;
  readonly samples: number;
  /** Trained tokens by the version of the policy that sampled them. */
  readonly policyVersions: readonly { readonly version: string; readonly tokens: number }[];
  /** The rollout that it branched from, behind which turn, and how many of its calls are that one's: their tokens are trained there. */
  readonly parent: RolloutTokens["parent"];
  /** What became of its samples; null for a run that no trainer asked for, or of which nothing is kept. */
  readonly delivery: SampleFate | null;
}

export function lineageOf(rollout: RolloutState, tokens: RolloutTokens, delivery: SampleFate | null): RolloutLineage {
  const counts = new Map<string, number>();
  for (const { versions } of tokens.set.samples) {
    for (const index of versions) {
      const name = tokens.set.versions[index];
      if (name !== undefined) counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  return {
    taskDigest: rollout.task.digest,
    image: rollout.image,
    verifier: rollout.verifier,
    calls: tokens.calls.length,
    samples: tokens.set.samples.length,
    policyVersions: [...counts].map(([version, count]) => ({ version, tokens: count })),
    parent: tokens.parent,
    delivery,
  };
}

/** Null for a run that no trainer asked for, or whose delivery left nothing here. */
export async function openDeliveryLineage(home: string, run: RunId): Promise<DeliveryLineage | null> {
  const { trainer } = await readRunConfig(home, run);
  return trainer === null ? null : await DeliveryLineage.open(home, run, trainer);
}

export function fateOf(lineage: DeliveryLineage | null, state: RunState, rollout: RolloutState): SampleFate | null {
  const group: GroupState | undefined = state.groups.find((candidate) => candidate.group === rollout.group);
  if (lineage === null || group?.name === undefined || group.name === null) return null;
  return lineage.of({ group: group.name, member: rollout.attempt - 1, replacement: rollout.replacement, scoredAt: rollout.outcome === "scored" ? rollout.at : null });
}

export function lineageLines({ taskDigest, image, verifier, calls, samples, policyVersions, parent, delivery }: RolloutLineage): readonly string[] {
  return [
    `  task ${taskDigest ?? "unknown"}, image ${image ?? "none"}, verifier ${verifier ?? "none"}`,
    `  ${calls} model calls, ${samples} samples${policyVersions.length === 0 ? "" : `, policy versions ${policyVersions.map(({ version, tokens }) => `${version} (${tokens} tokens)`).join(", ")}`}`,
    ...(parent === null ? [] : [`  branched from ${parent.rollout} behind turn ${parent.turn}: the first ${parent.calls} model calls are that rollout's, and are trained there`]),
    ...(delivery === null ? [] : deliveryLines(delivery)),
  ];
}

function deliveryLines({ group, delivered, leases, ends }: SampleFate): readonly string[] {
  if (!delivered) return [`  group ${group} of its trainer, not delivered with it`];
  return [`  delivered in group ${group}`, ...leases.map(({ lease, consumer, at }) => `  ${at} leased to ${consumer}: ${lease}`), ...ends.map((end) => `  ${end.at} ${endText(end)}`)];
}

function endText({ outcome, reason, consumer, trainedVersion, step, checkpoint }: GroupEnd): string {
  const where = [step === null ? null : `step ${step}`, trainedVersion === null ? null : `version ${trainedVersion}`, checkpoint === null ? null : `checkpoint ${checkpoint}`].filter((part) => part !== null);
  return `${outcome}${consumer === null ? "" : ` by ${consumer}`}${where.length === 0 ? "" : ` in ${where.join(", ")}`}${reason === null ? "" : ` (${reason})`}`;
}

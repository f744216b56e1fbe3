/** From the call log of a rollout to its trace and samples, and from a run to the rows of all of them. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RunId } from "../../core/ids.ts";
import type { Call } from "../../gateway/call.ts";
import { readCalls } from "../../gateway/log/read-calls.ts";
import { buildSamples, type SampleOptions } from "../../gateway/samples/build-samples.ts";
import type { Sample, SampleSet } from "../../gateway/samples/sample.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import { buildTrace, type Trace } from "../../gateway/trace/trace.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import { readParent, type Parent } from "../checkpoint/parent.ts";
import type { RolloutState } from "../rollout-state.ts";
import type { RunState } from "../run-state.ts";
import type { SampleFacts, SampleRow } from "./sample-row.ts";

export interface RolloutTokens {
  readonly calls: readonly Call[];
  readonly trace: Trace;
  readonly set: SampleSet;
  /** The rollout that it branched from. */
  readonly parent: Parent | null;
}

/** What the calls of one rollout come to. Rejects `corrupt` for a damaged log. */
export async function rolloutTokens(directory: string, options: SampleOptions): Promise<RolloutTokens> {
  const calls: Call[] = [];
  for await (const call of readCalls(join(directory, "calls.jsonl"))) calls.push(call);
  const instruction = await readFile(join(directory, "instruction.md"), "utf8").catch(() => undefined);
  const trace = buildTrace(calls, { turnOf, ...(instruction === undefined ? {} : { instruction }) });
  const parent = await readParent(directory);
  return { calls, trace, set: buildSamples(calls, trace, { ...options, inherited: parent?.calls ?? 0 }), parent };
}

/** Recorded rollouts in the order of the plan. */
export async function* sampleRows(home: string, state: RunState, options: SampleOptions & { readonly scoredOnly: boolean }): AsyncGenerator<SampleRow> {
  // A state without a run has no groups.
  const run = state.run as RunId;
  for (const { rollouts } of state.groups) {
    for (const rollout of rollouts) {
      if (rollout.phase !== "recorded" || (options.scoredOnly && rollout.outcome !== "scored")) continue;
      const { set } = await rolloutTokens(rolloutDirectory(home, run, rollout.rollout), options);
      yield* rowsOf(run, rollout, set);
    }
  }
}

export function rowsOf(run: RunId, rollout: RolloutState, set: SampleSet): readonly SampleRow[] {
  return set.samples.map((sample, segment) => ({ facts: factsOf(run, rollout, set, sample, segment), arrays: sample }));
}

function factsOf(run: RunId, rollout: RolloutState, { builder, samples, versions }: SampleSet, sample: Sample, segment: number): SampleFacts {
  return {
    sample: `${rollout.rollout}/${segment}`,
    run,
    group: rollout.group,
    rollout: rollout.rollout,
    task: rollout.task.name,
    family: rollout.task.family,
    task_digest: rollout.task.digest,
    attempt: rollout.attempt,
    harness: rollout.harness,
    seed: rollout.seed,
    segment,
    segments: samples.length,
    builder,
    kind: sample.kind,
    calls: sample.calls,
    // Recorded rollouts have one.
    outcome: rollout.outcome ?? "",
    stop_reason: rollout.stopReason,
    reward: rollout.reward,
    rewards: rollout.rewards,
    weight: 1 / samples.length,
    prompt_length: sample.promptLength,
    shared_length: sample.sharedLength,
    version_names: versions,
  };
}

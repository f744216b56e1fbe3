/** What is known of a group that has ended, for its trainer and for the log. */
import type { GroupFacts, GroupOutcome } from "./contract.ts";
import type { MemberFailure } from "./events.ts";
import type { KeptMember } from "./kept-members.ts";
import type { Group } from "./state.ts";

export interface GroupEnding {
  readonly group: Group;
  readonly outcome: GroupOutcome;
  readonly expected: number;
  readonly attempts: number;
  readonly name: string | null;
  readonly members: readonly KeptMember[];
  /** Beyond those that the group knows already. */
  readonly failures: readonly MemberFailure[];
  readonly run: string;
  readonly epoch: number;
  readonly at: number;
}

/** Bytes of a sample beside its tokens: its place among the offsets. */
const SAMPLE_BYTES = 8;
const TOKEN_BYTES = 13;
/** Kinds of failures that are told apart in one group. */
const FAILURES_SHOWN = 64;

export function groupFacts({ group, outcome, expected, attempts, name, members, failures, run, epoch, at }: GroupEnding): GroupFacts {
  const samples = members.reduce((sum, member) => sum + member.samples, 0);
  const tokens = members.reduce((sum, member) => sum + member.tokens, 0);
  return {
    group_id: group.id,
    group: name ?? group.id,
    run,
    epoch,
    task: group.name,
    family: group.family,
    task_digest: group.digest,
    dataset: group.dataset,
    outcome,
    expected,
    usable: members.length,
    attempts,
    version_min: members.length === 0 ? null : Math.min(...members.map(({ versionMin }) => versionMin)),
    version_max: members.length === 0 ? null : Math.max(...members.map(({ versionMax }) => versionMax)),
    accepted_at: group.acceptedAt,
    started_at: group.begunAt,
    ended_at: at,
    failures: countFailures([...group.failed.map(({ failure }) => failure), ...failures]),
    samples,
    tokens,
    bytes: tokens * TOKEN_BYTES + (samples + 1) * SAMPLE_BYTES,
    metadata: group.spec.metadata ?? {},
  };
}

function countFailures(failures: readonly MemberFailure[]): GroupFacts["failures"] {
  const counted = new Map<string, GroupFacts["failures"][number]>();
  for (const failure of failures) {
    const key = `${failure.class} ${failure.code} ${failure.permanent}`;
    const before = counted.get(key);
    if (before !== undefined) before.count++;
    else if (counted.size < FAILURES_SHOWN) counted.set(key, { ...failure, count: 1 });
  }
  return [...counted.values()];
}

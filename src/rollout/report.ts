/** The documents that a run and a rollout are shown as. Their shapes are a stable surface, pinned by tests. */
import type { Failure } from "./events.ts";
import { secondsOf, type Phase, type RolloutState } from "./rollout-state.ts";
import type { RunState } from "./run-state.ts";

/** One rollout as `mw run --json` lists it. */
export interface RolloutLine {
  readonly rollout: string;
  readonly task: string;
  readonly family: string;
  readonly attempt: number;
  /** Null while it has not ended. */
  readonly outcome: string | null;
  /** Finite, null unless scored. */
  readonly reward: number | null;
  readonly seconds: number;
  readonly harness: string;
  readonly stopReason: string | null;
  readonly tries: number;
  readonly error: Failure | null;
}

export interface RunDocument {
  readonly run: string;
  readonly status: RunState["status"];
  readonly rollouts: readonly RolloutLine[];
  readonly outcomes: Readonly<Record<string, number>>;
  /** Inputs that are no tasks. */
  readonly refused: readonly { readonly source: string; readonly error: Failure }[];
}

export function runDocument(state: RunState): RunDocument {
  return {
    run: state.run ?? "",
    status: state.status,
    rollouts: state.groups.flatMap((group) => group.rollouts.map(rolloutLine)),
    outcomes: Object.fromEntries([...state.outcomes].sort(([a], [b]) => (a < b ? -1 : 1))),
    refused: state.refused,
  };
}

function rolloutLine(state: RolloutState): RolloutLine {
  return {
    rollout: state.rollout,
    task: state.task.name,
    family: state.task.family,
    attempt: state.attempt,
    outcome: state.outcome,
    reward: state.reward,
    seconds: state.phase === "recorded" ? secondsOf(state) : 0,
    harness: state.harness,
    stopReason: state.stopReason,
    tries: state.try,
    error: state.error,
  };
}

export interface RolloutDocument extends RolloutLine {
  readonly group: string;
  readonly taskDigest: string | null;
  readonly taskDirectory: string;
  readonly seed: string;
  readonly phase: Phase;
  readonly rewards: Readonly<Record<string, number>>;
  readonly turns: number;
  readonly promptTokens: number;
  /** Of these: those that the model server says it had cached. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** By tries that do not stand, besides what the next one went on with. */
  readonly thrownAway: RolloutState["thrownAway"];
  readonly modelMs: number;
  readonly toolMs: number;
  /** The rest of the agent's time: neither its model nor its tools were at work. */
  readonly waitMs: number;
  /** CPU time of the machine while the agent worked; null where nobody counts. */
  readonly cpuMs: number | null;
  /** How long the machine stood still while the model was thinking. */
  readonly frozenMs: number;
  /** The rollout of its group from which it branched, and behind which turn; null for one that began at its task's beginning. */
  readonly branch: { readonly parent: string; readonly turn: number } | null;
  /** How many were taken, and what they cost: time of the rollout, of that the machine's standstill, bytes of snapshots. */
  readonly checkpoints: RolloutState["checkpoints"];
  /** Milliseconds spent in each phase of the last try. */
  readonly phaseMs: Readonly<Partial<Record<Phase, number>>>;
}

export function rolloutDocument(state: RolloutState): RolloutDocument {
  return {
    ...rolloutLine(state),
    group: state.group,
    taskDigest: state.task.digest,
    taskDirectory: state.task.directory,
    seed: state.seed,
    phase: state.phase,
    rewards: state.rewards,
    turns: state.turns,
    promptTokens: state.promptTokens,
    cachedTokens: state.cachedTokens,
    completionTokens: state.completionTokens,
    thrownAway: state.thrownAway,
    modelMs: state.modelMs,
    toolMs: state.toolMs,
    waitMs: Math.max(0, (state.phaseMs.running ?? 0) - state.modelMs - state.toolMs),
    cpuMs: state.cpuMs,
    frozenMs: state.frozenMs,
    branch: branchOf(state),
    checkpoints: state.checkpoints,
    phaseMs: state.phaseMs,
  };
}

/** Where it really branched, which is before the planned turn where the other rollout had ended by then; as planned while it has not begun. */
function branchOf({ branch, restored, branchLost }: RolloutState): RolloutDocument["branch"] {
  if (branch === null || branchLost) return null;
  return restored?.parent === branch.parent ? { parent: branch.parent, turn: restored.turn } : branch;
}

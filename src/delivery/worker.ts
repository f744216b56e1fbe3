/**
 * What runs the rollouts of groups. The delivery service decides which are begun and when, and what becomes of their ends; a worker makes them happen: in machines
 * (`rollout/`), or as a simulation of load.
 */
import type { Outcome, StopReason } from "../core/outcome.ts";
import type { RunId } from "../core/ids.ts";
import type { SampleRow } from "../rollout/samples/sample-row.ts";
import type { PolicyUpdate, RunRequest } from "./contract.ts";

export interface MemberJob {
  /** The group's name, as its trainer or the mix gave it. */
  readonly groupId: string;
  /** Absolute directory of the task. */
  readonly task: string;
  readonly dataset: string | null;
  /** Position in the group, from 0, and how often the position was tried before. */
  readonly member: number;
  readonly attempt: number;
  readonly seed: string;
  /** Candidates, of which the seed draws one. */
  readonly harness: readonly string[];
  readonly sampling: Readonly<Record<string, number>>;
  /** From the start; null: what the task says. */
  readonly deadlineMs: number | null;
}

export interface MemberEnd {
  /** Ours, as in the run's directory; null when it never began. */
  readonly rollout: string | null;
  readonly group: string;
  readonly task: { readonly name: string; readonly family: string; readonly digest: string | null };
  readonly outcome: Outcome;
  readonly reward: number | null;
  readonly rewards: Readonly<Record<string, number>>;
  readonly stopReason: StopReason | null;
  readonly error: { readonly code: string; readonly message: string; readonly permanent: boolean } | null;
  readonly startedAt: number | null;
  readonly endedAt: number;
  readonly timings: { readonly queueMs: number; readonly bootMs: number; readonly generateMs: number; readonly toolMs: number; readonly rewardMs: number };
  readonly turns: number;
  readonly toolErrors: number | null;
  readonly model: string;
  readonly tokenizer: string | null;
  readonly image: string | null;
  readonly verifier: string | null;
  /** What it can be trained with; empty where nothing was sampled. Versions are names of policy versions: decimal numbers. */
  readonly samples: readonly SampleRow[];
}

/** What the trainer said last about its policy, whole: fields that an update left out are as they were. */
export type PolicyState = Required<PolicyUpdate>;

export interface TaskFacts {
  readonly name: string;
  readonly family: string;
  readonly digest: string | null;
}

export interface RolloutWorker {
  /** Looks at a task before a group of it is accepted. Rejects `invalid_task`, or `unsupported` for what this host cannot do. */
  check(task: string, harness: readonly string[]): Promise<TaskFacts>;
  /**
   * Told of every change of the policy, in order, and once when it is opened for a run that has one. Resolves when new model calls go by it: held while `updating`, else sampled by
   * its endpoints and stamped with its version. The version is lower than before only after a restore.
   */
  setPolicy(policy: PolicyState): Promise<void>;
  /**
   * Runs one rollout and resolves with its end, whatever it is; rejects only for bugs. Aborting ends it as `cancelled` soon. A job that an earlier process of this run began
   * (same group, member and attempt) is taken up: what is recorded of it is not run again. Rejects `cancelled` when the worker was closed before the end: then it is a later process's.
   */
  run(job: MemberJob, signal: AbortSignal): Promise<MemberEnd>;
  /** No member of this group is asked for again: what is kept of it for that can go. May be told more than once, and of groups that it never heard of. */
  over(groupId: string): void;
  /** Ends what runs and leaves it for a later process; aborting jobs instead would record them as cancelled. `finished`: for good, nothing of it is asked for again. */
  close(finished?: boolean): Promise<void>;
}

export interface WorkerRequest {
  /** Of the directory under `MW_HOME/runs` where the rollouts are recorded; the same each time that this run is opened. */
  readonly run: RunId;
  readonly name: string;
  readonly epoch: number;
  readonly request: RunRequest;
}

/** Makes what runs the rollouts of one run, or takes up what an earlier process left of it. Rejects with what makes the request impossible here. */
export type WorkerFactory = (request: WorkerRequest) => Promise<RolloutWorker>;

/**
 * What is written in a run's log. Each event is written before the step that it announces; state is a fold over them (`run-state.ts`).
 */
import type { ErrorCode } from "../core/errors.ts";
import { MwError, toMwError } from "../core/errors.ts";
import type { GroupId, RolloutId, RunId, SandboxId } from "../core/ids.ts";
import type { Outcome, StopReason } from "../core/outcome.ts";
import type { Isolation } from "../sandbox/sandbox.ts";
import type { LogEvent } from "../store/event-log.ts";

/** A failure as it is kept. */
export interface Failure {
  readonly code: ErrorCode;
  readonly message: string;
  readonly fix: string | null;
}

export interface TaskReference {
  readonly name: string;
  readonly family: string;
  /** `sha256:...`; null for a task that could not be read. */
  readonly digest: string | null;
  readonly directory: string;
}

export interface PlannedRollout {
  readonly rollout: RolloutId;
  /** From 1 to the run's number of attempts. */
  readonly attempt: number;
  readonly seed: string;
  readonly harness: string;
}

interface OfRollout {
  readonly rollout: RolloutId;
  /** From 1: a rollout that failed through no act of the policy is tried again. */
  readonly try: number;
}

export type RunEvent =
  /** First event of the log. */
  | { readonly type: "run_created"; readonly run: RunId }
  /** A controller has taken the run, at its beginning or again. */
  | { readonly type: "controller_started"; readonly pid: number; readonly version: string }
  /** Something given as a task that is none; `source` as the user or the dataset named it. */
  | { readonly type: "input_refused"; readonly source: string; readonly error: Failure }
  | { readonly type: "group_planned"; readonly group: GroupId; readonly index: number; readonly source: string; readonly task: TaskReference; readonly error: Failure | null; readonly rollouts: readonly PlannedRollout[] }
  /** Everything that was given has been read. */
  | { readonly type: "plan_completed"; readonly groups: number }
  | ({ readonly type: "rollout_admitted" } & OfRollout)
  | ({ readonly type: "rollout_leased"; readonly sandbox: SandboxId; readonly image: string; readonly isolation: Isolation; readonly network: string } & OfRollout)
  | ({ readonly type: "rollout_prepared" } & OfRollout)
  | ({ readonly type: "rollout_running"; readonly step: string | null } & OfRollout)
  | ({
      readonly type: "rollout_ended";
      readonly step: string | null;
      readonly stopReason: StopReason;
      readonly detail: string;
      readonly turns: number;
      readonly promptTokens: number;
      readonly completionTokens: number;
      readonly modelMs: number;
      readonly toolMs: number;
      /** Of the machine while the agent worked; null where nobody counts. Absent in logs of versions that did not say. */
      readonly cpuMs?: number | null;
      /** How long the machine stood still while the model was thinking. */
      readonly frozenMs?: number;
    } & OfRollout)
  | ({ readonly type: "rollout_collected"; readonly step: string | null; readonly artifacts: number; readonly artifactBytes: number; readonly refused: number } & OfRollout)
  | ({ readonly type: "rollout_verified"; readonly step: string | null; readonly status: string; readonly reward: number | null; readonly verifierDigest: string | null } & OfRollout)
  /** This try is over and does not stand; the rollout waits for the next one. */
  | ({ readonly type: "rollout_try_failed"; readonly outcome: Outcome; readonly error: Failure; readonly cause: "failure" | "controller_lost" | "interrupted" } & OfRollout)
  /** Terminal, once per rollout. `reward` is finite, and null unless scored. */
  | ({
      readonly type: "rollout_recorded";
      readonly outcome: Outcome;
      readonly reward: number | null;
      readonly rewards: Readonly<Record<string, number>>;
      readonly stopReason: StopReason | null;
      readonly error: Failure | null;
    } & OfRollout)
  /** The controller stopped before the end, on request or because the host would not let it go on. */
  | { readonly type: "run_interrupted"; readonly reason: string }
  | { readonly type: "run_finished" };

export type RunEventType = RunEvent["type"];

const VERSIONS: Readonly<Record<RunEventType, number>> = {
  run_created: 1,
  controller_started: 1,
  input_refused: 1,
  group_planned: 1,
  plan_completed: 1,
  rollout_admitted: 1,
  rollout_leased: 1,
  rollout_prepared: 1,
  rollout_running: 1,
  rollout_ended: 1,
  rollout_collected: 1,
  rollout_verified: 1,
  rollout_try_failed: 1,
  rollout_recorded: 1,
  run_interrupted: 1,
  run_finished: 1,
};

export function toLogEvent(event: RunEvent): LogEvent {
  return { ...event, v: VERSIONS[event.type] };
}

/** Rejects what a newer version of the product has written. */
export function fromLogEvent(event: LogEvent): RunEvent {
  const known = (VERSIONS as Readonly<Record<string, number>>)[event.type];
  if (known === undefined || event.v > known) {
    throw new MwError("unsupported", `the run's log holds an event ${JSON.stringify(event.type)} (version ${event.v}) that this version does not know`, {
      fix: "use the version of mw that wrote the run, or a newer one",
    });
  }
  // Type and version are ours, and the line's checksum says that nothing was changed.
  return event as unknown as RunEvent;
}

export function toFailure(error: unknown): Failure {
  const { code, message, fix } = toMwError(error);
  return { code, message, fix: fix ?? null };
}

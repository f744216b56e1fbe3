/**
 * What is written in a run's log. Each event is written before the step that it announces; state is a fold over them (`run-state.ts`).
 */
import type { ErrorCode } from "../core/errors.ts";
import { MwError, toMwError } from "../core/errors.ts";
import type { GroupId, RolloutId, RunId, SandboxId } from "../core/ids.ts";
import type { Outcome, StopReason } from "../core/outcome.ts";
import type { Tokens } from "../gateway/call.ts";
import type { EgressRefusal, EgressReport, Isolation } from "../sandbox/sandbox.ts";
import type { LogEvent } from "../store/event-log.ts";
import type { Checkpoint } from "./checkpoint/record.ts";

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
  /** From 1 to the run's number of attempts; of a group that a trainer asked for, the position in it. */
  readonly attempt: number;
  readonly seed: string;
  readonly harness: string;
  /** How many rollouts were begun at this position before it, whose place it takes. Absent: none. */
  readonly replacement?: number;
  /** By their wire names, over the run's. */
  readonly sampling?: Readonly<Record<string, number>>;
  /** From its admission; then its agent is stopped. */
  readonly deadlineMs?: number;
  /** It branches from that rollout of its group behind that turn, or behind the last one kept of it where it ended before. */
  readonly branch?: { readonly parent: RolloutId; readonly turn: number };
}

export interface EgressFacts extends Pick<EgressReport, "connections" | "sentBytes" | "receivedBytes" | "refused"> {
  readonly refusals: readonly Pick<EgressRefusal, "host" | "port" | "reason" | "count">[];
}

interface OfRollout {
  readonly rollout: RolloutId;
  /** From 1: a rollout that failed through no act of the policy is tried again. */
  readonly try: number;
}

/** Of a try that ends while its agent is at work: what that has asked for, of which no `rollout_ended` tells. Absent: nothing, nobody knows, or a log of an earlier version. */
export type Untold = Partial<Tokens>;

export type RunEvent =
  /** First event of the log. */
  | { readonly type: "run_created"; readonly run: RunId }
  /** A controller has taken the run, at its beginning or again. */
  | { readonly type: "controller_started"; readonly pid: number; readonly version: string }
  /** Something given as a task that is none; `source` as the user or the dataset named it. */
  | { readonly type: "input_refused"; readonly source: string; readonly error: Failure }
  | { readonly type: "group_planned"; readonly group: GroupId; readonly index: number; readonly source: string; readonly task: TaskReference; readonly error: Failure | null; readonly rollouts: readonly PlannedRollout[]; /** Of the whole plan, where that has just come to be known. */ readonly inputs?: number; /** As the trainer calls it that asked for it. */ readonly name?: string; /** Part of a trainer's mix. */ readonly dataset?: string }
  /** More of a group that was planned before. */
  | { readonly type: "rollouts_planned"; readonly group: GroupId; readonly rollouts: readonly PlannedRollout[] }
  /** Everything that was given has been read. */
  | { readonly type: "plan_completed"; readonly groups: number }
  | ({ readonly type: "rollout_admitted" } & OfRollout)
  | ({ readonly type: "rollout_leased"; readonly sandbox: SandboxId; readonly image: string; readonly isolation: Isolation; readonly network: string; /** Of the network `allowlist`: what is reached to begin with. */ readonly allow?: readonly string[]; /** What the task declares for its agent, where the run has put another in its place. */ readonly networkDeclared?: string } & OfRollout)
  /** It goes on behind a turn: its own (`parent` null), or that of the rollout that it branches from, of which it has so many calls. Tokens: of its own earlier tries, what it goes on with. */
  | ({ readonly type: "rollout_restored"; readonly turn: number; readonly parent: RolloutId | null; readonly calls: number; /** An answer that was recorded before the death is carried out without asking again. */ readonly answered: boolean } & OfRollout & Partial<Tokens>)
  | ({ readonly type: "rollout_prepared" } & OfRollout)
  | ({ readonly type: "rollout_running"; readonly step: string | null; /** Of the network `allowlist`: what is reached from here on. */ readonly allow?: readonly string[] } & OfRollout)
  /** The machine outlived the controller; this one has it now, and goes on with its agent. */
  | ({ readonly type: "rollout_taken_over"; readonly sandbox: SandboxId } & OfRollout)
  /** Written when all that the checkpoint consists of is durable. `kept`: others branch from it. `ms`: what it cost; `stoppedMs` of that the machine stood still. `bytes`: of the snapshot. */
  | ({ readonly type: "rollout_checkpointed"; readonly checkpoint: Checkpoint; readonly kept: boolean; readonly ms: number; readonly stoppedMs: number; readonly bytes: number } & OfRollout)
  | ({
      readonly type: "rollout_ended";
      readonly step: string | null;
      readonly stopReason: StopReason;
      readonly detail: string;
      readonly turns: number;
      readonly promptTokens: number;
      /** Of the tokens in prompts: those that the server says it had cached. Absent: none, or a log of an earlier version. */
      readonly cachedTokens?: number;
      readonly completionTokens: number;
      readonly modelMs: number;
      readonly toolMs: number;
      /** Of the machine while the agent worked; null where nobody counts. Absent in logs of versions that did not say. */
      readonly cpuMs?: number | null;
      /** How long the machine stood still while the model was thinking. */
      readonly frozenMs?: number;
      /** Of a machine with the network `allowlist`: what its proxy passed on and refused until now. */
      readonly egress?: EgressFacts;
      /** Of the policy, that sampled; absent where none was said. */
      readonly policyVersions?: readonly string[];
    } & OfRollout)
  | ({ readonly type: "rollout_collected"; readonly step: string | null; readonly artifacts: number; readonly artifactBytes: number; readonly refused: number } & OfRollout)
  | ({ readonly type: "rollout_verified"; readonly step: string | null; readonly status: string; readonly reward: number | null; readonly verifierDigest: string | null; /** What the tests could reach. Absent: what the agent could, or a log of an earlier version. */ readonly network?: string } & OfRollout)
  /** This try is over and does not stand; the rollout waits for the next one. */
  | ({ readonly type: "rollout_try_failed"; readonly outcome: Outcome; readonly error: Failure; readonly cause: "failure" | "controller_lost" | "interrupted" | /** The next try begins anew. */ "checkpoint_lost" } & OfRollout & Untold)
  /** Terminal, once per rollout. `reward` is finite, and null unless scored. */
  | ({
      readonly type: "rollout_recorded";
      readonly outcome: Outcome;
      readonly reward: number | null;
      readonly rewards: Readonly<Record<string, number>>;
      readonly stopReason: StopReason | null;
      readonly error: Failure | null;
    } & OfRollout & Untold)
  /** The controller stopped before the end, on request or because the host would not let it go on. */
  | { readonly type: "run_interrupted"; readonly reason: string }
  | { readonly type: "run_finished" };

export type RunEventType = RunEvent["type"];

const VERSIONS: Readonly<Record<RunEventType, number>> = {
  run_created: 1,
  controller_started: 1,
  input_refused: 1,
  group_planned: 1,
  rollouts_planned: 1,
  plan_completed: 1,
  rollout_admitted: 1,
  rollout_leased: 1,
  rollout_restored: 1,
  rollout_prepared: 1,
  rollout_running: 1,
  rollout_taken_over: 1,
  rollout_checkpointed: 1,
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

export function fromFailure({ code, message, fix }: Failure): MwError {
  return new MwError(code, message, fix === null ? {} : { fix });
}

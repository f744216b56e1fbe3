/** What a try is given, and what comes of it. */
import type { MwError } from "../../core/errors.ts";
import type { RolloutId, RunId } from "../../core/ids.ts";
import type { Outcome, StopReason } from "../../core/outcome.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Budgets, Harness } from "../../harness/harness.ts";
import type { LayerMount, SandboxBackend } from "../../sandbox/sandbox.ts";
import type { NetworkOverride } from "../../task/network.ts";
import type { Task } from "../../task/task.ts";
import type { Verifier } from "../../task/verify/verify.ts";
import type { Call, Tokens } from "../../gateway/call.ts";
import type { Checkpoint } from "../checkpoint/record.ts";
import type { Restored } from "../checkpoint/restore.ts";
import type { RunEvent } from "../events.ts";
import type { LastTurn } from "../checkpoint/history.ts";
import type { ModelAccess } from "../model-access.ts";
import type { RolloutRecorder } from "../recorder.ts";
import type { Survivor } from "../take-over/survivors.ts";
import type { TaskImages } from "../task-images.ts";

export interface TryServices {
  readonly runtime: Runtime;
  readonly backend: SandboxBackend;
  readonly images: TaskImages;
  readonly verifier: Verifier;
  /** What the machines of a harness have over the task's image; made when they are first asked for. */
  readonly layers: (harness: Harness) => Promise<readonly LayerMount[]>;
  readonly model: ModelAccess | null;
  readonly budgets: Omit<Budgets, "timeMs">;
  readonly networkOverride: NetworkOverride;
  readonly timeoutMultiplier: number;
  readonly keepWorkspace: boolean;
  readonly pauseOnThink: boolean;
  /** See `CheckpointRule.everyMs`. */
  readonly checkpointEveryMs: number | null;
  /** How long machines outlive this controller; null: they do not. */
  readonly takeOverSeconds: number | null;
  /** Resolves `${VAR}` of a task's environment table. */
  readonly expandEnv: (env: Readonly<Record<string, string>>, where: string) => Readonly<Record<string, string>>;
}

export interface TryRequest {
  readonly run: RunId;
  readonly rollout: RolloutId;
  readonly try: number;
  readonly task: Task;
  readonly harness: Harness;
  readonly seed: string;
  /** Over the run's, by their wire names. */
  readonly sampling: Readonly<Record<string, number>>;
  /** From now, milliseconds; then the agent is stopped, whatever its task allows it. */
  readonly deadlineMs: number | null;
  /** Behind this turn others branch; null: nowhere. */
  readonly branchTurn: number | null;
  /** Where it goes on; its files are in the rollout's directory already. Null: at the beginning. */
  readonly restored: Restored | null;
  /** A machine that outlived the controller of this same try, in which it goes on. Null: the try makes its machine. */
  readonly survivor: LivingTry | null;
  /** Of the rollout from which this one branches, or its own: what decides its harness's setup. */
  readonly setupSeed: string;
  readonly recorder: RolloutRecorder;
  /** For what another controller needs to go on with the agent. */
  readonly handoverDirectory: string;
  readonly emit: (event: RunEvent) => Promise<void>;
  readonly signal: AbortSignal;
}

export interface TryResult {
  readonly outcome: Outcome;
  readonly reward: number | null;
  readonly rewards: Readonly<Record<string, number>>;
  readonly stopReason: StopReason | null;
  readonly error: MwError | null;
  /** What the rollout has asked for by itself until now; absent for a try that did not come to that. */
  readonly asked?: Tokens;
  /** What it was to go on with is no good, a checkpoint or a living machine: that costs no try of the rule's. */
  readonly lost?: "checkpoint_lost" | "controller_lost";
}

export interface LivingTry extends Survivor {
  /** Calls of its agent. */
  readonly earlier: readonly Call[];
  /** Of a loop of ours: where it stood, and the checkpoint that it has. */
  readonly turn: LastTurn | null;
  readonly checkpoint: Checkpoint | null;
}

/** Whether another controller could go on with the agent when this one dies, or this one does so. */
export function isHandedOver({ takeOverSeconds }: TryServices, { harness, task }: TryRequest): boolean {
  return takeOverSeconds !== null && (harness.handedOver === true || harness.continues === true) && task.steps.length === 0;
}

/** Whether checkpoints are taken of a try, or it goes on from one. */
export function keepsCheckpoints({ checkpointEveryMs }: TryServices, { harness, task, branchTurn, restored }: TryRequest): boolean {
  return harness.continues === true && task.steps.length === 0 && (checkpointEveryMs !== null || branchTurn !== null || restored !== null);
}

/**
 * A rollout's checkpoint: one record, in the run's log, that binds what a rollout is between two turns. Messages, calls and their tokens are what the rollout's own append-only files held
 * at that moment, by length and digest; the machine is a snapshot. What those files hold beyond is what happened since: the answer that the next turn was to carry out, the tool calls
 * that had begun.
 */
import type { RolloutId, SnapshotId } from "../../core/ids.ts";
import type { LoopState } from "../../harness/continuity.ts";

/** Of an append-only file: its first bytes. */
export interface FilePosition {
  readonly bytes: number;
  /** Of those bytes, `sha256:` and hexadecimal. */
  readonly sha256: string;
}

export interface Checkpoint {
  /** Turns that are whole, from 1. */
  readonly turn: number;
  readonly snapshot: SnapshotId;
  /** The machine's processes are in it, too. */
  readonly memory: boolean;
  /** Digest of what the machine started from. */
  readonly image: string;
  /** By their names in the rollout's directory: `history.jsonl` (messages), `calls.jsonl` (calls with their tokens), and what people read. */
  readonly files: Readonly<Record<string, FilePosition>>;
  /** Commands and calls until then. */
  readonly commands: number;
  readonly calls: number;
  /** Of the policy that sampled the last answer; null where nobody says. */
  readonly policyVersion: string | null;
  readonly state: LoopState;
  /** Of the agent's time, milliseconds. */
  readonly agentMs: number;
}

/** Where a rollout begins in the middle: at its own checkpoint, or at that of the one that it branches from. */
export interface CheckpointSource {
  readonly checkpoint: Checkpoint;
  /** Null: its own. */
  readonly parent: RolloutId | null;
  /** Directory of the rollout whose checkpoint it is: its files are there, or in one of its `tries/`. */
  readonly directory: string;
}

/** Append-only files of a rollout's directory that a checkpoint keeps the head of. */
export const CHECKPOINTED_FILES = ["history.jsonl", "calls.jsonl", "transcript.jsonl", "commands.jsonl", "notes.txt"] as const;

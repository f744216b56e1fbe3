/**
 * Keeps the continuity of one try's loop: its history, and its checkpoints. Of these, in this order, each step durable before the next: the rollout's files, the machine's snapshot, the record in the run's log, the end of the snapshot
 * before it. A death between two of them leaves the earlier checkpoint valid, and at most a snapshot that nobody names, which the next controller removes.
 *
 * A checkpoint is the whole or nothing: what cannot be kept (processes, where only files can) is no reason to keep less of it, but to wait for the next turn.
 */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { toMwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { SnapshotId } from "../../core/ids.ts";
import { withDeadline } from "../../core/deadline.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Message } from "../../gateway/conversation.ts";
import type { Continuity, LoopState, ResumePoint } from "../../harness/continuity.ts";
import type { Handover } from "../../harness/handover.ts";
import type { Sandbox, SnapshotTaken } from "../../sandbox/sandbox.ts";
import type { RolloutRecorder } from "../recorder.ts";
import type { LoopRecord } from "../take-over/loop-record.ts";
import { PrefixDigest } from "./prefix-digest.ts";
import { CHECKPOINTED_FILES, type Checkpoint, type FilePosition } from "./record.ts";
import type { Restored } from "./restore.ts";

export interface CheckpointRule {
  /** At most so often, milliseconds; 0: behind every turn; null: only where others branch. */
  readonly everyMs: number | null;
  /** Behind this turn others branch. */
  readonly branchTurn: number | null;
}

export interface CheckpointerOptions {
  readonly rule: CheckpointRule;
  readonly sandbox: Sandbox;
  readonly recorder: RolloutRecorder;
  readonly runtime: Runtime;
  readonly image: string;
  readonly labels: Readonly<Record<string, string>>;
  /** Processes can be kept. */
  readonly memory: boolean;
  /** What a tool call does can reach beyond the machine. */
  readonly reachesOut: boolean;
  readonly restored: Restored | null;
  /** Where it goes on in its living machine, and the checkpoint that it has; null: it does not. */
  readonly living: { readonly point: ResumePoint; readonly checkpoint: Checkpoint | null } | null;
  /** What the next controller needs for that; null: the machine ends with this one. */
  readonly loop: LoopRecord | null;
  /** Of the agent until now, milliseconds. */
  readonly agentMs: () => number;
  readonly record: (taken: { readonly checkpoint: Checkpoint; readonly kept: boolean; readonly ms: number; readonly stoppedMs: number; readonly bytes: number }) => Promise<void>;
  readonly removeSnapshot: (snapshot: SnapshotId) => Promise<void>;
  readonly signal: AbortSignal;
}

export class Checkpointer implements Continuity {
  readonly from: ResumePoint | null;
  readonly #options: CheckpointerOptions;
  readonly #digests = new Map<string, PrefixDigest>();
  #lastAt: number;
  /** The one before, when nobody branches from it. */
  #previous: SnapshotId | null;
  /** So many processes, or more, are too many for a snapshot of files. */
  #notWhole = Infinity;
  /** Processes that were ever counted at once. */
  #fewest = Infinity;
  #told = false;

  constructor(options: CheckpointerOptions) {
    const { restored, living, reachesOut, runtime, rule } = options;
    this.#options = options;
    this.#lastAt = runtime.monotonic();
    const own = living !== null ? living.checkpoint : restored === null || restored.parent !== null ? null : restored.checkpoint;
    this.#previous = own === null || own.turn === rule.branchTurn ? null : own.snapshot;
    this.from = living?.point ?? (restored === null ? null : { state: ownState(restored), messages: restored.messages, answered: restored.answered, begun: reachesOut ? restored.begun : new Set(), ahead: [], shell: null });
  }

  async beginning(state: LoopState, shell: string): Promise<void> {
    const { loop, living, recorder } = this.#options;
    // It has begun in a living machine.
    if (loop === null || living !== null) return;
    await recorder.history({ state, shell, begun: [...(this.from?.begun ?? [])] });
    await loop.begins();
  }

  async said(message: Message): Promise<void> {
    const { loop, recorder } = this.#options;
    await recorder.history({ say: message });
    await loop?.acted();
  }

  replaced(messages: readonly Message[], state: LoopState): Promise<void> {
    return this.#options.recorder.history({ replace: messages, state });
  }

  async acting(call: number, index: number): Promise<Handover | undefined> {
    await this.#options.recorder.history({ act: index, call });
    return await this.#options.loop?.acting(call, index);
  }

  async between(state: LoopState): Promise<void> {
    const { rule, runtime, reachesOut, signal, recorder, loop } = this.#options;
    if (loop !== null) await recorder.history({ state });
    const kept = state.turns === rule.branchTurn;
    const due = rule.everyMs !== null && (reachesOut || runtime.monotonic() - this.#lastAt >= rule.everyMs);
    if ((!due && !kept) || signal.aborted) return;
    const startedAt = runtime.monotonic();
    const taken = await this.#snapshot(state.turns);
    if (taken === null) return;
    const { snapshot, stoppedMs } = taken;
    const files = await this.#files();
    const { lastNumber, lastVersion } = recorder.calls;
    const checkpoint: Checkpoint = {
      turn: state.turns,
      snapshot: snapshot.id,
      memory: snapshot.memory,
      image: this.#options.image,
      files,
      commands: recorder.commands,
      calls: lastNumber,
      policyVersion: lastVersion,
      state,
      agentMs: Math.round(this.#options.agentMs()),
    };
    await this.#options.record({ checkpoint, kept, ms: rounded(runtime.monotonic() - startedAt), stoppedMs: rounded(stoppedMs), bytes: snapshot.bytes });
    await this.#release(kept ? null : snapshot.id);
    this.#lastAt = runtime.monotonic();
  }

  /** Null when this turn cannot be kept; the rollout goes on without. */
  async #snapshot(turn: number): Promise<SnapshotTaken | null> {
    const { sandbox, memory, recorder, signal } = this.#options;
    try {
      const { pids } = await sandbox.metrics();
      if (pids !== null) this.#fewest = Math.min(this.#fewest, pids);
      // As many as when files alone were not the whole: they will not be now.
      if (pids === null || pids < this.#notWhole) {
        const taken = await this.#keep(turn, false);
        if (taken.method === "switched") return taken;
        await this.#options.removeSnapshot(taken.snapshot.id);
        // Where nobody counts, or no more are there than ever, it was something that passes.
        if (pids !== null && pids > this.#fewest) this.#notWhole = pids;
      }
      if (memory) return await this.#keep(turn, true);
      if (!this.#told) await recorder.note(`no checkpoint behind turn ${turn}, nor as long as that is so: processes run in the machine or files lie in /dev/shm, which cannot be kept here`);
      this.#told = true;
    } catch (error) {
      if (!signal.aborted) await recorder.note(`no checkpoint behind turn ${turn}: ${toMwError(error).message}`);
    }
    return null;
  }

  #keep(turn: number, memory: boolean): Promise<SnapshotTaken> {
    const { sandbox, labels, runtime, signal } = this.#options;
    return withDeadline(runtime, LIMITS.prepareTimeoutMs, "keeping the machine", signal, () => sandbox.snapshot({ memory, labels: { ...labels, checkpoint: String(turn) } }));
  }

  async #files(): Promise<Readonly<Record<string, FilePosition>>> {
    const { directory } = this.#options.recorder;
    const files: Record<string, FilePosition> = {};
    for (const name of CHECKPOINTED_FILES) {
      const path = join(directory, name);
      const bytes = (await stat(path).catch(() => null))?.size;
      if (bytes === undefined) continue;
      const digest = this.#digests.get(name) ?? new PrefixDigest(path);
      this.#digests.set(name, digest);
      const sha256 = await digest.of(bytes);
      // It was this long a moment ago, and nothing but this process writes to it.
      if (sha256 !== null) files[name] = { bytes, sha256 };
    }
    return files;
  }

  async #release(next: SnapshotId | null): Promise<void> {
    const previous = this.#previous;
    this.#previous = next;
    // What stays behind is swept by the next controller.
    if (previous !== null) await this.#options.removeSnapshot(previous).catch(() => undefined);
  }
}

/** Turns are the conversation's; tokens and time count where they were spent. */
function ownState({ checkpoint: { state }, parent }: Restored): LoopState {
  return parent === null ? state : { turns: state.turns, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0 };
}

function rounded(ms: number): number {
  return Math.round(ms * 10) / 10;
}

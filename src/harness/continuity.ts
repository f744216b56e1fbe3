/**
 * How a harness goes on after the death of the process that drives it. What it says and does is written down before it counts; between two turns, when nothing of its agent's is under way,
 * everything may be kept at once: messages, calls, machine.
 */
import type { Call } from "../gateway/call.ts";
import type { Message } from "../gateway/conversation.ts";
import type { Handover } from "./handover.ts";

/** What a loop has used until now. Of tokens and time: by itself, not by a rollout that it branched from. */
export interface LoopState {
  readonly turns: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly modelMs: number;
  readonly toolMs: number;
}

/** Where a harness goes on, behind a turn that is whole: in a machine as it was then, or in the living one, in which the next turn may be under way. */
export interface ResumePoint {
  readonly state: LoopState;
  /** As the model is asked next. */
  readonly messages: readonly Message[];
  /** The answer to them, where it was recorded before the death; null: the model is asked. */
  readonly answered: Call | null;
  /** Tool calls of that answer, from 0, that had begun and must not begin again: what they did outside of the machine is not undone. */
  readonly begun: ReadonlySet<number>;
  /** What the turn under way has said: the answer, and the results of its first tool calls. */
  readonly ahead: readonly Message[];
  /** Path of the agent's shell in a living machine, where every process may be in the way of a command that is running; null: it is looked for. */
  readonly shell: string | null;
}

export interface Continuity {
  /** Null at the beginning. */
  readonly from: ResumePoint | null;
  /** The loop begins, or goes on: from now on another controller may go on with it. */
  beginning(state: LoopState, shell: string): Promise<void>;
  /** One more message of the history, as the model gets it. */
  said(message: Message): Promise<void>;
  /** The history was made shorter, and the model is asked next. */
  replaced(messages: readonly Message[], state: LoopState): Promise<void>;
  /** A tool call of this answer is about to begin. Its command may outlive this controller, or has outlived another; undefined: it does not. */
  acting(call: number, index: number): Promise<Handover | undefined>;
  /** A turn is whole. */
  between(state: LoopState): Promise<void>;
}

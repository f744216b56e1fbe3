/**
 * How a process in the machine outlives the controller, the agent itself or a command of its loop: it runs under an id that is written down before it begins, what it says is kept outside
 * of any process, and the next controller attaches to it where that ends.
 */
import { MwError } from "../core/errors.ts";
import type { ExecId } from "../core/ids.ts";
import type { ExecChunk } from "../sandbox/sandbox.ts";

export interface Handover {
  readonly exec: ExecId;
  /** What an earlier controller began; null: nothing is begun yet. */
  readonly begun: BegunProcess | null;
  /** It begins now if it turns out that it had not, because an id of this machine names nothing else. Absent: then it cannot be gone on with. */
  readonly orBegins?: true;
  /** The process is about to begin. Durable when it resolves. `plan`: what the next controller is to have, as JSON. */
  beginning(plan?: unknown): Promise<void>;
  /** Keeps a piece of its output. */
  said(chunk: ExecChunk): Promise<void>;
}

export interface BegunProcess {
  /** Wall clock, milliseconds since the epoch. */
  readonly at: number;
  readonly plan?: unknown;
  /** Kept of its output, bytes of each stream. */
  readonly offsets: { readonly stdout: number; readonly stderr: number };
  /** What is kept, each stream in order. */
  earlier(): AsyncIterable<ExecChunk>;
}

/** A machine that outlived its controller cannot be gone on with. The rollout begins again, and this says why. */
export class HandoverLost extends MwError {
  constructor(why: string, cause?: unknown) {
    super("sandbox_gone", `it cannot be taken over: ${why}`, cause === undefined ? {} : { cause });
  }
}

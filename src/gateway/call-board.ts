/** Model calls under way, for whoever looks on while they are made: what has come of their answers. Nothing of it is kept, and no call waits for it. */
import type { AnswerSoFar } from "./session/answer-so-far.ts";

export interface CallInFlight {
  readonly number: number;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  /** Grows. */
  readonly answer: Pick<AnswerSoFar, "blocks" | "restarts">;
}

export interface CallWatch {
  /** Those of the watched sessions, as they are now. */
  calls(): readonly CallInFlight[];
  close(): void;
}

export class CallBoard {
  /** By the label of their session. */
  readonly #calls = new Map<string, Set<CallInFlight>>();
  readonly #watchers = new Map<string, number>();

  /** Returns what takes it off again. */
  add(label: string, call: CallInFlight): () => void {
    const calls = this.#calls.get(label) ?? new Set();
    this.#calls.set(label, calls.add(call));
    return () => {
      calls.delete(call);
      if (calls.size === 0 && this.#calls.get(label) === calls) this.#calls.delete(label);
    };
  }

  /** Looks on at the sessions of a label, from calls that begin now: those whose harness does not stream are then streamed to the board alone. */
  watch(label: string): CallWatch {
    let open = true;
    this.#watchers.set(label, (this.#watchers.get(label) ?? 0) + 1);
    return {
      calls: () => [...(this.#calls.get(label) ?? [])],
      close: () => {
        if (!open) return;
        open = false;
        const others = (this.#watchers.get(label) ?? 0) - 1;
        if (others > 0) this.#watchers.set(label, others);
        else this.#watchers.delete(label);
      },
    };
  }

  isWatched(label: string): boolean {
    return this.#watchers.has(label);
  }
}

/**
 * The call log of one session: an append-only file, `calls.jsonl`, in the format of `call-format.ts`.
 *
 * A write that fails takes its elements with it, so the next call opens a new section, which refers to nothing before it.
 */
import { toMwError, type MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { AppendFile, type AppendFileOptions } from "../../store/append-file.ts";
import type { Call, CallSink, PromptReference } from "../call.ts";
import { CallEncoder } from "./call-format.ts";

export class CallLog implements CallSink {
  readonly #file: AppendFile;
  #encoder = new CallEncoder();
  /** Why some record is missing; null while none is. */
  failure: MwError | null = null;
  /** Highest number of a call. */
  lastNumber = 0;

  /** The file appears with the first call. */
  constructor(options: Omit<AppendFileOptions, "onLost" | "queueBytes">) {
    // What waits to be written are calls that are answered, whose number and size the session bounds.
    this.#file = new AppendFile({ ...options, queueBytes: Infinity, onLost: () => (this.#encoder = new CallEncoder()) });
  }

  get full(): boolean {
    return this.#file.size > LIMITS.callLogBytes;
  }

  append(call: Call, prompt: PromptReference | null): Promise<void> {
    this.lastNumber = Math.max(this.lastNumber, call.number);
    return this.#write(() => this.#encoder.encode(call, prompt));
  }

  replayed(number: number): Promise<void> {
    return this.#write(() => this.#encoder.replayed(number));
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  async #write(lines: () => string): Promise<void> {
    try {
      await this.#file.append(lines());
    } catch (error) {
      this.failure ??= toMwError(error);
      throw error;
    }
  }
}

/**
 * The call log of one session: an append-only file, `calls.jsonl`, in the format of `call-format.ts`.
 *
 * A write that fails takes its elements with it, so the next call opens a new section, which refers to nothing before it.
 */
import { MwError, toMwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { AppendFile, type AppendFileOptions } from "../../store/append-file.ts";
import type { Call, CallSink, PromptReference } from "../call.ts";
import { CallEncoder } from "./call-format.ts";

export class CallLog implements CallSink {
  readonly #file: AppendFile;
  readonly #path: string;
  #encoder = new CallEncoder();
  /** Why some record is missing; null while none is. */
  failure: MwError | null = null;
  /** Highest number of a call. */
  lastNumber = 0;

  /** The file appears with the first call. */
  constructor(options: Omit<AppendFileOptions, "onLost">) {
    this.#file = new AppendFile({ ...options, onLost: () => (this.#encoder = new CallEncoder()) });
    this.#path = options.path;
  }

  append(call: Call, prompt: PromptReference | null): Promise<void> {
    if (this.#file.size > LIMITS.callLogBytes) {
      this.failure ??= new MwError("limit_exceeded", `${this.#path} has more than ${LIMITS.callLogBytes} bytes`, { fix: "give the rollout a budget of turns or tokens" });
      return Promise.reject(this.failure);
    }
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

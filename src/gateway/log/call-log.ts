/**
 * The call log of one session: an append-only file, `calls.jsonl`, in the format of `call-format.ts`.
 *
 * A write that fails takes its elements with it, so the next call opens a new section, which refers to nothing before it.
 */
import { toMwError, type MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { AppendFile, type AppendFileOptions } from "../../store/append-file.ts";
import { NO_TOKENS, plusTokens, tokensOf, type Call, type CallSink, type PromptReference, type Tokens } from "../call.ts";
import { CallEncoder } from "./call-format.ts";

export class CallLog implements CallSink {
  readonly #file: AppendFile;
  #encoder = new CallEncoder();
  /** Why some record is missing; null while none is. */
  failure: MwError | null = null;
  /** Highest number of a call. */
  lastNumber: number;
  /** Of the policy that sampled the last answer; null where nobody says. */
  lastVersion: string | null = null;
  /** What the calls that were appended here took. */
  tokens: Tokens = NO_TOKENS;

  /** The file appears with the first call. `lastNumber`: of the calls that are in it already. */
  constructor({ lastNumber = 0, ...options }: Omit<AppendFileOptions, "onLost" | "queueBytes"> & { readonly lastNumber?: number }) {
    this.lastNumber = lastNumber;
    // What waits to be written are calls that are answered, whose number and size the session bounds.
    this.#file = new AppendFile({ ...options, queueBytes: Infinity, onLost: () => (this.#encoder = new CallEncoder()) });
  }

  get full(): boolean {
    return this.#file.size > LIMITS.callLogBytes;
  }

  append(call: Call, prompt: PromptReference | null): Promise<void> {
    this.lastNumber = Math.max(this.lastNumber, call.number);
    this.lastVersion = call.tokens?.versions.at(-1)?.[0] ?? this.lastVersion;
    this.tokens = plusTokens(this.tokens, tokensOf(call));
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

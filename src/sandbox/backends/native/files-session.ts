/** One process of the file helper: frames in, frames out, and its end told apart from its being cut short. */
import { MwError } from "../../../core/errors.ts";
import type { NativeExec } from "./exec.ts";
import { FILES } from "./files-protocol.ts";
import { encodeFrame, type FieldList, type Frame, FrameDecoder } from "./wire.ts";

/** Small frames wait until this many bytes are together. */
const BATCH_BYTES = 64 * 1024;

export class FilesSession {
  readonly #exec: NativeExec;
  readonly #signal: AbortSignal | undefined;
  readonly #onAbort = (): void => void this.#exec.kill().catch(() => undefined);
  #batch: Buffer[] = [];
  #batched = 0;
  #over = false;

  constructor(exec: NativeExec, signal?: AbortSignal) {
    this.#exec = exec;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  /** Sends a frame, and whatever waited before it. */
  async send(type: number, fields: FieldList = []): Promise<void> {
    this.#add(encodeFrame(type, 0, fields));
    await this.#flush();
  }

  /** Sends an encoded frame, possibly together with later ones. */
  async sendBytes(frame: Buffer): Promise<void> {
    this.#add(frame);
    if (this.#batched >= BATCH_BYTES) await this.#flush();
  }

  /** What the helper answers, until it ends. An error answer throws. */
  async *frames(): AsyncGenerator<Frame, void, undefined> {
    const decoder = new FrameDecoder();
    for await (const { stream, data } of this.#exec.output) {
      if (stream === "stderr") continue;
      for (const frame of decoder.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength))) {
        const error = frame.error();
        if (error) throw fileError(error);
        yield frame;
      }
    }
    this.#over = true;
    this.#signal?.throwIfAborted();
  }

  /**
   * Waits for the answer while `sending` goes on; resolves to the frame that ends it. An error of the helper wins over the broken pipe that it causes for the
   * sender; an error of the sender ends the helper.
   */
  async finish(sending: Promise<void>, each: (frame: Frame) => void = () => undefined): Promise<Frame> {
    let sendError: unknown = null;
    sending.catch((error: unknown) => {
      sendError = error;
      // A command that has ended by itself has its own answer; anything else must not wait for bytes that never come.
      return this.#exec.closeStdin().catch(() => undefined);
    });
    try {
      let last: Frame | null = null;
      for await (const frame of this.frames()) {
        if (frame.type === FILES.end) last = frame;
        else each(frame);
      }
      if (last === null) throw sendError ?? this.cutShort();
      await sending;
      return last;
    } catch (error) {
      // The helper reports the stream that a failed sender cut as its own failure: the sender's is the cause.
      if (sendError !== null && !(sendError instanceof MwError && sendError.code === "conflict")) throw sendError;
      throw error;
    } finally {
      await this.abandon();
    }
  }

  /** Ends the process if it still runs, and forgets it. */
  async abandon(): Promise<void> {
    this.#signal?.removeEventListener("abort", this.#onAbort);
    if (!this.#over) {
      this.#over = true;
      await this.#exec.kill().catch(() => undefined);
    }
    await this.#exec.discard();
  }

  cutShort(): MwError {
    return new MwError("sandbox_failed", "The file helper in the machine ended before its answer was complete");
  }

  #add(frame: Buffer): void {
    this.#batch.push(frame);
    this.#batched += frame.length;
  }

  async #flush(): Promise<void> {
    const [only, ...more] = this.#batch;
    const bytes = more.length === 0 && only !== undefined ? only : Buffer.concat(this.#batch);
    this.#batch = [];
    this.#batched = 0;
    await this.#exec.writeStdin(bytes);
  }
}

function fileError({ code, message }: { readonly code: string; readonly message: string }): MwError {
  const facts = { errno: code };
  switch (code) {
    case "ENOENT":
      return new MwError("not_found", `In the machine: ${message}`, { facts });
    case "EEXIST":
    case "EISDIR":
    case "ENOTDIR":
    case "ENOTEMPTY":
    case "EBUSY":
      return new MwError("conflict", `In the machine: ${message}`, { facts });
    case "EINVAL":
    case "ENAMETOOLONG":
    case "ELOOP":
    case "EACCES":
      return new MwError("invalid_input", `In the machine: ${message}`, { facts });
    case "EFBIG":
      return new MwError("limit_exceeded", `In the machine: ${message}`, { facts });
    default:
      return new MwError("sandbox_failed", `In the machine: ${message}`, { facts });
  }
}

/**
 * The event log as one append-only file of lines.
 *
 * Appends that arrive while a write is under way go out together in the next one (group commit). A write that fails half way, for instance because the disk is
 * full, is cut off again before anybody is told, so no reader ever folds half an event; if even that fails the log refuses everything after it. A writer notices
 * that another one with a higher epoch has taken the file over by the file having grown under it.
 */
import { open, type FileHandle } from "node:fs/promises";
import { dirname } from "node:path";
import { LIMITS } from "../core/limits.ts";
import { MwError, messageOf } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { EventLog, LogEvent, StoredEvent } from "./event-log.ts";
import { syncDirectory, type Durability } from "./durable.ts";
import { encodeEvent, encodeText } from "./log-format.ts";
import { readLog, startOfLog, type LogPosition } from "./log-reader.ts";

export interface FileLogOptions {
  readonly path: string;
  /** Of the controller that writes; events of lower epochs after one of this are void. `next`: one more than the last in the log, where whoever opens it is known to be the only one. */
  readonly epoch: number | "next";
  readonly durability: Durability;
  readonly runtime: Runtime;
  /** Sees every event that is there already, in order, while the file is opened; `position` is behind it and moves on. */
  readonly onEvent?: (event: StoredEvent, position: Readonly<LogPosition>) => void;
  /** Where to begin reading: what stands before is known by other means, such as a snapshot. */
  readonly from?: LogPosition;
  /** The file primitives; tests replace them to fail at will. */
  readonly openFile?: (path: string, flags: string) => Promise<LogFile>;
}

/** What the log needs of a file. */
export type LogFile = Pick<FileHandle, "write" | "truncate" | "datasync" | "stat" | "close">;

interface Pending {
  readonly events: readonly { readonly type: string; readonly json: string }[];
  readonly expectedSeq: number | undefined;
  readonly at: string;
  readonly bytes: number;
  readonly resolve: (seq: number) => void;
  readonly reject: (error: unknown) => void;
}

export class FileLog implements EventLog {
  /** What was cut off at opening: an incomplete last line, left by a writer that died. */
  readonly repaired: { readonly offset: number; readonly bytes: number } | null;
  readonly #options: FileLogOptions;
  readonly #file: LogFile;
  readonly #epoch: number;
  #offset: number;
  #lastSeq: number;
  #lastEpoch: number;
  #pending: Pending[] = [];
  #pendingBytes = 0;
  #writing: Promise<void> | null = null;
  /** Set once the log can no longer be trusted to take events; every append rejects with it. */
  #broken: MwError | null = null;

  /** Opens or creates the file, checks every line and cuts off a torn last one. Rejects `corrupt` for a damaged line and `conflict` for a higher epoch. */
  static async open(options: FileLogOptions): Promise<FileLog> {
    const openFile = options.openFile ?? ((path: string, flags: string): Promise<LogFile> => open(path, flags, 0o644));
    const file = await openFile(options.path, "a");
    try {
      const position = options.from === undefined ? startOfLog() : { ...options.from };
      if ((await file.stat()).size < position.offset) {
        throw new MwError("corrupt", `${options.path} is shorter than it was: ${position.offset} bytes of it were durable`, { fix: "restore the file", facts: { path: options.path } });
      }
      for await (const event of readLog(options.path, position)) options.onEvent?.(event, position);
      if (options.epoch !== "next" && position.epoch > options.epoch) throw fenced(options.path, options.epoch, position.epoch);
      if (position.tornBytes > 0) await file.truncate(position.offset);
      if (options.durability === "power") {
        await file.datasync();
        await syncDirectory(dirname(options.path));
      }
      return new FileLog(options, file, position);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  private constructor(options: FileLogOptions, file: LogFile, position: LogPosition) {
    this.#options = options;
    this.#file = file;
    this.#epoch = options.epoch === "next" ? position.epoch + 1 : options.epoch;
    this.#offset = position.offset;
    this.#lastSeq = position.lastSeq;
    this.#lastEpoch = position.epoch;
    this.repaired = position.tornBytes > 0 ? { offset: position.offset, bytes: position.tornBytes } : null;
  }

  get lastSeq(): number {
    return this.#lastSeq;
  }

  /** Behind the last event that is durable: readers can begin there. */
  get position(): LogPosition {
    return { offset: this.#offset, lastSeq: this.#lastSeq, epoch: this.#lastEpoch, tornBytes: 0 };
  }

  append(events: readonly LogEvent[], options: { readonly expectedSeq?: number; readonly at?: number } = {}): Promise<number> {
    return new Promise((resolve, reject) => {
      if (this.#broken !== null) {
        reject(this.#broken);
        return;
      }
      // What cannot be written is refused alone; the promise rejects with what is thrown.
      const encoded = events.map((event) => ({ type: event.type, json: encodeEvent(event) }));
      // An estimate is enough: it only bounds the queue.
      const bytes = encoded.reduce((sum, { json }) => sum + json.length, 0);
      if (this.#pending.length > 0 && this.#pendingBytes + bytes > LIMITS.logQueueBytes) {
        reject(new MwError("limit_exceeded", `${this.#options.path}: more than ${LIMITS.logQueueBytes} bytes of events wait to be written`, { fix: "lower --concurrency, or use a faster disk" }));
        return;
      }
      this.#pendingBytes += bytes;
      this.#pending.push({ events: encoded, expectedSeq: options.expectedSeq, at: new Date(options.at ?? this.#options.runtime.now()).toISOString(), bytes, resolve, reject });
      this.#writing ??= this.#drain();
    });
  }

  async *read(fromSeq = 1): AsyncIterable<StoredEvent> {
    for await (const event of readLog(this.#options.path, startOfLog())) if (event.seq >= fromSeq) yield event;
  }

  async close(): Promise<void> {
    while (this.#writing !== null) await this.#writing;
    this.#broken ??= new MwError("internal", `${this.#options.path}: append after close`);
    await this.#file.close();
  }

  async #drain(): Promise<void> {
    // Appends made in the same turn of the event loop join the first write.
    await Promise.resolve();
    while (this.#pending.length > 0) {
      const batch = this.#pending;
      this.#pending = [];
      this.#pendingBytes = 0;
      await this.#commit(batch);
    }
    this.#writing = null;
  }

  /** Writes a batch; settles each of its appends. */
  async #commit(batch: readonly Pending[]): Promise<void> {
    const { lines, accepted, lastSeq } = this.#encode(batch);
    if (accepted.length === 0) return;
    try {
      await this.#write(Buffer.concat(lines));
    } catch (error) {
      for (const { append } of accepted) append.reject(error);
      return;
    }
    this.#lastSeq = lastSeq;
    this.#lastEpoch = this.#epoch;
    for (const { append, seq } of accepted) append.resolve(seq);
  }

  /** Numbers the events; an append that cannot be taken is rejected alone. */
  #encode(batch: readonly Pending[]): { readonly lines: Buffer[]; readonly accepted: { readonly append: Pending; readonly seq: number }[]; readonly lastSeq: number } {
    const lines: Buffer[] = [];
    const accepted: { append: Pending; seq: number }[] = [];
    let lastSeq = this.#lastSeq;
    for (const append of batch) {
      const base = lastSeq;
      try {
        if (append.expectedSeq !== undefined && append.expectedSeq !== base) {
          throw new MwError("conflict", `${this.#options.path}: expected event ${append.expectedSeq} to be the last, it is ${base}`);
        }
        const own = append.events.map(({ type, json }, index) => encodeText(base + 1 + index, append.at, this.#epoch, type, json));
        lines.push(...own);
        lastSeq = base + own.length;
        accepted.push({ append, seq: lastSeq });
      } catch (error) {
        append.reject(error);
      }
    }
    return { lines, accepted, lastSeq };
  }

  async #write(bytes: Buffer): Promise<void> {
    if (this.#broken !== null) throw this.#broken;
    if ((await this.#file.stat()).size !== this.#offset) await this.#investigate();
    let done = 0;
    try {
      while (done < bytes.length) {
        const { bytesWritten } = await this.#file.write(bytes, done, bytes.length - done);
        done += bytesWritten;
      }
      if (this.#options.durability === "power") await this.#file.datasync();
    } catch (error) {
      throw await this.#undo(error, done);
    }
    this.#offset += bytes.length;
  }

  /** A failed write leaves nothing behind, or the log is over. */
  async #undo(error: unknown, written: number): Promise<MwError> {
    const { path } = this.#options;
    const code = (error as NodeJS.ErrnoException).code;
    const full = code === "ENOSPC" || code === "EDQUOT" || code === "EFBIG";
    const failure = new MwError(full ? "host_exhausted" : "sandbox_failed", `cannot append to ${path}: ${messageOf(error)}`, {
      fix: full ? "free space on the disk that holds the data directory, then resume the run" : "check the disk that holds the data directory, then resume the run",
      cause: error,
      facts: { path },
    });
    try {
      // What somebody else has appended meanwhile is not ours to cut.
      if ((await this.#file.stat()).size > this.#offset + written) this.#broken = failure;
      else await this.#file.truncate(this.#offset);
      // After a failed sync the kernel may have dropped what it could not write: what is on disk is then unknown.
      if (code === undefined || (this.#options.durability === "power" && !full)) this.#broken = failure;
    } catch {
      this.#broken = failure;
    }
    return failure;
  }

  /** The file is not as long as this writer left it: somebody else wrote. Goes on if that was only a controller that had lost the directory. */
  async #investigate(): Promise<void> {
    const { path } = this.#options;
    const epoch = this.#epoch;
    const position = startOfLog();
    // Read to the end for the highest epoch.
    for await (const _event of readLog(path, position));
    if (position.epoch <= epoch && position.lastSeq === this.#lastSeq && position.tornBytes === 0 && position.offset > this.#offset) {
      this.#offset = position.offset;
      return;
    }
    this.#broken =
      position.epoch > epoch
        ? fenced(path, epoch, position.epoch)
        : new MwError("conflict", `${path} was changed by another process`, { fix: "let one controller write to a run at a time, then resume the run" });
    throw this.#broken;
  }
}

function fenced(path: string, own: number, other: number): MwError {
  return new MwError("conflict", `${path} is written by a newer controller (epoch ${other}, this one has ${own})`, { facts: { path, own, other } });
}

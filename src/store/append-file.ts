/**
 * An append-only file of one writer, for records beside the event log. It is made with its first record.
 *
 * Appends that arrive while a write is under way go out together in the next one (group commit). A write that fails half way is cut off again before anybody is told; what
 * waited behind it is refused with it, because it may refer to what was cut off.
 */
import { open, readFile, truncate, type FileHandle } from "node:fs/promises";
import { dirname } from "node:path";
import { LIMITS } from "../core/limits.ts";
import { messageOf, MwError } from "../core/errors.ts";
import { syncDirectory, type Durability } from "./durable.ts";

/** What an append-only writer needs of a file. */
export type AppendHandle = Pick<FileHandle, "write" | "truncate" | "datasync" | "stat" | "close">;

export interface AppendFileOptions {
  readonly path: string;
  readonly durability: Durability;
  /** What may wait to be written; default `LIMITS.logQueueBytes`. More is refused. */
  readonly queueBytes?: number;
  /** Called before anybody is told of a failed write: nothing of what was appended and not yet confirmed is there. */
  readonly onLost?: () => void;
  /** The file primitives; tests replace them to fail at will. */
  readonly openFile?: (path: string) => Promise<AppendHandle>;
}

/** Of a file whose writer was killed: what lies behind its last whole line is cut off. A file that is not there stays so. */
export async function cutTornLine(path: string): Promise<void> {
  const file = await open(path, "r+").catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  });
  if (file === null) return;
  try {
    const { size } = await file.stat();
    const chunk = Buffer.allocUnsafe(1 << 16);
    let end = size;
    for (let found = false; end > 0 && !found; ) {
      const from = Math.max(0, end - chunk.length);
      const { bytesRead } = await file.read(chunk, 0, end - from, from);
      const last = chunk.subarray(0, bytesRead).lastIndexOf(10);
      found = last >= 0;
      end = from + last + 1;
    }
    if (end < size) await file.truncate(end);
  } finally {
    await file.close();
  }
}

/** Of whole lines, the first `lines` stay. A file that is not there stays so. */
export async function keepLines(path: string, lines: number): Promise<void> {
  const bytes = await readFile(path).catch(emptyWhereMissing);
  let end = 0;
  for (let line = 0; line < lines && end < bytes.length; line++) end = bytes.indexOf(10, end) + 1;
  if (end < bytes.length) await truncate(path, end);
}

/** Whole ones. */
export async function countLines(path: string): Promise<number> {
  const bytes = await readFile(path).catch(emptyWhereMissing);
  let lines = 0;
  for (let at = bytes.indexOf(10); at >= 0; at = bytes.indexOf(10, at + 1)) lines++;
  return lines;
}

function emptyWhereMissing(error: unknown): Buffer {
  if ((error as NodeJS.ErrnoException).code === "ENOENT") return Buffer.alloc(0);
  throw error;
}

interface Pending {
  readonly text: string;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

export class AppendFile {
  readonly #options: AppendFileOptions;
  #file: AppendHandle | null = null;
  #offset = 0;
  #pending: Pending[] = [];
  #pendingChars = 0;
  #writing: Promise<void> | null = null;
  /** Set once a failed write could not be taken back, or the file is closed. */
  #broken: MwError | null = null;

  constructor(options: AppendFileOptions) {
    this.#options = options;
  }

  /** Bytes that are durable. */
  get size(): number {
    return this.#offset;
  }

  /** Resolves when the text survives the death of any process (or a power cut, by durability). */
  append(text: string): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#broken !== null) {
        reject(this.#broken);
        return;
      }
      const { path, queueBytes = LIMITS.logQueueBytes } = this.#options;
      if (this.#pending.length > 0 && this.#pendingChars + text.length > queueBytes) {
        reject(new MwError("limit_exceeded", `${path}: more than ${queueBytes} bytes wait to be written`, { fix: "use a faster disk, or run less at once" }));
        return;
      }
      this.#pending.push({ text, resolve, reject });
      this.#pendingChars += text.length;
      this.#writing ??= this.#drain();
    });
  }

  /** Waits for what was appended. */
  async close(): Promise<void> {
    while (this.#writing !== null) await this.#writing;
    this.#broken ??= new MwError("internal", `${this.#options.path}: append after close`);
    await this.#file?.close();
    this.#file = null;
  }

  async #drain(): Promise<void> {
    // Appends made in the same turn of the event loop join the first write.
    await Promise.resolve();
    while (this.#pending.length > 0) {
      const batch = this.#take();
      try {
        await this.#write(Buffer.from(batch.map(({ text }) => text).join("")));
      } catch (error) {
        const lost = [...batch, ...this.#take()];
        this.#options.onLost?.();
        for (const { reject } of lost) reject(error);
        continue;
      }
      for (const { resolve } of batch) resolve();
    }
    this.#writing = null;
  }

  #take(): readonly Pending[] {
    const taken = this.#pending;
    this.#pending = [];
    this.#pendingChars = 0;
    return taken;
  }

  async #write(bytes: Buffer): Promise<void> {
    if (this.#broken !== null) throw this.#broken;
    try {
      const file = (this.#file ??= await this.#open());
      for (let done = 0; done < bytes.length; ) done += (await file.write(bytes, done, bytes.length - done)).bytesWritten;
      if (this.#options.durability === "power") await file.datasync();
    } catch (error) {
      throw await this.#undo(error);
    }
    this.#offset += bytes.length;
  }

  async #open(): Promise<AppendHandle> {
    const { path, durability, openFile = (name): Promise<AppendHandle> => open(name, "a", 0o644) } = this.#options;
    const file = await openFile(path);
    this.#offset = (await file.stat()).size;
    if (durability === "power") await syncDirectory(dirname(path));
    return file;
  }

  /** A failed write leaves nothing behind, or the file takes no more. */
  async #undo(error: unknown): Promise<MwError> {
    const { path, durability } = this.#options;
    const code = (error as NodeJS.ErrnoException).code;
    const full = code === "ENOSPC" || code === "EDQUOT" || code === "EFBIG" || code === "EMFILE" || code === "ENFILE";
    const failure = new MwError(full ? "host_exhausted" : "sandbox_failed", `cannot append to ${path}: ${messageOf(error)}`, {
      fix: full ? "free space on the disk that holds the data directory (or raise the limit of open files)" : "check the disk that holds the data directory",
      cause: error,
      facts: { path },
    });
    try {
      await this.#file?.truncate(this.#offset);
      // After a failed sync the kernel may have dropped what it could not write: what is on disk is then unknown.
      if (durability === "power" && !full) this.#broken = failure;
    } catch {
      this.#broken = failure;
    }
    return failure;
  }
}

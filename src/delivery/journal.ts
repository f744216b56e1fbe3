/**
 * The log of one run with its state: an event is applied at once and durable when `commit` resolves, in the same order. What is answered waits for that, so whatever dies, what
 * was answered is in the log, and the log is a beginning of what happened.
 *
 * A failed write leaves the state ahead of the log: the journal is then over and says so to everybody; opened again, it is what the log says.
 */
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { MwError, toMwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { writeDurably, type Durability } from "../store/durable.ts";
import { FileLog, type FileLogOptions } from "../store/file-log.ts";
import { readLog, startOfLog, type LogPosition } from "../store/log-reader.ts";
import type { RunRequest, TerminalRecord } from "./contract.ts";
import { fromLogEvent, toLogEvent, type DeliveryEvent } from "./events.ts";
import { openSnapshot, takeSnapshot, type Snapshot } from "./snapshot.ts";
import { DeliveryState, terminalRecord } from "./state.ts";

export interface JournalOptions {
  readonly directory: string;
  readonly request: RunRequest;
  readonly run: string;
  readonly epoch: number;
  readonly createdAt: number;
  readonly runtime: Runtime;
  readonly durability: Durability;
  /** Told once of a write that failed. */
  readonly onBroken: (error: MwError) => void;
  /** The file primitives of the log; tests replace them to fail at will. */
  readonly openFile?: FileLogOptions["openFile"];
}

/** Where lines of the terminal log are to be looked for: those after `seq` stand behind `position`. */
interface Mark {
  readonly seq: number;
  readonly position: LogPosition;
}

const MARK_EVERY = 256;

interface SnapshotFile {
  readonly position: LogPosition;
  /** Last event that the snapshot holds; the position is at or before its end. */
  readonly applied: number;
  readonly marks: readonly Mark[];
  readonly snapshot: Snapshot;
}

export class Journal {
  readonly state: DeliveryState;
  readonly #options: JournalOptions;
  readonly #log: FileLog;
  readonly #marks: Mark[];
  #applied: number;
  #snapshotAt: number;
  #snapshotting: Promise<void> | null = null;
  #unsettled = 0;
  #last: Promise<unknown> = Promise.resolve();
  #broken: MwError | null = null;

  static async open(options: JournalOptions): Promise<Journal> {
    const { directory, request, run, epoch, createdAt, runtime, durability } = options;
    const saved = await readSnapshot(join(directory, "snapshot.json"));
    const restored = saved === null ? null : openSnapshot(saved.snapshot, request, run, epoch);
    const state = restored ?? new DeliveryState(request, run, epoch, createdAt);
    const from = saved !== null && restored !== null ? saved : null;
    const marks: Mark[] = [...(from?.marks ?? [{ seq: 0, position: startOfLog() }])];
    const log = await FileLog.open({
      path: join(directory, "events.jsonl"),
      epoch: "next",
      durability,
      runtime,
      ...(from === null ? {} : { from: from.position }),
      ...(options.openFile === undefined ? {} : { openFile: options.openFile }),
      onEvent: ({ seq, at, event }, position) => {
        if (from !== null && seq <= from.applied) return;
        const own = fromLogEvent(event);
        state.apply(own, Date.parse(at));
        if (own.type === "terminal" && own.seq % MARK_EVERY === 0) marks.push({ seq: own.seq, position: { ...position, tornBytes: 0 } });
      },
    });
    if (from !== null && log.lastSeq < from.applied) {
      await log.close();
      throw new MwError("corrupt", `${join(directory, "events.jsonl")} ends before its snapshot`, { fix: `restore the log, or delete ${join(directory, "snapshot.json")} to open the run as it was then` });
    }
    return new Journal(options, state, log, marks, from?.applied ?? 0);
  }

  private constructor(options: JournalOptions, state: DeliveryState, log: FileLog, marks: Mark[], snapshotAt: number) {
    this.#options = options;
    this.state = state;
    this.#log = log;
    this.#marks = marks;
    this.#applied = log.lastSeq;
    this.#snapshotAt = snapshotAt;
  }

  /** Applies the events now and resolves when they are durable. Throws when the journal is over. */
  commit(...events: readonly DeliveryEvent[]): Promise<void> {
    if (this.#broken !== null) throw this.#broken;
    const at = Math.floor(this.#options.runtime.now());
    for (const event of events) {
      try {
        this.state.apply(event, at);
      } catch (error) {
        // A bug: what is known can no longer be trusted, and the log can.
        throw this.#break(error);
      }
      this.#applied++;
      if (event.type === "terminal" && event.seq % MARK_EVERY === 0) this.#marks.push({ seq: event.seq, position: this.#log.position });
    }
    this.#unsettled++;
    const written = this.#log.append(events.map(toLogEvent), { at }).then(
      () => {
        this.#unsettled--;
        this.#maybeSnapshot();
      },
      (error: unknown) => {
        this.#unsettled--;
        throw this.#break(error);
      },
    );
    // Who does not wait for it is told through `onBroken`.
    written.catch(() => undefined);
    this.#last = written;
    return written;
  }

  /** Resolves when all that was committed so far is durable. */
  async settled(): Promise<void> {
    await this.#last;
  }

  /** Whether nothing waits to be written. */
  get idle(): boolean {
    return this.#unsettled === 0 && this.#snapshotting === null;
  }

  get isBroken(): boolean {
    return this.#broken !== null;
  }

  /** Throws when nothing can be promised any more. */
  assertWhole(): void {
    if (this.#broken !== null) throw this.#broken;
  }

  /** Lines of the terminal log after line `after`. */
  async terminal(after: number, limit: number): Promise<readonly TerminalRecord[]> {
    await this.#last;
    const records: TerminalRecord[] = [];
    if (after >= this.state.terminalSeq) return records;
    const mark = this.#marks.findLast(({ seq }) => seq <= after);
    const position = { ...(mark?.position ?? startOfLog()) };
    for await (const { event, at } of readLog(join(this.#options.directory, "events.jsonl"), position)) {
      if (event.type !== "terminal") continue;
      const own = fromLogEvent(event);
      if (own.type !== "terminal" || own.seq <= after) continue;
      records.push(terminalRecord(own, Date.parse(at)));
      if (records.length === limit) break;
    }
    return records;
  }

  async close(): Promise<void> {
    if (this.#snapshotting !== null) await this.#snapshotting;
    if (this.#broken === null && this.#applied > this.#snapshotAt) await this.#snapshot().catch(() => undefined);
    this.#broken ??= new MwError("cancelled", "the run is closed");
    await this.#log.close();
  }

  #break(error: unknown): MwError {
    if (this.#broken === null) {
      this.#broken = toMwError(error);
      this.#options.onBroken(this.#broken);
    }
    return this.#broken;
  }

  /** Its cost is that of everything that was ever accepted, so it is made the more rarely the longer the run. */
  #maybeSnapshot(): void {
    if (this.#snapshotting !== null || this.#broken !== null) return;
    if (this.#applied - this.#snapshotAt < Math.max(LIMITS.deliverySnapshotEvents, this.state.known.size)) return;
    this.#snapshotting = this.#snapshot()
      // The log holds everything; without a snapshot the next opening takes longer.
      .catch(() => undefined)
      .finally(() => (this.#snapshotting = null));
  }

  async #snapshot(): Promise<void> {
    const applied = this.#applied;
    const { directory, durability } = this.#options;
    const content: SnapshotFile = { position: this.#log.position, applied, marks: this.#marks, snapshot: takeSnapshot(this.state) };
    const text = JSON.stringify(content);
    this.#snapshotAt = applied;
    // It must not know more than the log.
    await this.#last;
    await writeDurably(join(directory, "snapshot.json"), `${crc32(text).toString(16).padStart(8, "0")}\n${text}`, durability);
  }
}

/** Null where there is none, or a damaged one: the log knows everything. */
async function readSnapshot(path: string): Promise<SnapshotFile | null> {
  const exists = await stat(path).catch(() => null);
  if (exists === null) return null;
  const text = await readFile(path, "utf8");
  const body = text.slice(9);
  if (crc32(body).toString(16).padStart(8, "0") !== text.slice(0, 8)) return null;
  // The checksum says that these are our own bytes.
  return JSON.parse(body) as SnapshotFile;
}


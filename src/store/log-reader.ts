/**
 * Reads a log file front to back, also while it grows and after its writer died at any byte.
 *
 * Rules: a last line without a newline is a write in progress or a torn one; it is not there. A complete line that is wrong is corruption and names its byte
 * offset. A line whose epoch is lower than one before it was written by a controller that had lost the directory; it never happened.
 */
import { open, type FileHandle } from "node:fs/promises";
import { LIMITS } from "../core/limits.ts";
import { MwError } from "../core/errors.ts";
import type { StoredEvent } from "./event-log.ts";
import { decodeLine } from "./log-format.ts";

const CHUNK_BYTES = 1 << 20;
const LINE_BYTES = LIMITS.eventBytes + 64;

export interface LogPosition {
  /** Offset of the first byte after the last complete line. */
  offset: number;
  lastSeq: number;
  epoch: number;
  /** Bytes of an incomplete last line, which follow `offset`. */
  tornBytes: number;
}

export const startOfLog = (): LogPosition => ({ offset: 0, lastSeq: 0, epoch: 0, tornBytes: 0 });

/** Yields the events after `position` and moves it along. Ends at the present end of the file; call again later for what has come since. */
export async function* readLog(path: string, position: LogPosition): AsyncGenerator<StoredEvent> {
  const file = await open(path, "r");
  try {
    yield* readLines(path, file, position);
  } finally {
    await file.close();
  }
}

async function* readLines(path: string, file: FileHandle, position: LogPosition): AsyncGenerator<StoredEvent> {
  let rest: Buffer = Buffer.alloc(0);
  let at = position.offset;
  for (;;) {
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES, at);
    if (bytesRead === 0) break;
    at += bytesRead;
    rest = rest.length === 0 ? chunk.subarray(0, bytesRead) : Buffer.concat([rest, chunk.subarray(0, bytesRead)]);
    let start = 0;
    for (let end = rest.indexOf(10, start); end >= 0; end = rest.indexOf(10, start)) {
      const stored = decodeLine(rest.subarray(start, end));
      if (stored === null) throw corrupt(path, position.offset, "the line is not what was written");
      const isVoid = stored.epoch < position.epoch;
      if (!isVoid && stored.seq !== position.lastSeq + 1) throw corrupt(path, position.offset, `event ${stored.seq} follows event ${position.lastSeq}`);
      position.offset += end + 1 - start;
      start = end + 1;
      if (isVoid) continue;
      position.lastSeq = stored.seq;
      position.epoch = stored.epoch;
      yield stored;
    }
    rest = rest.subarray(start);
    if (rest.length > LINE_BYTES) throw corrupt(path, position.offset, "a line is longer than any event");
  }
  position.tornBytes = rest.length;
}

function corrupt(path: string, offset: number, why: string): MwError {
  return new MwError("corrupt", `${path} is damaged at byte ${offset}: ${why}`, {
    fix: `restore the file, or cut it there and lose what follows: truncate -s ${offset} ${path}`,
    facts: { path, offset },
  });
}

/**
 * One event as one line of text: `{"sum":"<crc32>","seq":1,"at":"...","epoch":1,"event":{...}}`. The checksum covers every byte after its own field, so a line is
 * either exactly what was written or recognisably not.
 */
import { crc32 } from "node:zlib";
import { LIMITS } from "../core/limits.ts";
import { MwError } from "../core/errors.ts";
import type { LogEvent, StoredEvent } from "./event-log.ts";

const PREFIX = '{"sum":"';
const SUM_END = PREFIX.length + 8;

/** The line of an event, given as JSON, with its newline. Refuses events over the limit. */
export function encodeText(seq: number, at: string, epoch: number, type: string, json: string): Buffer {
  const body = `","seq":${seq},"at":${JSON.stringify(at)},"epoch":${epoch},"event":${json}}`;
  const bytes = Buffer.byteLength(body);
  if (bytes > LIMITS.eventBytes) {
    throw new MwError("limit_exceeded", `an event of type ${type} has ${bytes} bytes, more than the ${LIMITS.eventBytes} that the log takes`, { facts: { type, bytes } });
  }
  return Buffer.from(`${PREFIX}${checksum(body)}${body}\n`);
}

/** The event of one line (without its newline), or null when the line is not one that `encodeText` made. */
export function decodeLine(line: Buffer): StoredEvent | null {
  if (line.length < SUM_END || line.toString("latin1", 0, PREFIX.length) !== PREFIX) return null;
  if (line.toString("latin1", PREFIX.length, SUM_END) !== checksum(line.subarray(SUM_END))) return null;
  try {
    // The checksum says that these are our own bytes.
    const { seq, at, epoch, event } = JSON.parse(line.toString("utf8")) as StoredEvent;
    return { seq, at, epoch, event };
  } catch {
    return null;
  }
}

/** Throws `internal` for numbers that JSON would change silently. */
export function encodeEvent(event: LogEvent): string {
  return JSON.stringify(event, (key, value: unknown) => {
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new MwError("internal", `event ${event.type}: field ${key} is ${value}, which the log cannot carry`);
    }
    return value;
  });
}

function checksum(body: Buffer | string): string {
  return crc32(body).toString(16).padStart(8, "0");
}

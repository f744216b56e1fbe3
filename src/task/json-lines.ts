/** Reads a JSON Lines file as a stream: memory stays flat whatever the file's size, and a bad line is a value with its number. */
import { createReadStream } from "node:fs";
import { messageOf, MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";

export interface JsonLine {
  /** From 1. Blank lines are counted and skipped. */
  readonly line: number;
  readonly value: unknown;
  readonly error: MwError | null;
}

export async function* readJsonLines(file: string): AsyncGenerator<JsonLine> {
  let line = 0;
  for await (const bytes of splitLines(file)) {
    line++;
    if (bytes === null) {
      yield { line, value: undefined, error: new MwError("invalid_input", `${file}:${line} is longer than ${LIMITS.jsonLineBytes} bytes`, { facts: { file, line } }) };
      continue;
    }
    const content = bytes.toString("utf8").replace(/^\uFEFF/, "").trim();
    if (content === "") continue;
    try {
      yield { line, value: JSON.parse(content) as unknown, error: null };
    } catch (error) {
      yield { line, value: undefined, error: new MwError("invalid_input", `${file}:${line} is not JSON: ${messageOf(error)}`, { fix: `Correct line ${line}.`, cause: error, facts: { file, line } }) };
    }
  }
}

/** Lines without their end; null for one that is too long, whose bytes are dropped as they come. */
async function* splitLines(file: string): AsyncGenerator<Buffer | null> {
  let parts: Buffer[] = [];
  let length = 0;
  for await (const chunk of createReadStream(file, { highWaterMark: 64 * 1024 })) {
    const bytes = chunk as Buffer;
    let start = 0;
    for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, start)) {
      length += end - start;
      yield length > LIMITS.jsonLineBytes ? null : Buffer.concat([...parts, bytes.subarray(start, end)]);
      parts = [];
      length = 0;
      start = end + 1;
    }
    length += bytes.length - start;
    if (length <= LIMITS.jsonLineBytes) parts.push(bytes.subarray(start));
    else parts = [];
  }
  if (length > 0) yield length > LIMITS.jsonLineBytes ? null : Buffer.concat(parts);
}

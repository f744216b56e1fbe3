/** Reads a call log back, front to back, with what calls have in common in memory once. */
import { open, type FileHandle } from "node:fs/promises";
import { messageOf, MwError } from "../../core/errors.ts";
import type { Call } from "../call.ts";
import { CallDecoder, type TokenLengths } from "./call-format.ts";

const CHUNK_BYTES = 1 << 17;
const REPLAY = Buffer.from('{"replay":');

/**
 * The calls in the order of their ends. A last line without its end is a write in progress or one that a kill tore: it is not there. Rejects `corrupt` with the offset for
 * any other line that is not what was written. A file that is not there has no calls.
 */
export async function* readCalls(path: string): AsyncGenerator<Call> {
  for await (const { call } of readLog(path, (decoder, line) => {
    const call = decoder.decode(line);
    return call === null ? null : { call };
  })) yield call;
}

/** The same without token arrays, which outweigh everything else: their lengths instead. */
export function readCallHeads(path: string): AsyncGenerator<{ readonly call: Call; readonly lengths: TokenLengths | null }> {
  return readLog(path, (decoder, line) => decoder.decodeHead(line));
}

async function* readLog<Read extends { readonly call: Call }>(path: string, decodeLine: (decoder: CallDecoder, line: string) => Read | null): AsyncGenerator<Read> {
  let file: FileHandle;
  try {
    file = await open(path, "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
    throw error;
  }
  try {
    const replays = new Map<number, number>();
    // A replay is known only after its call.
    for await (const { line } of readLines(file)) {
      if (!line.subarray(0, REPLAY.length).equals(REPLAY)) continue;
      const number = Number.parseInt(line.toString("latin1", REPLAY.length), 10);
      replays.set(number, (replays.get(number) ?? 0) + 1);
    }
    const decoder = new CallDecoder();
    for await (const { line, offset } of readLines(file)) {
      const read = decode(() => decodeLine(decoder, line.toString("utf8")), path, offset);
      if (read === null) continue;
      const again = replays.get(read.call.number);
      yield again === undefined ? read : { ...read, call: { ...read.call, replays: read.call.replays + again } };
    }
  } finally {
    await file.close();
  }
}

function decode<Read>(work: () => Read, path: string, offset: number): Read {
  try {
    return work();
  } catch (error) {
    if (error instanceof MwError) throw error;
    throw new MwError("corrupt", `${path} is damaged at byte ${offset}: ${messageOf(error)}`, {
      fix: `restore the file, or cut it there and lose what follows: truncate -s ${offset} ${path}`,
      cause: error,
      facts: { path, offset },
    });
  }
}

async function* readLines(file: FileHandle): AsyncGenerator<{ readonly line: Buffer; readonly offset: number }> {
  let parts: Buffer[] = [];
  let offset = 0;
  for (let at = 0; ; ) {
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES, at);
    if (bytesRead === 0) return;
    at += bytesRead;
    let start = 0;
    for (let end = chunk.indexOf(10, start); end >= 0 && end < bytesRead; end = chunk.indexOf(10, start)) {
      const line = Buffer.concat([...parts, chunk.subarray(start, end)]);
      parts = [];
      yield { line, offset };
      offset += line.length + 1;
      start = end + 1;
    }
    if (start < bytesRead) parts.push(chunk.subarray(start, bytesRead));
  }
}

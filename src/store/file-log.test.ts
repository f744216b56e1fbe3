import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync, appendFileSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { LIMITS } from "../core/limits.ts";
import { systemRuntime } from "../core/runtime.ts";
import type { LogEvent, StoredEvent } from "./event-log.ts";
import { FileLog, type FileLogOptions, type LogFile } from "./file-log.ts";
import { readLog, startOfLog } from "./log-reader.ts";

let directory = "";
let path = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "mw-log-"));
  path = join(directory, "events.jsonl");
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const openLog = (options: Partial<FileLogOptions> = {}): Promise<FileLog> => FileLog.open({ path, epoch: 1, durability: "process", runtime: systemRuntime, ...options });

async function stored(file = path): Promise<StoredEvent[]> {
  const events: StoredEvent[] = [];
  for await (const event of readLog(file, startOfLog())) events.push(event);
  return events;
}

const event = (n: number | string): LogEvent => ({ type: "test", v: 1, n });
const eventArbitrary = fc.record({ type: fc.string({ minLength: 1 }), v: fc.nat(), text: fc.string({ unit: "binary" }), data: fc.jsonValue() });

describe("FileLog", () => {
  it("gives back what was appended, across openings, whatever the content", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.array(eventArbitrary, { maxLength: 5 }), { maxLength: 8 }), async (batches) => {
        rmSync(path, { force: true });
        for (const batch of batches) {
          const log = await openLog();
          await log.append(batch);
          await log.close();
        }
        const all = batches.flat().map((one) => JSON.parse(JSON.stringify(one)) as unknown);
        const read = batches.length === 0 ? [] : await stored();
        expect(read.map((one) => one.event)).toEqual(all);
        expect(read.map((one) => one.seq)).toEqual(all.map((_, index) => index + 1));
      }),
      { numRuns: 60 },
    );
  });

  it("commits concurrent appends in call order, in far fewer writes than appends", async () => {
    let writes = 0;
    const log = await openLog({
      openFile: async (file, flags) => counting(await open(file, flags), () => writes++),
    });
    const seqs = await Promise.all(Array.from({ length: 1000 }, (_, n) => log.append([event(n)])));
    await log.close();
    expect(seqs).toEqual(Array.from({ length: 1000 }, (_, n) => n + 1));
    expect((await stored()).map((one) => one.event["n"])).toEqual(Array.from({ length: 1000 }, (_, n) => n));
    expect(writes).toBeLessThan(50);
  });

  it("loses exactly the torn event when the writer dies at any byte", async () => {
    const log = await openLog();
    for (let n = 0; n < 4; n++) await log.append([event("é".repeat(n * 7))]);
    await log.close();
    const whole = readFileSync(path);
    const ends = [...whole.keys()].filter((index) => whole[index] === 10).map((index) => index + 1);
    for (let cut = 0; cut <= whole.length; cut++) {
      writeFileSync(path, whole.subarray(0, cut));
      const complete = ends.filter((end) => end <= cut);
      expect((await stored()).length).toBe(complete.length);
      const again = await openLog({ epoch: 2 });
      const kept = complete.at(-1) ?? 0;
      expect(again.repaired).toEqual(cut === kept ? null : { offset: kept, bytes: cut - kept });
      expect(again.lastSeq).toBe(complete.length);
      await again.append([event("after")]);
      await again.close();
      expect((await stored()).map((one) => one.event["n"]).at(-1)).toBe("after");
    }
  });

  it("names the byte offset of any changed byte in a complete line", async () => {
    const log = await openLog();
    for (let n = 0; n < 3; n++) await log.append([event(n)]);
    await log.close();
    const whole = readFileSync(path);
    const starts = [0, ...[...whole.keys()].filter((index) => whole[index] === 10).map((index) => index + 1)];
    for (let at = 0; at < (starts[2] ?? 0) - 1; at++) {
      if (whole[at] === 10) continue;
      const damaged = Buffer.from(whole);
      damaged[at] = (damaged[at] ?? 0) ^ 0x04;
      writeFileSync(path, damaged);
      const start = starts.findLast((offset) => offset <= at);
      await expect(openLog()).rejects.toMatchObject({ code: "corrupt", facts: { path, offset: start } });
      expect(readFileSync(path).equals(damaged)).toBe(true);
    }
  });

  it("finds a removed and a repeated line", async () => {
    const log = await openLog();
    for (let n = 0; n < 3; n++) await log.append([event(n)]);
    await log.close();
    const [first = "", second = "", third = ""] = readFileSync(path, "utf8").split(/(?<=\n)/);
    writeFileSync(path, first + third);
    await expect(openLog()).rejects.toMatchObject({ code: "corrupt", facts: { offset: first.length } });
    writeFileSync(path, first + second + second + third);
    await expect(openLog()).rejects.toMatchObject({ code: "corrupt", facts: { offset: first.length + second.length } });
  });

  it("refuses an append whose expected sequence is not the last, and only that one", async () => {
    const log = await openLog();
    const results = await Promise.allSettled([log.append([event(0)], { expectedSeq: 0 }), log.append([event(1)], { expectedSeq: 0 }), log.append([event(2)], { expectedSeq: 1 })]);
    await log.close();
    expect(results.map((result) => result.status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect((await stored()).map((one) => one.event["n"])).toEqual([0, 2]);
  });

  it("refuses what it cannot carry without harm to its neighbours", async () => {
    const log = await openLog();
    const results = await Promise.allSettled([
      log.append([event(0)]),
      log.append([{ type: "big", v: 1, text: "x".repeat(LIMITS.eventBytes) }]),
      log.append([{ type: "nan", v: 1, reward: Number.NaN }]),
      log.append([event(1)]),
    ]);
    await log.close();
    expect(results.map((result) => (result.status === "rejected" ? (result.reason as { code: string }).code : "ok"))).toEqual(["ok", "limit_exceeded", "internal", "ok"]);
    expect((await stored()).map((one) => [one.seq, one.event["n"]])).toEqual([[1, 0], [2, 1]]);
  });

  it("shows readers only whole events while a writer is at work", async () => {
    const log = await openLog();
    const position = startOfLog();
    const seen: unknown[] = [];
    const writer = (async () => {
      for (let n = 0; n < 300; n++) await log.append([event(n)]);
    })();
    while (seen.length < 300) {
      try {
        for await (const one of readLog(path, position)) seen.push(one.event["n"]);
      } finally {
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
    await writer;
    await log.close();
    expect(seen).toEqual(Array.from({ length: 300 }, (_, n) => n));
  });
});

describe("two writers", () => {
  it("stops the one with the lower epoch, and voids what it still wrote", async () => {
    const old = await openLog({ epoch: 1 });
    await old.append([event("old")]);
    const late = readFileSync(path);
    const young = await openLog({ epoch: 2 });
    await young.append([event("young")]);
    await expect(old.append([event("too late")])).rejects.toMatchObject({ code: "conflict", facts: { own: 1, other: 2 } });
    await expect(old.append([event("again")])).rejects.toMatchObject({ code: "conflict" });
    // A write that was already on its way lands after the newer controller's first event.
    appendFileSync(path, late);
    await young.append([event("young again")]);
    await young.close();
    await old.close();
    expect((await stored()).map((one) => one.event["n"])).toEqual(["old", "young", "young again"]);
    await expect(openLog({ epoch: 1 })).rejects.toMatchObject({ code: "conflict" });
  });

  it("stops a writer whose file was cut or extended by somebody else", async () => {
    const log = await openLog();
    await log.append([event(0)]);
    truncateSync(path, statSync(path).size - 1);
    await expect(log.append([event(1)])).rejects.toMatchObject({ code: "conflict" });
    await log.close();
  });
});

describe("a disk that fills up", () => {
  it("leaves no half event at any byte, and goes on once there is room", async () => {
    for (let room = 0; room < 400; room += 7) {
      rmSync(path, { force: true });
      const disk = { room };
      const log = await openLog({ openFile: async (file, flags) => limited(await open(file, flags), disk) });
      const accepted: number[] = [];
      const refusals: unknown[] = [];
      for (let n = 0; n < 4; n++) {
        try {
          await log.append([event(n)]);
          accepted.push(n);
        } catch (error) {
          refusals.push(error);
        }
      }
      for (const refusal of refusals) expect(refusal).toMatchObject({ code: "host_exhausted" });
      expect((await stored()).map((one) => one.event["n"])).toEqual(accepted);
      disk.room = 1 << 20;
      await log.append([event("more")]);
      await log.close();
      expect((await stored()).map((one) => one.event["n"])).toEqual([...accepted, "more"]);
    }
  });

  it("takes nothing more once a failed write cannot be taken back", async () => {
    const disk = { room: 30, stuck: true };
    const log = await openLog({ openFile: async (file, flags) => limited(await open(file, flags), disk) });
    await expect(log.append([event(0)])).rejects.toMatchObject({ code: "host_exhausted" });
    disk.room = 1 << 20;
    await expect(log.append([event(1)])).rejects.toMatchObject({ code: "host_exhausted" });
    await log.close();
    expect(await stored()).toEqual([]);
    const again = await openLog();
    expect(again.repaired).toMatchObject({ offset: 0, bytes: 30 });
    await again.close();
  });
});

function counting(file: LogFile, onWrite: () => void): LogFile {
  return { ...bind(file), write: ((...args: Parameters<LogFile["write"]>) => (onWrite(), file.write(...args))) as LogFile["write"] };
}

/** A disk with room for so many bytes: a write takes what fits, the next one fails. */
function limited(file: LogFile, disk: { room: number; readonly stuck?: boolean }): LogFile {
  return {
    ...bind(file),
    write: (async (bytes: Buffer, offset: number, length: number) => {
      if (disk.room === 0) throw full();
      const fitting = Math.min(length, disk.room);
      disk.room -= fitting;
      return file.write(bytes, offset, fitting);
    }) as unknown as LogFile["write"],
    truncate: async (length) => {
      if (disk.stuck === true) throw full();
      const { size } = await file.stat();
      disk.room += size - (length ?? 0);
      await file.truncate(length);
    },
  };
}

function full(): Error {
  return Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
}

function bind(file: LogFile): LogFile {
  return {
    write: file.write.bind(file),
    truncate: file.truncate.bind(file),
    datasync: file.datasync.bind(file),
    stat: file.stat.bind(file),
    close: file.close.bind(file),
  };
}

import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { newId } from "../../core/ids.ts";
import { systemRuntime } from "../../core/runtime.ts";
import type { AppendHandle } from "../../store/append-file.ts";
import type { Call, PromptReference } from "../call.ts";
import { DEFAULT_SAMPLING } from "../conversation.ts";
import type { CallTokens } from "../upstreams/upstream.ts";
import { TokenLedger } from "../session/token-ledger.ts";
import { CallLog } from "./call-log.ts";
import { readCalls } from "./read-calls.ts";

let directory = "";
let path = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "mw-calls-"));
  path = join(directory, "calls.jsonl");
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

async function stored(): Promise<Call[]> {
  const calls: Call[] = [];
  for await (const call of readCalls(path)) calls.push(call);
  return calls;
}

function makeCall(number: number, changes: Partial<Call> = {}): Call {
  return {
    id: newId("call", systemRuntime),
    number,
    at: new Date(0).toISOString(),
    durationMs: 12.5,
    firstDeltaMs: null,
    dialect: "openai-chat",
    route: { model: null, stream: null },
    status: "complete",
    failure: null,
    request: { model: "m", messages: [] },
    conversation: { tools: "", toolCount: 0, messages: [], roles: "", structured: false },
    model: "m",
    sampling: DEFAULT_SAMPLING,
    notes: [],
    answer: { blocks: [{ type: "text", text: "\ud800 ü" }], finish: "stop", stopSequence: null, usage: null, logprobs: null },
    capture: "tokens",
    tokens: null,
    replays: 0,
    ...changes,
  };
}

/** Appends with the references that a session would give. */
async function write(log: CallLog, calls: readonly Call[]): Promise<void> {
  const ledger = new TokenLedger();
  for (const call of calls) {
    const reference: PromptReference | null = call.tokens === null ? null : ledger.add(call.number, call.tokens);
    await log.append(call, reference);
  }
}

const idArbitrary = fc.nat({ max: 3 });
const tokensArbitrary = fc.record({
  promptIds: fc.array(idArbitrary, { maxLength: 12 }),
  completionIds: fc.array(idArbitrary, { maxLength: 6 }),
  logprobs: fc.constant(null),
  versions: fc.constant([] as const),
}) satisfies fc.Arbitrary<CallTokens>;
const messageArbitrary = fc.oneof(fc.constantFrom({ role: "user", content: "hello" }, { role: "assistant", content: "x".repeat(300) }), fc.jsonValue());
const requestArbitrary = fc.oneof(
  fc.jsonValue(),
  fc.record({ model: fc.constant("m"), messages: fc.array(messageArbitrary), tools: fc.array(messageArbitrary, { maxLength: 2 }), system: fc.string({ maxLength: 400 }), "1": fc.jsonValue(), ["__proto__"]: fc.jsonValue() }, { requiredKeys: [] }),
);
const callArbitrary = fc.record({ request: requestArbitrary, tokens: fc.option(tokensArbitrary), keys: fc.array(fc.constantFrom("a", "b", "c")) });

describe("CallLog", () => {
  it("gives back exactly the calls that were written, whatever they hold", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(callArbitrary, { maxLength: 8 }), async (parts) => {
        rmSync(path, { force: true });
        // As they come from the wire: parsed JSON.
        const calls = parts.map(({ request, tokens, keys }, index) =>
          makeCall(index + 1, { request: JSON.parse(JSON.stringify(request)) as unknown, tokens, conversation: { tools: "t", toolCount: 1, messages: keys, roles: "u", structured: true } }),
        );
        const log = new CallLog({ path, durability: "process" });
        await write(log, calls);
        await log.close();
        expect(await stored()).toEqual(calls);
        expect(JSON.stringify(await stored())).toBe(JSON.stringify(calls));
      }),
      { numRuns: 200 },
    );
  });

  it("grows with what is new, not with the history", async () => {
    const log = new CallLog({ path, durability: "process" });
    const messages: unknown[] = [{ role: "system", content: "s".repeat(5000) }];
    const ids: number[] = Array.from({ length: 2000 }, (_, index) => index);
    const ledger = new TokenLedger();
    for (let turn = 1; turn <= 200; turn++) {
      const tokens = { promptIds: [...ids], completionIds: [turn, turn], logprobs: [-0.5, -0.25], versions: [["1", 2]] as const };
      await log.append(makeCall(turn, { request: { model: "m", messages: [...messages] }, tokens }), ledger.add(turn, tokens));
      messages.push({ role: "assistant", content: `answer ${turn}` }, { role: "tool", content: `result ${turn}` });
      ids.push(turn, turn, 9, 9, 9);
    }
    await log.close();
    const perCall = statSync(path).size / 200;
    expect(perCall).toBeLessThan(1200);
    const calls = await stored();
    expect(calls.at(-1)?.tokens?.promptIds).toEqual(ids.slice(0, -5));
    expect(calls.at(-1)?.request).toEqual({ model: "m", messages: messages.slice(0, -2) });
  });

  it("loses exactly the calls behind a cut at any byte", async () => {
    const log = new CallLog({ path, durability: "process" });
    const calls = Array.from({ length: 3 }, (_, index) => makeCall(index + 1, { request: { messages: Array.from({ length: index + 1 }, (_, at) => ({ at, text: "é".repeat(9) })) } }));
    await write(log, calls);
    await log.close();
    const whole = readFileSync(path);
    for (let cut = 0; cut <= whole.length; cut++) {
      writeFileSync(path, whole.subarray(0, cut));
      const complete = whole.subarray(0, cut).toString("latin1").split("\n").slice(0, -1).filter((line) => line.startsWith('{"call"')).length;
      expect((await stored()).length).toBe(complete);
    }
  });

  it("names the place of damage, and knows no later version", async () => {
    const log = new CallLog({ path, durability: "process" });
    await write(log, [makeCall(1)]);
    await log.close();
    const { size } = statSync(path);
    appendFileSync(path, '{"call":{"number":2,"request":{"fields":[["messages",1,[7,1]]]},"conversation":{"messages":[]},"tokens":null}}\n');
    await expect(stored()).rejects.toMatchObject({ code: "corrupt", facts: { offset: size } });
    truncateSync(path, size);
    appendFileSync(path, '{"mw":"calls","v":2}\n');
    await expect(stored()).rejects.toMatchObject({ code: "unsupported" });
  });

  it("counts the replays of a call", async () => {
    const log = new CallLog({ path, durability: "process" });
    await write(log, [makeCall(1), makeCall(2, { replays: 1 })]);
    await log.replayed(2);
    await log.replayed(2);
    await log.close();
    expect((await stored()).map((call) => call.replays)).toEqual([0, 3]);
  });

  it("leaves nothing of a call that found the disk full at any byte, and takes the next once there is room", async () => {
    for (let room = 0; room < 1500; room += 41) {
      rmSync(path, { force: true });
      const disk = { room };
      const log = new CallLog({ path, durability: "process", openFile: async (name) => limited(await open(name, "a"), disk) });
      const shared = { role: "user", content: "said in every call" };
      const accepted: number[] = [];
      const attempt = async (number: number): Promise<void> => {
        try {
          await log.append(makeCall(number, { request: { messages: [shared, { number }] } }), null);
          accepted.push(number);
        } catch (error) {
          expect(error).toMatchObject({ code: "host_exhausted" });
        }
      };
      await Promise.all([attempt(1), attempt(2)]);
      await attempt(3);
      disk.room = 1 << 20;
      await attempt(4);
      await log.close();
      expect(accepted).toContain(4);
      expect((await stored()).map((call) => [call.number, call.request])).toEqual(accepted.map((number) => [number, { messages: [shared, { number }] }]));
    }
  });
});

/** A disk with room for so many bytes: a write takes what fits, the next one fails. */
function limited(file: AppendHandle, disk: { room: number }): AppendHandle {
  return {
    stat: file.stat.bind(file),
    datasync: file.datasync.bind(file),
    close: file.close.bind(file),
    write: (async (bytes: Buffer, offset: number, length: number) => {
      if (disk.room === 0) throw Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
      const fitting = Math.min(length, disk.room);
      disk.room -= fitting;
      return file.write(bytes, offset, fitting);
    }) as unknown as AppendHandle["write"],
    truncate: async (length) => {
      disk.room += (await file.stat()).size - (length ?? 0);
      await file.truncate(length);
    },
  };
}

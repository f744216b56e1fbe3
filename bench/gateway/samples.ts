/** From the call log of a long rollout on disk to its samples: 200 calls of an agent whose last prompt and answer have 100,000 tokens. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newId } from "../../src/core/ids.ts";
import { seededRandom, systemRuntime } from "../../src/core/runtime.ts";
import { buildSamples, buildTrace, CallLog, conversationFacts, readCalls, type Call, type Message, type TurnRequest } from "../../src/gateway/index.ts";
import { EMPTY_TURN, DEFAULT_SAMPLING } from "../../src/gateway/conversation.ts";

const CALLS = 200;
const ANSWER_TOKENS = 120;
const RESULT_TOKENS = 380;

/** Milliseconds of each run. */
export async function timeSamples(runs: number): Promise<readonly number[]> {
  const directory = mkdtempSync(join(tmpdir(), "mw-bench-samples-"));
  try {
    const path = join(directory, "calls.jsonl");
    const log = new CallLog({ path, durability: "process" });
    await writeRollout(log);
    await log.close();
    const times: number[] = [];
    for (let run = 0; run < runs; run++) {
      const begun = performance.now();
      const calls: Call[] = [];
      for await (const call of readCalls(path)) calls.push(call);
      const trace = buildTrace(calls, { turnOf: ({ request }) => request as TurnRequest });
      const { samples, ledger } = buildSamples(calls, trace, { builder: "prefix-merge" });
      times.push(performance.now() - begun);
      if (samples.length !== 1 || ledger.trained !== CALLS * ANSWER_TOKENS) throw new Error(`expected one sample of ${CALLS * ANSWER_TOKENS} trained tokens, not ${samples.length} of ${ledger.trained}`);
    }
    return times;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function writeRollout(log: CallLog): Promise<void> {
  const random = seededRandom("samples");
  const ids = (count: number): number[] => Array.from({ length: count }, () => Math.floor(random() * 150_000));
  const text = (tokens: number): string => "word ".repeat(tokens);
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: text(RESULT_TOKENS) }] }];
  let promptIds = ids(RESULT_TOKENS);
  for (let number = 1; number <= CALLS; number++) {
    const completionIds = ids(ANSWER_TOKENS);
    const logprobs = completionIds.map(() => -random());
    const callId = `call_${number}`;
    const answer = [{ type: "text" as const, text: text(ANSWER_TOKENS / 2) }, { type: "tool_call" as const, id: callId, name: "bash", arguments: JSON.stringify({ command: text(ANSWER_TOKENS / 2) }) }];
    const request: TurnRequest = { ...EMPTY_TURN, model: "m", messages: [...messages], tools: [{ name: "bash", description: null, parameters: { type: "object" } }] };
    const call: Call = {
      id: newId("call", systemRuntime),
      number,
      at: new Date(number * 1000).toISOString(),
      durationMs: 5,
      firstDeltaMs: null,
      dialect: "turn",
      route: { model: null, stream: null },
      status: "complete",
      failure: null,
      request,
      conversation: conversationFacts(request),
      model: "m",
      sampling: DEFAULT_SAMPLING,
      notes: [],
      answer: { blocks: answer, finish: "tool_calls", stopSequence: null, usage: null, logprobs: null },
      capture: "tokens",
      tokens: { promptIds, completionIds, logprobs, versions: [["1", completionIds.length]] },
      replays: 0,
    };
    await log.append(call, number === 1 ? null : { call: number - 1, kept: promptIds.length - RESULT_TOKENS });
    messages.push({ role: "assistant", content: answer }, { role: "tool", callId, name: null, content: [{ type: "text", text: text(RESULT_TOKENS) }], isError: false });
    promptIds = promptIds.concat(completionIds, ids(RESULT_TOKENS));
  }
}

/** A rollout of a fixture run with a conversation as long as a test wants it, written by the product's own recorder and call log. */
import { newId, type RolloutId, type RunId } from "../../../src/core/ids.ts";
import { seededRandom, systemRuntime } from "../../../src/core/runtime.ts";
import type { Call } from "../../../src/gateway/call.ts";
import { DEFAULT_SAMPLING, EMPTY_TURN, type Message, type TurnRequest } from "../../../src/gateway/conversation.ts";
import { conversationFacts } from "../../../src/gateway/trace/message-key.ts";
import { RolloutRecorder } from "../../../src/rollout/recorder.ts";
import { rolloutDirectory } from "../../../src/store/run-directory.ts";

export interface LongRollout {
  /** Model calls; after each one a command runs. */
  readonly calls: number;
  /** Tokens in prompts and answers of the last call of a conversation, all samples together. */
  readonly tokens: number;
  /** Conversations, each of which starts from a summary of the one before it. */
  readonly conversations: number;
}

const TOOLS = [{ name: "bash", description: null, parameters: { type: "object" } }] as const;

export async function writeLongRollout(home: string, run: RunId, rollout: RolloutId, { calls, tokens, conversations }: LongRollout): Promise<void> {
  const recorder = await RolloutRecorder.open(rolloutDirectory(home, run, rollout), "process");
  await recorder.write("instruction.md", "Do very much.\n");
  const random = seededRandom("long");
  const each = Math.ceil(calls / conversations);
  const perCall = Math.ceil(tokens / calls);
  const fresh = (count: number): number[] => Array.from({ length: count }, () => Math.floor(random() * 150_000));
  let at = Date.UTC(2026, 10, 29, 9);
  let number = 0;
  let summary = "Do very much.";
  for (let conversation = 0; conversation < conversations; conversation++) {
    const messages: Message[] = [
      { role: "system", name: "system", content: [{ type: "text", text: "You are an agent." }] },
      { role: "user", content: [{ type: "text", text: summary }] },
    ];
    let ids: number[] = fresh(20);
    let before: { readonly call: number; readonly kept: number } | null = null;
    for (let turn = 0; turn < each; turn++) {
      const last = turn === each - 1;
      summary = `What was done so far in conversation ${conversation}: everything up to call ${number}, and a good deal more than that.`;
      // A summary answers a user.
      if (last) messages.push({ role: "user", content: [{ type: "text", text: "Sum up what was done." }] });
      const request: TurnRequest = { ...EMPTY_TURN, model: "m", messages: [...messages], tools: TOOLS };
      const completionIds = fresh(Math.max(1, Math.floor(perCall * 0.3)));
      const promptIds = ids;
      const call: Call = {
        id: newId("call", systemRuntime),
        number: ++number,
        at: new Date(at).toISOString(),
        durationMs: 400,
        firstDeltaMs: 50,
        dialect: "turn",
        route: { model: null, stream: null },
        status: "complete",
        failure: null,
        request,
        conversation: conversationFacts(request),
        model: "m",
        sampling: DEFAULT_SAMPLING,
        notes: [],
        answer: {
          blocks: last ? [{ type: "text", text: summary }] : [{ type: "tool_call", id: `c${number}`, name: "bash", arguments: JSON.stringify({ command: `step ${number}` }) }],
          finish: last ? "stop" : "tool_calls",
          stopSequence: null,
          usage: { promptTokens: promptIds.length, completionTokens: completionIds.length, cachedTokens: 0, reasoningTokens: 0 },
          logprobs: null,
        },
        capture: "tokens",
        tokens: { promptIds, completionIds, logprobs: completionIds.map(() => Math.fround(-2 * random())), versions: [[String(1 + conversation), completionIds.length]] },
        replays: 0,
      };
      await recorder.calls.append(call, before);
      at += 500;
      await recorder.command({ at: new Date(at).toISOString(), command: `step ${number}`, code: 0, ended: "exited", cause: null, durationMs: 90, stdout: Buffer.from(`output of step ${number}\n`), stderr: new Uint8Array(), stdoutBytes: 20, stderrBytes: 0 });
      at += 100;
      before = { call: number, kept: promptIds.length + completionIds.length };
      ids = [...promptIds, ...completionIds, ...fresh(Math.max(1, perCall - completionIds.length))];
      messages.push({ role: "assistant", content: call.answer?.blocks ?? [] }, { role: "tool", callId: `c${number}`, name: null, content: [{ type: "text", text: `output of step ${number}` }], isError: false });
    }
  }
  await recorder.close();
}

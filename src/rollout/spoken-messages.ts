/** The conversation of a rollout: what passed between the agent and its model, whatever the harness. */
import { transcriptOf } from "../gateway/trace/transcript.ts";
import { turnOf } from "../gateway/trace/turn-of-call.ts";
import { recordOf } from "../harness/agent/messages.ts";
import type { MessageRecord } from "../harness/harness.ts";
import type { RolloutTokens } from "./samples/rollout-samples.ts";

/** An answer names the call that gave it. */
export interface SpokenMessage extends MessageRecord {
  readonly call?: number;
}

/** From the calls, since an agent CLI keeps no transcript with us; a harness of ours does (`transcript`), and only that has what it told the model after its last answer. */
export function spokenMessages({ calls, trace }: RolloutTokens, transcript: readonly MessageRecord[]): readonly SpokenMessage[] {
  if (trace.mainLine.length === 0) return transcript;
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  const messages: SpokenMessage[] = [];
  for (const { at, message, call: number } of transcriptOf(calls, trace, turnOf)) {
    const answers = byNumber.get(number)?.answer?.blocks === message.content;
    messages.push({ at, ...recordOf(message), ...(answers ? { call: number } : {}) });
  }
  return [...messages, ...transcript.slice(transcript.findLastIndex(({ role }) => role === "assistant") + 1)];
}

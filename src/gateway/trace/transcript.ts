/** The conversation of a trace's main line as people read it: what was new with each call, and what was answered. */
import type { Call } from "../call.ts";
import type { Message, TurnRequest } from "../conversation.ts";
import type { Trace } from "./trace.ts";
import { answerKey } from "./message-key.ts";

export interface TranscriptEntry {
  /** When the call came that brought the message, or when it ended, for an answer. ISO 8601. */
  readonly at: string;
  readonly message: Message;
  /** The call that it came with, or that answered it. */
  readonly call: number;
}

export function transcriptOf(calls: readonly Call[], trace: Trace, turnOf: (call: Call) => TurnRequest): readonly TranscriptEntry[] {
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  const relations = new Map(trace.nodes.map((node) => [node.call, node.relation]));
  const entries: TranscriptEntry[] = [];
  const said = new Set<string>();
  for (const number of trace.mainLine) {
    const call = byNumber.get(number);
    if (call === undefined) continue;
    const { messages } = turnOf(call);
    for (const message of messages.slice(known(call, relations.get(number) === "compacted", said))) entries.push({ at: call.at, message, call: number });
    if (call.answer === null) continue;
    said.add(answerKey(call.answer));
    entries.push({ at: new Date(Date.parse(call.at) + call.durationMs).toISOString(), message: { role: "assistant", content: call.answer.blocks }, call: number });
  }
  return entries;
}

/** How many messages stand in the transcript already: those up to the last answer that was given before. */
function known({ conversation: { messages, roles } }: Call, startsAnew: boolean, said: ReadonlySet<string>): number {
  if (startsAnew) return 0;
  for (let at = roles.lastIndexOf("a"); at >= 0; at = at === 0 ? -1 : roles.lastIndexOf("a", at - 1)) if (said.has(messages[at] ?? "")) return at + 1;
  return 0;
}

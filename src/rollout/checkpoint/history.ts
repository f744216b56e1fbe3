/**
 * `history.jsonl`: what a white-box loop said and did, in the form in which it goes on from it. The transcript is for people and leaves out what a model may need again.
 *
 *     {"say":MESSAGE}               one more message
 *     {"replace":[MESSAGE...]}      the history was made shorter
 *     {"act":INDEX,"call":NUMBER}   that tool call of that model call's answer begins
 */
import type { Message } from "../../gateway/conversation.ts";

export const sayLine = (message: Message): string => `${JSON.stringify({ say: message })}\n`;
export const replaceLine = (messages: readonly Message[]): string => `${JSON.stringify({ replace: messages })}\n`;
export const actLine = (call: number, index: number): string => `${JSON.stringify({ act: index, call })}\n`;

interface Line {
  readonly say?: Message;
  readonly replace?: readonly Message[];
  readonly act?: number;
  readonly call?: number;
}

export interface History {
  readonly messages: readonly Message[];
  readonly acts: readonly { readonly call: number; readonly index: number }[];
}

/** Of whole lines; one that a kill tore is not there. Its writer is this program, and a digest vouches for what matters. */
export function readHistory(text: string): History {
  let messages: Message[] = [];
  const acts: { call: number; index: number }[] = [];
  for (const line of text.split("\n").slice(0, -1)) {
    const { say, replace, act, call } = JSON.parse(line) as Line;
    if (say !== undefined) messages.push(say);
    else if (replace !== undefined) messages = [...replace];
    else if (act !== undefined && call !== undefined) acts.push({ call, index: act });
  }
  return { messages, acts };
}

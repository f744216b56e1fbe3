/**
 * `history.jsonl`: what a white-box loop said and did, in the form in which it goes on from it. The transcript is for people and leaves out what a model may need again.
 *
 *     {"say":MESSAGE}                          one more message
 *     {"replace":[MESSAGE...],"state":STATE}   the history was made shorter, and the model is asked next
 *     {"act":INDEX,"call":NUMBER}              that tool call of that model call's answer begins
 *     {"state":STATE}                          a turn is whole; with `shell` and `begun` of the resume point: a loop begins, or goes on; of a loop that another controller may go on with
 *
 * Each line says how many messages of the transcript (`told`) and commands (`ran`) it goes with.
 */
import type { Message } from "../../gateway/conversation.ts";
import type { LoopState } from "../../harness/continuity.ts";

export type HistoryEntry =
  | { readonly say: Message }
  | { readonly replace: readonly Message[]; readonly state: LoopState }
  | { readonly act: number; readonly call: number }
  | { readonly state: LoopState; readonly shell?: string; readonly begun?: readonly number[] };

/** Records beside the history that go with it. */
export interface Alongside {
  readonly told: number;
  readonly ran: number;
}

/** Any of the entries. */
type Line = Alongside & { readonly say?: Message; readonly replace?: readonly Message[]; readonly act?: number; readonly call?: number; readonly state?: LoopState; readonly shell?: string; readonly begun?: readonly number[] };

export interface History {
  readonly messages: readonly Message[];
  readonly acts: readonly { readonly call: number; readonly index: number }[];
}

/** Of whole lines; one that a kill tore is not there. Its writer is this program, and a digest vouches for what matters. */
export function readHistory(text: string): History {
  let messages: Message[] = [];
  const acts: { call: number; index: number }[] = [];
  for (const { say, replace, act, call } of linesOf(text)) {
    if (say !== undefined) messages.push(say);
    else if (replace !== undefined) messages = [...replace];
    else if (act !== undefined && call !== undefined) acts.push({ call, index: act });
  }
  return { messages, acts };
}

/** Where a loop stood when its controller died. */
export interface LastTurn {
  /** Behind the last turn that is whole. */
  readonly state: LoopState;
  readonly messages: readonly Message[];
  /** Said since. */
  readonly ahead: readonly Message[];
  readonly shell: string;
  readonly begun: readonly number[];
  /** A tool call had begun, and its result was not said. */
  readonly acting: boolean;
  readonly alongside: Alongside;
}

/** Null where no loop had begun that another controller may go on with. */
export function readLastTurn(text: string): LastTurn | null {
  let turn: Pick<LastTurn, "state" | "messages" | "begun"> | null = null;
  let shell: string | null = null;
  let messages: Message[] = [];
  let ahead: Message[] = [];
  let acting = false;
  let alongside: Alongside = { told: 0, ran: 0 };
  for (const { say, replace, act, state, shell: found, begun = [], told, ran } of linesOf(text)) {
    alongside = { told, ran };
    acting = act !== undefined;
    if (say !== undefined) ahead.push(say);
    if (found !== undefined) shell = found;
    if (state === undefined) continue;
    messages = replace === undefined ? [...messages, ...ahead] : [...replace];
    ahead = [];
    turn = { state, messages, begun };
  }
  return turn === null || shell === null ? null : { ...turn, ahead, shell, acting, alongside };
}

function linesOf(text: string): readonly Line[] {
  return text.split("\n").slice(0, -1).map((line) => JSON.parse(line) as Line);
}

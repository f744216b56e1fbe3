/**
 * The trace: how the calls of one session hang together. A call continues another when its messages begin with all that the other asked and was answered; what the harness did
 * besides (titles, probes, sub-agents, summaries of a history that grew too long) is told apart by the form of the conversation, never by the name of the harness.
 *
 * The trace is a fold over the call log. It decides which calls are worth training and how they are shown; which tokens extend which is decided by the tokens alone (`samples/`).
 */
import type { Call } from "../call.ts";
import type { TurnRequest } from "../conversation.ts";
import { findSpawner, findSummary } from "./evidence.ts";
import { answerKey, type MessageKey } from "./message-key.ts";

/**
 * - `main`: the conversation that works on the task, along the line that it ended on.
 * - `branch`: sampled beside that line: parallel samples, answers that the harness threw away.
 * - `subagent`: a conversation of its own with tools, begun by the main one.
 * - `compaction`: wrote the summary with which a conversation went on.
 * - `side`: a title, a topic, a check: no tools, no continuation. Not trained by default.
 * - `probe`: asks for a token or less, to see whether the model is there. Not trained by default.
 */
export const CALL_KINDS = ["main", "branch", "subagent", "compaction", "side", "probe"] as const;
export type CallKind = (typeof CALL_KINDS)[number];

/**
 * - `root`: nothing before it.
 * - `extends`: begins with everything that its parent asked and was answered.
 * - `edits`: the same conversation, but the harness changed what was said before (old outputs cut, turns dropped).
 * - `compacted`: starts anew from the summary that its parent wrote.
 */
export type Relation = "root" | "extends" | "edits" | "compacted";

export interface TraceNode {
  /** `Call.number`. */
  readonly call: number;
  readonly kind: CallKind;
  readonly relation: Relation;
  readonly parent: number | null;
  /** Conversations, numbered in order of their first call. */
  readonly thread: number;
  /** The call whose tool call began this conversation, where that can be seen. */
  readonly spawnedBy: number | null;
}

export interface Trace {
  /** In order of arrival, failed and incomplete calls included. */
  readonly nodes: readonly TraceNode[];
  /** Numbers of the calls of the main line, in order. */
  readonly mainLine: readonly number[];
}

export interface TraceOptions {
  /** Decodes a call's request; asked only for the calls that begin a conversation. */
  readonly turnOf: (call: Call) => TurnRequest;
  /** What the agent was told, where it is known: tells the main conversation from the others. */
  readonly instruction?: string;
}

interface Draft {
  readonly call: Call;
  /** Of the answer as a message; null for calls whose answer nobody can have continued. */
  readonly answer: MessageKey | null;
  relation: Relation;
  parent: Draft | null;
  thread: number;
  spawnedBy: number | null;
  wroteSummary: boolean;
}

export function buildTrace(calls: readonly Call[], options: TraceOptions): Trace {
  const drafts: Draft[] = [];
  let threads = 0;
  for (const call of calls.toSorted((a, b) => a.number - b.number)) {
    const draft: Draft = {
      call,
      answer: call.status === "complete" && call.answer !== null ? answerKey(call.answer) : null,
      relation: "root",
      parent: null,
      thread: -1,
      spawnedBy: null,
      wroteSummary: false,
    };
    attach(draft, drafts);
    if (draft.relation === "root" || draft.relation === "edits") explain(draft, drafts, options);
    if (draft.thread === -1) draft.thread = draft.parent?.thread ?? threads++;
    drafts.push(draft);
  }
  return classify(drafts, options);
}

/** Finds what a call continues, by the keys of its messages. */
function attach(draft: Draft, earlier: readonly Draft[]): void {
  const { messages } = draft.call.conversation;
  let longest = 0;
  for (let at = earlier.length - 1; at >= 0; at--) {
    const other = earlier[at] as Draft;
    const asked = other.call.conversation.messages;
    if (equalKeys(messages, asked)) {
      // Asked again: beside the other, not below it.
      draft.relation = other.relation;
      draft.parent = other.parent;
      draft.thread = other.thread;
      draft.spawnedBy = other.spawnedBy;
      return;
    }
    if (other.answer === null || asked.length < longest || messages[asked.length] !== other.answer || !startsWith(messages, asked)) continue;
    longest = asked.length + 1;
    draft.relation = "extends";
    draft.parent = other;
  }
  attachEdited(draft, earlier, longest);
}

/**
 * The same conversation with its past changed: it begins as another did, up to and including the first thing that the user said, and either holds an answer beyond the `known`
 * messages that extend a call, or extends none. Its parent is the call that gave the last answer it holds, else the one with which it has most in common.
 */
function attachEdited(draft: Draft, earlier: readonly Draft[], known: number): void {
  const { messages, roles } = draft.call.conversation;
  const opening = roles.indexOf("u") + 1;
  if (opening === 0) return;
  const related = earlier.filter(({ answer, call }) => answer !== null && startsWith(call.conversation.messages, messages.slice(0, opening)));
  const edits = (parent: Draft): void => {
    draft.relation = "edits";
    draft.parent = parent;
  };
  for (let at = roles.lastIndexOf("a"); at >= known && at !== -1; at = roles.lastIndexOf("a", at - 1)) {
    const speaker = related.findLast(({ answer }) => answer === messages[at]);
    if (speaker !== undefined) return edits(speaker);
    if (at === 0) break;
  }
  if (draft.parent !== null) return;
  let most = 0;
  for (const other of related.toReversed()) {
    const common = commonLength(messages, other.call.conversation.messages);
    if (common <= most) continue;
    most = common;
    edits(other);
  }
}

/** Looks for the summary that a conversation starts from, and for the tool call that began it. */
function explain(draft: Draft, earlier: readonly Draft[], { turnOf }: TraceOptions): void {
  const answered = earlier.filter(({ answer }) => answer !== null);
  if (answered.length === 0) return;
  const turn = turnOf(draft.call);
  const summary = findSummary(turn, answered.map(({ call }) => call));
  if (summary !== null) {
    const writer = answered[summary] as Draft;
    writer.wroteSummary = true;
    draft.relation = "compacted";
    draft.parent = writer;
    // A summary that was asked for in a conversation of its own belongs to the one that was summed up: the latest before it.
    const summedUp = writer.relation === "root" ? answered.slice(0, summary).findLast(({ thread, call }) => thread !== writer.thread && call.conversation.toolCount > 0) : undefined;
    if (summedUp !== undefined) {
      writer.relation = "edits";
      writer.parent = summedUp;
      writer.thread = summedUp.thread;
    }
    draft.thread = writer.thread;
    return;
  }
  if (draft.relation !== "root") return;
  const spawner = findSpawner(turn, answered.map(({ call }) => call));
  if (spawner !== null) draft.spawnedBy = (answered[spawner] as Draft).call.number;
}

function classify(drafts: readonly Draft[], options: TraceOptions): Trace {
  const threads = new Map<number, Draft[]>();
  for (const draft of drafts) {
    const members = threads.get(draft.thread);
    if (members === undefined) threads.set(draft.thread, [draft]);
    else members.push(draft);
  }
  const main = mainThread(threads, options);
  const nodes: TraceNode[] = [];
  for (const [thread, members] of threads) {
    const line = new Set(lineOf(members));
    const bare = members.every(({ call, spawnedBy }) => call.conversation.toolCount === 0 && spawnedBy === null);
    for (const draft of members) {
      const { call, relation, parent, spawnedBy } = draft;
      const kind = thread !== main && bare && !draft.wroteSummary ? kindOfBare(call) : kindOf(draft, thread === main, line.has(draft));
      nodes.push({ call: call.number, kind, relation, parent: parent?.call.number ?? null, thread, spawnedBy });
    }
  }
  nodes.sort((a, b) => a.call - b.call);
  return { nodes, mainLine: nodes.flatMap(({ call, kind, thread }) => (thread === main && (kind === "main" || kind === "compaction") ? [call] : [])) };
}

/** Of a conversation that nobody began on purpose and that has no tools. */
function kindOfBare({ sampling }: Call): CallKind {
  return sampling.maxTokens !== null && sampling.maxTokens <= 1 ? "probe" : "side";
}

function kindOf({ call, parent, wroteSummary }: Draft, inMain: boolean, onLine: boolean): CallKind {
  // A summary may also be asked for in the conversation itself, with its tools taken away.
  const toolsTaken = parent !== null && call.conversation.toolCount === 0 && parent.call.conversation.toolCount > 0 && call.conversation.roles.endsWith("u");
  if (wroteSummary || toolsTaken) return "compaction";
  if (!onLine) return "branch";
  return inMain ? "main" : "subagent";
}

/** The conversation that works on the task: not begun by another, told the instruction, with tools; the longest where none has any. */
function mainThread(threads: ReadonlyMap<number, readonly Draft[]>, { turnOf, instruction }: TraceOptions): number {
  const wanted = instruction?.trim() ?? "";
  const told = (call: Call): boolean =>
    wanted !== "" && turnOf(call).messages.some(({ role, content }) => role === "user" && content.some((block) => block.type === "text" && block.text.includes(wanted)));
  const ranked = [...threads].map(([thread, members]) => {
    // A thread has a member for which it was made.
    const { call, spawnedBy } = members[0] as Draft;
    const { toolCount, structured } = call.conversation;
    return { thread, rank: [spawnedBy === null, told(call), toolCount > 0, !structured].map(Number).concat(toolCount > 0 ? 0 : members.length) };
  });
  ranked.sort((a, b) => compareRanks(b.rank, a.rank));
  return ranked[0]?.thread ?? 0;
}

function compareRanks(a: readonly number[], b: readonly number[]): number {
  for (const [at, value] of a.entries()) if (value !== b[at]) return value - (b[at] ?? 0);
  return 0;
}

/** From the last call of a thread that was answered, back to its beginning. */
function lineOf(members: readonly Draft[]): readonly Draft[] {
  const line: Draft[] = [];
  for (let at = members.findLast(({ answer }) => answer !== null) ?? null; at !== null; at = at.parent) line.push(at);
  return line;
}

function equalKeys(a: readonly MessageKey[], b: readonly MessageKey[]): boolean {
  return a.length === b.length && startsWith(a, b);
}

function commonLength(a: readonly MessageKey[], b: readonly MessageKey[]): number {
  let common = 0;
  while (common < a.length && common < b.length && a[common] === b[common]) common++;
  return common;
}

/** From the end, where lists that differ at all differ first. */
function startsWith(list: readonly MessageKey[], beginning: readonly MessageKey[]): boolean {
  if (list.length < beginning.length) return false;
  for (let at = beginning.length - 1; at >= 0; at--) if (list[at] !== beginning[at]) return false;
  return true;
}

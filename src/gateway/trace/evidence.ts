/** Where the text of one call turns up in another: summaries from which a conversation starts, and orders that a tool call gave. */
import type { Call } from "../call.ts";
import type { TurnRequest } from "../conversation.ts";

/** Shorter texts turn up by chance. */
const SUMMARY_CHARACTERS = 40;
const ORDER_CHARACTERS = 12;
/** Calls before it among which a conversation's origin is looked for. */
const LOOK_BACK = 64;

/** Position in `earlier` of the call whose answer the conversation starts from, or null. */
export function findSummary(turn: TurnRequest, earlier: readonly Call[]): number | null {
  const told = textsOf(turn, ["system", "user"]);
  for (let at = earlier.length - 1; at >= Math.max(0, earlier.length - LOOK_BACK); at--) {
    const call = earlier[at] as Call;
    // A summary answers a user, in words.
    if (!call.conversation.roles.endsWith("u") || call.answer === null || call.answer.blocks.some(({ type }) => type === "tool_call")) continue;
    const said = call.answer.blocks.map((block) => (block.type === "text" ? block.text : "")).join("");
    if (summariesIn(said).some((summary) => told.includes(summary))) return at;
  }
  return null;
}

/** The whole answer, or what it marks as the summary, or its longest paragraph: harnesses take out what they asked for. */
function summariesIn(answer: string): readonly string[] {
  const marked = /<summary>([\s\S]*?)(?:<\/summary>|$)/.exec(answer)?.[1];
  const [longest = ""] = answer.split(/\n\s*\n/).toSorted((a, b) => b.length - a.length);
  return [answer, marked ?? "", longest].map((text) => text.trim()).filter((text) => text.length >= SUMMARY_CHARACTERS);
}

/** Position in `earlier` of the call one of whose tool calls carries what this conversation was first told, or null. */
export function findSpawner(turn: TurnRequest, earlier: readonly Call[]): number | null {
  const opening = turn.messages.find(({ role }) => role === "user");
  const told = opening === undefined ? "" : opening.content.map((block) => (block.type === "text" ? block.text : "")).join("\n");
  if (told.trim().length < ORDER_CHARACTERS) return null;
  for (let at = earlier.length - 1; at >= Math.max(0, earlier.length - LOOK_BACK); at--) {
    const blocks = (earlier[at] as Call).answer?.blocks ?? [];
    if (blocks.some((block) => block.type === "tool_call" && textsIn(block.arguments).some((text) => text.length >= ORDER_CHARACTERS && told.includes(text)))) return at;
  }
  return null;
}

function textsOf(turn: TurnRequest, roles: readonly string[]): string {
  return turn.messages.flatMap(({ role, content }) => (roles.includes(role) ? content.map((block) => (block.type === "text" ? block.text : "")) : [])).join("\n");
}

/** Every text in the arguments of a tool call. */
function textsIn(json: string): readonly string[] {
  const texts: string[] = [];
  try {
    JSON.parse(json, (_key, value: unknown) => {
      if (typeof value === "string") texts.push(value.trim());
      return value;
    });
  } catch {
    texts.push(json.trim());
  }
  return texts;
}

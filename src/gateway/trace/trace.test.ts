import { describe, expect, it } from "vitest";
import { bash, SimulatedSession, system, text, tool, turnOf, user } from "../../../test/support/gateway/simulated-session.ts";
import type { AnswerBlock, Message } from "../conversation.ts";
import { buildTrace, type Trace } from "./trace.ts";
import { transcriptOf } from "./transcript.ts";

const HEAD: readonly Message[] = [system("You are an agent."), user("Repair the program.")];

/** Plays `turns` tool turns of one conversation; gives back the whole history. */
function play(session: SimulatedSession, head: readonly Message[], turns: number, say: (turn: number) => readonly AnswerBlock[] = (turn) => [bash(`step ${turn}`)]): readonly Message[] {
  const messages = [...head];
  for (let turn = 1; turn <= turns; turn++) messages.push(session.call({ messages: [...messages], answer: say(turn) }), tool(`output ${turn}`));
  return messages;
}

const trace = (session: SimulatedSession, instruction?: string): Trace => buildTrace(session.calls, { turnOf, ...(instruction === undefined ? {} : { instruction }) });
const kinds = (session: SimulatedSession): string => trace(session).nodes.map(({ kind }) => kind).join(" ");

describe("buildTrace", () => {
  it("follows one conversation from its beginning to its end", () => {
    const session = new SimulatedSession("line");
    const history = play(session, HEAD, 3);
    session.call({ messages: history, answer: [text("Done.")] });
    expect(trace(session).nodes.map(({ kind, relation, parent, thread }) => [kind, relation, parent, thread])).toEqual([
      ["main", "root", null, 0],
      ["main", "extends", 1, 0],
      ["main", "extends", 2, 0],
      ["main", "extends", 3, 0],
    ]);
    expect(trace(session).mainLine).toEqual([1, 2, 3, 4]);
  });

  it("tells titles and probes apart, before and amid the work", () => {
    const session = new SimulatedSession("side");
    session.call({ messages: [user("Write a title for: Repair the program.")], tools: [], answer: [text("Repairs")] });
    session.call({ messages: [user("quota")], tools: [], maxTokens: 1, answer: [text("x")] });
    const history = play(session, HEAD, 1);
    session.call({ messages: [system("Is this a loop?"), user("...")], tools: [], answer: [text("no")] });
    session.call({ messages: history, answer: [text("Done.")] });
    expect(kinds(session)).toBe("side probe main side main");
  });

  it("knows a sub-agent by the order that began it", () => {
    const session = new SimulatedSession("sub");
    const started = session.call({ messages: HEAD, answer: [{ type: "tool_call", id: "t", name: "task", arguments: JSON.stringify({ prompt: "Find every caller of parse()." }) }] });
    play(session, [system("You are a helper."), user("Find every caller of parse().")], 2);
    session.call({ messages: [...HEAD, started, tool("found 3")], answer: [text("Done.")] });
    const { nodes } = trace(session);
    expect(nodes.map(({ kind }) => kind)).toEqual(["main", "subagent", "subagent", "main"]);
    expect(nodes[1]).toMatchObject({ relation: "root", spawnedBy: 1, thread: 1 });
    expect(nodes[3]).toMatchObject({ relation: "extends", parent: 1 });
  });

  it("goes on through a summary that was written in the conversation", () => {
    const session = new SimulatedSession("compaction");
    const history = play(session, HEAD, 2);
    const summary = "The program fails in parse(); the fix is half done: see lines 10 to 20.";
    session.call({ messages: [...history, user("Write a summary.")], answer: [text(`<analysis>long</analysis>\n<summary>\n${summary}\n</summary>`)] });
    play(session, [system("You are an agent."), user(`This goes on from before: ${summary}`)], 2);
    expect(kinds(session)).toBe("main main compaction main main");
    expect(trace(session).nodes[3]).toMatchObject({ relation: "compacted", parent: 3, thread: 0 });
    expect(trace(session).mainLine).toEqual([1, 2, 3, 4, 5]);
  });

  it("goes on through a summary that was asked for in a conversation of its own, without tools", () => {
    const session = new SimulatedSession("compaction apart");
    play(session, HEAD, 2);
    const summary = "So far: the fault is in parse(), the test for it is written, the repair is missing.";
    session.call({ messages: [system("You sum up."), user("[all of it as one text] Sum up.")], tools: [], answer: [text(summary)] });
    play(session, [HEAD[0] as Message, user(`Summary: ${summary}`)], 1);
    expect(kinds(session)).toBe("main main compaction main");
    expect(trace(session).mainLine).toEqual([1, 2, 3, 4]);
  });

  it("takes a call without tools in the middle of a conversation for its summary", () => {
    const session = new SimulatedSession("tools taken");
    const history = play(session, HEAD, 1);
    session.call({ messages: [...history, user("Hand over.")], tools: [], answer: [text("short")] });
    expect(kinds(session)).toBe("main compaction");
  });

  it("puts parallel samples beside the line that was gone on with", () => {
    const session = new SimulatedSession("parallel");
    session.call({ messages: HEAD, answer: [bash("a")] });
    const chosen = session.call({ messages: HEAD, answer: [bash("b")] });
    session.call({ messages: HEAD, answer: [bash("c")] });
    session.call({ messages: [...HEAD, chosen, tool("ok")], answer: [text("Done.")] });
    expect(kinds(session)).toBe("branch main branch main");
    expect(trace(session).nodes.map(({ thread }) => thread)).toEqual([0, 0, 0, 0]);
  });

  it("knows the conversation again when the harness has cut old outputs", () => {
    const session = new SimulatedSession("edits");
    const history = play(session, HEAD, 3);
    const cut = history.map((message, at) => (at === 3 ? tool("[cut]") : message));
    session.call({ messages: cut, answer: [text("Done.")] });
    expect(trace(session).nodes[3]).toMatchObject({ kind: "main", relation: "edits", parent: 3, thread: 0 });
    expect(kinds(session)).toBe("main main main main");
  });

  it("goes on from the last answer that was whole, and never from a broken one", () => {
    const session = new SimulatedSession("broken");
    const history = play(session, HEAD, 1);
    session.call({ messages: history, answer: [text("half an an")], status: "incomplete" });
    session.call({ messages: history, answer: [], status: "failed" });
    session.call({ messages: [...history, { role: "assistant", content: [text("half an an")] }, user("Go on.")], answer: [text("Done.")] });
    expect(trace(session).nodes[3]).toMatchObject({ kind: "main", relation: "extends", parent: 1 });
    expect(kinds(session)).toBe("main branch branch main");
  });

  it("finds the main conversation by the instruction, among harnesses without tools too", () => {
    const session = new SimulatedSession("no tools");
    session.call({ messages: [user("Which of these is harder?")], tools: [], answer: [text("the second")] });
    const first = session.call({ messages: HEAD, tools: [], answer: [text("```bash\nls\n```")] });
    session.call({ messages: [...HEAD, first, user("output")], tools: [], answer: [text("Done.")] });
    expect(trace(session, "Repair the program.").nodes.map(({ kind }) => kind)).toEqual(["side", "main", "main"]);
    expect(kinds(session)).toBe("side main main");
  });

  it("reads as one conversation, each message once, through edits and summaries", () => {
    const session = new SimulatedSession("transcript");
    session.call({ messages: [user("Write a title.")], tools: [], answer: [text("T")] });
    const history = play(session, HEAD, 2);
    session.call({ messages: [...history.map((message, at) => (at === 3 ? tool("[cut]") : message)), user("Sum up.")], answer: [text("a summary of all that was done until now, in many words")] });
    session.call({ messages: [user("Before: a summary of all that was done until now, in many words")], answer: [text("Done.")] });
    const entries = transcriptOf(session.calls, trace(session), turnOf);
    expect(entries.map(({ message, call }) => `${call} ${message.role}`)).toEqual([
      "2 system",
      "2 user",
      "2 assistant",
      "3 tool",
      "3 assistant",
      "4 tool",
      "4 user",
      "4 assistant",
      "5 user",
      "5 assistant",
    ]);
  });

  it("has nothing to say of a session without calls", () => {
    expect(buildTrace([], { turnOf })).toEqual({ nodes: [], mainLine: [] });
  });
});

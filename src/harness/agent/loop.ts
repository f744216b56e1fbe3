/**
 * The loop: a model works on the task with the tools of a setup until it answers without calling one or a budget is used up.
 *
 * - The instruction is the first user message, byte for byte.
 * - What the policy does wrong (bad arguments, unknown tools, endless commands) is answered, never thrown; what the machinery or the upstream does wrong is thrown.
 * - Each call is in the log before its tool calls run; each command before the model sees its output.
 * - The history only grows, except where the setup's history rule says otherwise: what the model said goes back as it came, so that the tokens of one call extend those of the
 *   call before it. The one exception are tool arguments that are no JSON object, which chat templates cannot render: they go back wrapped as one.
 * - Where its continuity is kept, messages and the begin of each tool call are in the history before they count; a loop that goes on from there asks what it would have asked, and goes
 *   through the turn that was under way again, without what that has said and done.
 */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { seededRandom } from "../../core/runtime.ts";
import type { Call } from "../../gateway/call.ts";
import { EMPTY_TURN, type Answer, type Message, type ToolCallBlock, type ToolDefinition } from "../../gateway/conversation.ts";
import type { GatewaySession } from "../../gateway/session.ts";
import type { LoopState, ResumePoint } from "../continuity.ts";
import type { HarnessContext, HarnessEnd } from "../harness.ts";
import { callModel, type ModelCallResult } from "../model-call.ts";
import { stopOfSignal, type Stop } from "../stop.ts";
import { definitionOf, readCall, type ReadCall, type ToolFace } from "./face.ts";
import { fencedCommand } from "./fenced.ts";
import { Hands } from "./hands.ts";
import { trimmed } from "./history.ts";
import { recordOf, renderable, textOf } from "./messages.ts";
import type { AgentSetup } from "./setup.ts";

const SUMMARY_ORDER =
  "The conversation is about to be cut off. Write down everything that is needed to carry the task through without it: what was asked, what was found, what was done, what is left. Answer with that text alone.";

/** Of a tool call that had begun in a machine from which it could reach the outside, when that machine was lost. */
export const NOT_AGAIN =
  "Error: the machine was lost after this call had begun, and has been put back to what it was before. What the call may have done outside of the machine is not known; it was not carried out again.";

export class AgentLoop {
  readonly #context: HarnessContext;
  readonly #setup: AgentSetup;
  readonly #retries: number;
  readonly #random: () => number;
  #messages: Message[] = [];
  #conversationBytes = 0;
  #turns = 0;
  #promptTokens = 0;
  #completionTokens = 0;
  #modelMs = 0;
  #toolMs = 0;
  /** Tool calls of the next answer that must not begin again. */
  #begun: ReadonlySet<number> = new Set();
  /** What this turn has said already. */
  #ahead: Message[] = [];

  constructor(context: HarnessContext, setup: AgentSetup, retries: number) {
    this.#context = context;
    this.#setup = setup;
    this.#retries = retries;
    this.#random = seededRandom(`upstream:${context.seed}`);
  }

  async run(): Promise<HarnessEnd> {
    try {
      return this.#end(await this.#play());
    } catch (error) {
      // Whatever an abort interrupts rejects in its own way; the reason is the signal's.
      if (this.#context.signal.aborted) return this.#end(stopOfSignal(this.#context.signal));
      throw error;
    }
  }

  async #play(): Promise<Stop> {
    const { signal, budgets, session } = this.#context;
    signal.throwIfAborted();
    if (session === null) throw new MwError("usage", "The harness needs a model.", { fix: "Add --upstream URL and --model NAME." });
    const hands = await Hands.open(this.#context);
    const tools = this.#setup.protocol === "tools" ? this.#setup.faces.map((face) => this.#definition(face, hands.shell.kind)) : [];
    const from = this.#context.continuity?.from ?? null;
    let answered = from?.answered ?? null;
    if (from === null) for (const message of this.#opening()) await this.#say(message);
    else this.#goOn(from);
    await this.#context.continuity?.beginning(this.#state(), hands.shell.path);
    while (this.#turns < budgets.turns) {
      if (this.#conversationBytes > LIMITS.conversationBytes) return { stopReason: "context_overflow", detail: `The conversation is larger than ${LIMITS.conversationBytes} bytes.` };
      const called = answered === null ? await this.#call(session, this.#messages, tools) : this.#known(answered);
      answered = null;
      if (called.kind === "stop") {
        if (called.stop.stopReason === "context_overflow" && (await this.#shorten(session))) continue;
        return called.stop;
      }
      this.#turns++;
      const stop = await this.#respond(hands, called);
      if (stop !== null) return stop;
      const { historyTokens } = this.#setup;
      if (historyTokens !== null && (called.answer.usage?.promptTokens ?? 0) > historyTokens) await this.#shorten(session);
      await this.#context.continuity?.between(this.#state());
    }
    return { stopReason: "turns", detail: `The turn budget of ${budgets.turns} was used up.` };
  }

  #goOn({ state, messages, begun, ahead }: ResumePoint): void {
    this.#turns = state.turns;
    this.#promptTokens = state.promptTokens;
    this.#completionTokens = state.completionTokens;
    this.#modelMs = state.modelMs;
    this.#toolMs = state.toolMs;
    this.#begun = begun;
    this.#ahead = [...ahead];
    this.#remember(messages);
  }

  /** A call that was made and recorded before its loop died. */
  #known(call: Call): ModelCallResult {
    const { answer } = call;
    if (answer === null) throw new MwError("internal", "a complete call without an answer");
    this.#promptTokens += answer.usage?.promptTokens ?? 0;
    this.#completionTokens += answer.usage?.completionTokens ?? 0;
    this.#modelMs += call.durationMs;
    return { kind: "answer", call, answer };
  }

  #opening(summary?: string): readonly Message[] {
    const { systemPrompt } = this.#setup;
    const told: Message = { role: "user", content: [{ type: "text", text: this.#context.instruction }] };
    const system: readonly Message[] = systemPrompt === null ? [] : [{ role: "system", name: "system", content: [{ type: "text", text: systemPrompt }] }];
    return [...system, summary === undefined ? told : { ...told, content: [...told.content, { type: "text", text: `\n\nThis is what happened so far:\n${summary}` }] }];
  }

  #definition(face: ToolFace, kind: "bash" | "sh"): ToolDefinition {
    const definition = definitionOf(face);
    if (face.tool !== "shell") return definition;
    const seconds = Math.round(this.#context.budgets.commandMs / 1000);
    return { ...definition, description: `${definition.description} The shell is ${kind}. A command that takes longer than ${seconds} seconds is killed; start servers and other long work in the background.` };
  }

  async #call(session: GatewaySession, messages: readonly Message[], tools: readonly ToolDefinition[]): Promise<ModelCallResult> {
    const { runtime, recorder, signal, budgets } = this.#context;
    const startedAt = runtime.monotonic();
    try {
      const result = await callModel({ session, request: { ...EMPTY_TURN, messages: [...messages], tools }, retries: this.#retries, random: this.#random, runtime, signal, note: (text) => recorder.note(text) });
      if (result.kind === "answer") {
        const { usage } = result.answer;
        this.#promptTokens += usage?.promptTokens ?? 0;
        this.#completionTokens += usage?.completionTokens ?? 0;
        if (usage === null && budgets.tokens !== null && this.#turns === 0) await recorder.note("The model server reports no token usage; the token budget cannot be enforced.");
      }
      return result;
    } finally {
      this.#modelMs += runtime.monotonic() - startedAt;
    }
  }

  /** Puts the answer into the history and does what it asks for. Null: the work goes on. */
  async #respond(hands: Hands, { answer, call }: { readonly answer: Answer; readonly call: Call }): Promise<Stop | null> {
    const { protocol, keepReasoning } = this.#setup;
    const kept = answer.blocks.filter((block) => block.type !== "reasoning" || keepReasoning);
    await this.#say({ role: "assistant", content: kept.map(renderable) });
    const calls = protocol === "tools" ? answer.blocks.filter((block) => block.type === "tool_call") : [];
    const fenced = protocol === "tools" ? null : fencedCommand(textOf(answer.blocks));
    const stop = stopOf(answer, call, calls.length > 0 || (fenced !== null && fenced.kind !== "none"));
    if (stop !== null) return stop;
    if (fenced === null) return await this.#answerCalls(hands, call, calls);
    const read: ReadCall = fenced.kind === "command" ? { kind: "action", action: { tool: "shell", command: fenced.command } } : { kind: "invalid", why: fenced.kind === "invalid" ? fenced.why : "" };
    const text = this.#told() ?? (await this.#carryOut(hands, { call: call.number, index: 0 }, read));
    this.#begun = new Set();
    await this.#say({ role: "user", content: [{ type: "text", text }] });
    return null;
  }

  /** The tool calls of one answer, in order. */
  async #answerCalls(hands: Hands, { number }: Call, calls: readonly ToolCallBlock[]): Promise<Stop | null> {
    for (const [index, call] of calls.entries()) {
      const read: ReadCall =
        index < LIMITS.toolCallsPerTurn ? readCall(this.#setup.faces, call) : { kind: "invalid", why: `At most ${LIMITS.toolCallsPerTurn} tool calls of one answer are carried out.` };
      if (read.kind === "action" && read.action.tool === "finish") return { stopReason: "finished", detail: "The model said that it was done." };
      const text = this.#told() ?? (await this.#carryOut(hands, { call: number, index }, read));
      await this.#say({ role: "tool", callId: call.id, name: call.name, content: [{ type: "text", text }], isError: false });
    }
    this.#begun = new Set();
    return null;
  }

  /** What the model has been told next in this turn. */
  #told(): string | null {
    const [next] = this.#ahead;
    return next === undefined ? null : textOf(next.content);
  }

  async #carryOut(hands: Hands, at: { readonly call: number; readonly index: number }, read: ReadCall): Promise<string> {
    const { runtime, signal, continuity } = this.#context;
    signal.throwIfAborted();
    if (read.kind === "invalid") return `Error: ${read.why}`;
    if (this.#begun.has(at.index)) return NOT_AGAIN;
    const handover = await continuity?.acting(at.call, at.index);
    const startedAt = runtime.monotonic() - (handover?.begun ? runtime.now() - handover.begun.at : 0);
    const text = await hands.act(read.action, handover);
    this.#toolMs += runtime.monotonic() - startedAt;
    signal.throwIfAborted();
    return text;
  }

  /** Makes the history shorter as the setup says. False: it cannot be. */
  async #shorten(session: GatewaySession): Promise<boolean> {
    switch (this.#setup.history) {
      case "stop":
        return false;
      case "trim": {
        const shorter = trimmed(this.#messages);
        if (shorter === null) return false;
        await this.#context.recorder.note("The history grew too long: older outputs are left out.");
        await this.#replace(shorter);
        return true;
      }
      case "summarise":
        return await this.#summarise(session);
    }
  }

  async #summarise(session: GatewaySession): Promise<boolean> {
    const order: Message = { role: "user", content: [{ type: "text", text: SUMMARY_ORDER }] };
    // What was said last may be what made it too long.
    for (const history of [this.#messages, trimmed(this.#messages), trimmed(this.#messages)?.slice(0, -2) ?? null]) {
      if (history === null) continue;
      const called = await this.#call(session, [...history, order], []);
      if (called.kind === "stop") continue;
      const summary = textOf(called.answer.blocks);
      if (summary.trim() === "") return false;
      await this.#context.recorder.note("The history grew too long: it goes on from a summary.");
      const opening = this.#opening(summary);
      for (const message of opening) await this.#record(message);
      await this.#replace(opening);
      return true;
    }
    return false;
  }

  async #replace(messages: readonly Message[]): Promise<void> {
    await this.#context.continuity?.replaced(messages, this.#state());
    this.#remember(messages);
  }

  #remember(messages: readonly Message[]): void {
    this.#messages = [...messages];
    this.#conversationBytes = messages.reduce((sum, message) => sum + sizeOf(message), 0);
  }

  async #say(message: Message): Promise<void> {
    this.#messages.push(message);
    this.#conversationBytes += sizeOf(message);
    if (this.#ahead.shift() !== undefined) return;
    await this.#record(message);
    await this.#context.continuity?.said(message);
  }

  async #record(message: Message): Promise<void> {
    await this.#context.recorder.message({ at: new Date(this.#context.runtime.now()).toISOString(), ...recordOf(message) });
  }

  #state(): LoopState {
    return { turns: this.#turns, promptTokens: this.#promptTokens, completionTokens: this.#completionTokens, modelMs: this.#modelMs, toolMs: this.#toolMs };
  }

  #end(stop: Stop): HarnessEnd {
    return { ...stop, ...this.#state() };
  }
}

/** Null when the answer asks for something to be done. */
function stopOf({ finish, blocks }: Answer, { sampling }: Call, acts: boolean): Stop | null {
  if (finish === "content_filter") return { stopReason: "refused", detail: "The model's answer was withheld by a content filter." };
  if (acts) return null;
  if (finish === "context") return { stopReason: "context_overflow", detail: "The answer ran into the end of the model's context." };
  if (finish === "refusal" || blocks.some((block) => block.type === "refusal")) return { stopReason: "refused", detail: "The model refused." };
  if (finish !== "length") return { stopReason: "finished", detail: "The model answered without a tool call." };
  // Without a cap of ours, what cuts an answer is the end of the context.
  return sampling.maxTokens !== null ? { stopReason: "tokens", detail: "An answer was cut at the token limit." } : { stopReason: "context_overflow", detail: "An answer was cut at the end of the model's context." };
}

function sizeOf(message: Message): number {
  return Buffer.byteLength(JSON.stringify(message));
}

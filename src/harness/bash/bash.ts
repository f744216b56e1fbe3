/**
 * The white-box loop: a chat model with one shell tool works on the task until it answers without a tool call or a budget is used up.
 *
 * - The instruction is the first user message, byte for byte.
 * - What the policy does wrong (bad arguments, unknown tools, endless commands) is answered, never thrown; what the machinery or the upstream does wrong is thrown.
 * - Each call is in the log before its tool calls run; each command before the model sees its output.
 * - The history only grows: what the model said goes back as it came, so that the tokens of one call extend those of the call before it. The one exception are
 *   tool arguments that are no JSON object, which chat templates cannot render: they go back wrapped as one.
 */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { seededRandom } from "../../core/runtime.ts";
import type { Call } from "../../gateway/call.ts";
import { DEFAULT_SAMPLING, type Answer, type AnswerBlock, type Message, type ToolCallBlock, type ToolDefinition } from "../../gateway/conversation.ts";
import type { Harness, HarnessContext, HarnessEnd, MessageRecord } from "../harness.ts";
import { callModel, type ModelCallResult } from "../model-call.ts";
import { refuseLost, stopOfSignal, type Stop } from "../stop.ts";
import { AgentShell } from "./shell.ts";
import { describeResult, parseCall, SYSTEM_PROMPT, toolDefinition } from "./tool.ts";

export interface BashOptions {
  /** Null sends none, for models whose template has no system role. */
  readonly systemPrompt?: string | null;
  /** Send the model's reasoning back with its answers; default true. */
  readonly keepReasoning?: boolean;
  /** Tries of one model call after the first; default 5. */
  readonly retries?: number;
}

interface Settings {
  readonly systemPrompt: string | null;
  readonly keepReasoning: boolean;
  readonly retries: number;
}

export function bash(options: BashOptions = {}): Harness {
  const settings = { systemPrompt: options.systemPrompt === undefined ? SYSTEM_PROMPT : options.systemPrompt, keepReasoning: options.keepReasoning ?? true, retries: options.retries ?? 5 };
  return {
    name: "bash",
    version: "1",
    needsModel: true,
    settings,
    run: async (context) => await withDeadline(context, async (bounded) => await new Loop(bounded, settings).run()),
  };
}

/** The agent's own time, on top of whatever the caller's signal brings. */
async function withDeadline(context: HarnessContext, work: (context: HarnessContext) => Promise<HarnessEnd>): Promise<HarnessEnd> {
  const { timeMs } = context.budgets;
  if (timeMs === null) return await work(context);
  const stop = new AbortController();
  const over = new AbortController();
  const timer = context.runtime.sleep(timeMs, over.signal).then(
    () => stop.abort(new MwError("timeout", `The agent's time of ${timeMs} ms was used up.`)),
    () => undefined,
  );
  try {
    return await work({ ...context, signal: AbortSignal.any([context.signal, stop.signal]) });
  } finally {
    over.abort();
    await timer;
  }
}

class Loop {
  readonly #context: HarnessContext;
  readonly #settings: Settings;
  readonly #random: () => number;
  readonly #messages: Message[] = [];
  #conversationBytes = 0;
  #turns = 0;
  #promptTokens = 0;
  #completionTokens = 0;
  #modelMs = 0;
  #toolMs = 0;

  constructor(context: HarnessContext, settings: Settings) {
    this.#context = context;
    this.#settings = settings;
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
    const { signal, budgets, instruction } = this.#context;
    signal.throwIfAborted();
    if (this.#context.session === null) throw new MwError("usage", "The bash harness needs a model.", { fix: "Add --upstream URL and --model NAME." });
    const shell = await AgentShell.open(this.#context);
    const tools = [toolDefinition(shell.kind, budgets.commandMs)];
    if (this.#settings.systemPrompt !== null) await this.#say({ role: "system", name: "system", content: [{ type: "text", text: this.#settings.systemPrompt }] });
    await this.#say({ role: "user", content: [{ type: "text", text: instruction }] });
    while (this.#turns < budgets.turns) {
      if (this.#conversationBytes > LIMITS.conversationBytes) return { stopReason: "context_overflow", detail: `The conversation is larger than ${LIMITS.conversationBytes} bytes.` };
      const called = await this.#call(tools);
      if (called.kind === "stop") return called.stop;
      const { answer, call } = called;
      this.#turns++;
      const calls = await this.#hear(answer);
      const stop = stopOf(answer, call);
      if (stop !== null) return stop;
      await this.#act(shell, calls);
    }
    return { stopReason: "turns", detail: `The turn budget of ${budgets.turns} was used up.` };
  }

  async #call(tools: readonly ToolDefinition[]): Promise<ModelCallResult> {
    const { session, runtime, recorder, signal, budgets } = this.#context;
    if (session === null) throw new MwError("internal", "A model call without a session.");
    const startedAt = runtime.monotonic();
    try {
      const request = {
        dialect: "openai-chat",
        model: "",
        messages: [...this.#messages],
        tools,
        toolChoice: null,
        parallelToolCalls: null,
        sampling: DEFAULT_SAMPLING,
        reasoning: null,
        responseFormat: null,
        logprobs: null,
        stream: false,
        streamUsage: false,
        extra: {},
        dropped: [],
      } as const;
      const result = await callModel({ session, request, retries: this.#settings.retries, random: this.#random, runtime, signal, note: (text) => recorder.note(text) });
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

  /** Puts the answer into the history, and returns its tool calls as they were sampled. */
  async #hear({ blocks }: Answer): Promise<readonly ToolCallBlock[]> {
    const kept = blocks.filter((block) => block.type !== "reasoning" || this.#settings.keepReasoning);
    await this.#say({ role: "assistant", content: kept.map(returned) });
    return blocks.filter((block) => block.type === "tool_call");
  }

  /** Carries out the tool calls of one answer, in order. */
  async #act(shell: AgentShell, calls: readonly ToolCallBlock[]): Promise<void> {
    for (const [index, call] of calls.entries()) {
      this.#context.signal.throwIfAborted();
      const parsed = index < LIMITS.toolCallsPerTurn ? parseCall(call.name, call.arguments) : ({ kind: "invalid", why: `At most ${LIMITS.toolCallsPerTurn} tool calls of one answer are carried out.` } as const);
      let content = parsed.kind === "invalid" ? `Error: ${parsed.why}` : "";
      if (parsed.kind === "command") {
        const { commandMs } = this.#context.budgets;
        const startedAt = this.#context.runtime.monotonic();
        const result = await shell.run(parsed.command, commandMs);
        this.#toolMs += this.#context.runtime.monotonic() - startedAt;
        this.#context.signal.throwIfAborted();
        refuseLost(result.exit, "a command of the model");
        content = describeResult(result, commandMs);
      }
      await this.#say({ role: "tool", callId: call.id, name: call.name, content: [{ type: "text", text: content }], isError: false });
    }
  }

  async #say(message: Message): Promise<void> {
    this.#messages.push(message);
    this.#conversationBytes += Buffer.byteLength(JSON.stringify(message));
    await this.#context.recorder.message({ at: new Date(this.#context.runtime.now()).toISOString(), ...recordOf(message) });
  }

  #end(stop: Stop): HarnessEnd {
    return { ...stop, turns: this.#turns, promptTokens: this.#promptTokens, completionTokens: this.#completionTokens, modelMs: this.#modelMs, toolMs: this.#toolMs };
  }
}

/** Null when the answer asks for tools. */
function stopOf({ finish, blocks }: Answer, { sampling }: Call): Stop | null {
  if (finish === "content_filter") return { stopReason: "refused", detail: "The model's answer was withheld by a content filter." };
  if (blocks.some((block) => block.type === "tool_call")) return null;
  if (finish === "context") return { stopReason: "context_overflow", detail: "The answer ran into the end of the model's context." };
  if (finish === "refusal" || blocks.some((block) => block.type === "refusal")) return { stopReason: "refused", detail: "The model refused." };
  if (finish !== "length") return { stopReason: "finished", detail: "The model answered without a tool call." };
  // Without a cap of ours, what cuts an answer is the end of the context.
  return sampling.maxTokens !== null ? { stopReason: "tokens", detail: "An answer was cut at the token limit." } : { stopReason: "context_overflow", detail: "An answer was cut at the end of the model's context." };
}

/** For the transcript, in the form of chat completions. */
function recordOf(message: Message): Omit<MessageRecord, "at"> {
  const text = textOf(message.content);
  if (message.role === "tool") return { role: "tool", content: text, toolCallId: message.callId };
  if (message.role !== "assistant") return { role: message.role, content: text };
  const calls = message.content.flatMap((block) => (block.type === "tool_call" ? [{ id: block.id, type: "function", function: { name: block.name, arguments: block.arguments } }] : []));
  return { role: "assistant", content: text === "" && calls.length > 0 ? null : text, ...(calls.length === 0 ? {} : { toolCalls: calls }) };
}

function textOf(content: Message["content"]): string {
  return content.map((block: AnswerBlock | { readonly type: "image" }) => (block.type === "text" || block.type === "refusal" ? block.text : "")).join("");
}

/** A block of an answer as it goes back. */
function returned(block: AnswerBlock): AnswerBlock {
  return block.type === "tool_call" ? { ...block, arguments: renderable(block.arguments) } : block;
}

/** Chat templates parse the arguments of past tool calls as a JSON object, and servers fail the whole request when one is not. */
function renderable(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return text;
  } catch {
    // Falls through to the wrapped form.
  }
  return JSON.stringify({ invalid_arguments: text });
}

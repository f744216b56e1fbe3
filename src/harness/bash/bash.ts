/**
 * The white-box loop: a chat model with one shell tool works on the task until it answers without a tool call or a budget is used up.
 *
 * - The instruction is the first user message, byte for byte.
 * - What the policy does wrong (bad arguments, unknown tools, endless commands) is answered, never thrown; what the machinery or the upstream does wrong is thrown.
 * - Each call is recorded before its tool calls run; each command before the model sees its output.
 * - The history only grows: what the model said goes back as it came, so that the tokens of one call extend those of the call before it. The one exception are
 *   tool arguments that are no JSON object, which chat templates cannot render: they go back wrapped as one.
 */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { seededRandom } from "../../core/runtime.ts";
import type { Harness, HarnessContext, HarnessEnd, MessageRecord } from "../harness.ts";
import { refuseLost, stopOfSignal, type Stop } from "../stop.ts";
import type { Answer, ToolCall } from "../upstream/answer.ts";
import { ChatClient } from "../upstream/chat.ts";
import { AgentShell } from "./shell.ts";
import { describeResult, parseCall, SYSTEM_PROMPT, toolDefinition } from "./tool.ts";

export interface BashOptions {
  /** Null sends none, for models whose template has no system role. */
  readonly systemPrompt?: string | null;
  /** Ask the server for token ids and logprobs; default true. */
  readonly tokens?: boolean;
  /** Send the model's reasoning back with its answers, as the server named it; default true. */
  readonly keepReasoning?: boolean;
  /** Tries of one model call after the first; default 5. */
  readonly retries?: number;
  /** Time of one try, milliseconds; default ten minutes. */
  readonly callMs?: number;
}

type ChatMessage = Readonly<Record<string, unknown>>;

export function bash(options: BashOptions = {}): Harness {
  const settings = {
    systemPrompt: options.systemPrompt === undefined ? SYSTEM_PROMPT : options.systemPrompt,
    tokens: options.tokens ?? true,
    keepReasoning: options.keepReasoning ?? true,
    retries: options.retries ?? 5,
    callMs: options.callMs ?? 600_000,
  };
  // One client for all rollouts of a run: connections and what the server refuses are shared.
  const client = new ChatClient(settings);
  return {
    name: "bash",
    version: "1",
    needsModel: true,
    settings,
    run: async (context) => await withDeadline(context, async (bounded) => await new Loop(bounded, client, settings).run()),
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
  readonly #client: ChatClient;
  readonly #settings: { readonly systemPrompt: string | null; readonly keepReasoning: boolean };
  readonly #random: () => number;
  readonly #messages: ChatMessage[] = [];
  /** Messages that an earlier call's record holds already. */
  #recorded = 0;
  #conversationBytes = 0;
  #turns = 0;
  #promptTokens = 0;
  #completionTokens = 0;
  #modelMs = 0;
  #toolMs = 0;

  constructor(context: HarnessContext, client: ChatClient, settings: { readonly systemPrompt: string | null; readonly keepReasoning: boolean }) {
    this.#context = context;
    this.#client = client;
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
    if (this.#context.upstream === null) throw new MwError("usage", "The bash harness needs a model.", { fix: "Add --upstream URL and --model NAME." });
    const shell = await AgentShell.open(this.#context);
    const tools = [toolDefinition(shell.kind, budgets.commandMs)];
    if (this.#settings.systemPrompt !== null) await this.#say({ role: "system", content: this.#settings.systemPrompt });
    await this.#say({ role: "user", content: instruction });
    while (this.#turns < budgets.turns) {
      const limit = this.#answerLimit();
      if (this.#conversationBytes > LIMITS.conversationBytes) return { stopReason: "context_overflow", detail: `The conversation is larger than ${LIMITS.conversationBytes} bytes.` };
      if (limit === "used_up") return { stopReason: "tokens", detail: `The token budget of ${budgets.tokens} was used up.` };
      const called = await this.#call(tools, limit);
      if (called.kind === "context_overflow") return { stopReason: "context_overflow", detail: `The conversation no longer fits the model: ${called.message}` };
      const { answer } = called;
      this.#turns++;
      const calls = await this.#hear(answer);
      const stop = this.#stopOf(answer, limit);
      if (stop !== null) return stop;
      await this.#act(shell, calls);
    }
    return { stopReason: "turns", detail: `The turn budget of ${budgets.turns} was used up.` };
  }

  /** `max_tokens` of the next answer under the token budget; null when nothing limits it. */
  #answerLimit(): number | null | "used_up" {
    const { tokens } = this.#context.budgets;
    if (tokens === null) return null;
    const left = tokens - this.#completionTokens;
    return left <= 0 ? "used_up" : left;
  }

  async #call(tools: unknown, limit: number | null): Promise<{ readonly kind: "answer"; readonly answer: Answer } | { readonly kind: "context_overflow"; readonly message: string }> {
    const { upstream, runtime, recorder, signal } = this.#context;
    if (upstream === null) throw new MwError("internal", "A model call without an upstream.");
    const sampling: Record<string, number> = { ...upstream.sampling };
    if (limit !== null) {
      const field = sampling["max_completion_tokens"] === undefined ? "max_tokens" : "max_completion_tokens";
      sampling[field] = Math.min(sampling[field] ?? Infinity, limit);
    }
    const parameters = { ...sampling, model: upstream.model, tools, stream: false };
    const at = new Date(runtime.now()).toISOString();
    const startedAt = runtime.monotonic();
    let result;
    try {
      result = await this.#client.complete({
        upstream,
        body: { ...parameters, messages: this.#messages },
        random: this.#random,
        runtime,
        signal,
        note: async (text) => await recorder.note(text),
      });
    } finally {
      this.#modelMs += runtime.monotonic() - startedAt;
    }
    if (result.kind === "context_overflow") return result;
    const { answer, body } = result;
    const { messages: _all, ...asked } = body;
    await recorder.call({
      at,
      durationMs: runtime.monotonic() - startedAt,
      request: { ...asked, messagesFrom: this.#recorded, messages: this.#messages.slice(this.#recorded) },
      response: answer.response,
      promptTokenIds: answer.tokens.prompt,
      completionTokenIds: answer.tokens.completion,
      logprobs: answer.tokens.logprobs,
      usage: answer.usage,
    });
    this.#recorded = this.#messages.length;
    this.#promptTokens += answer.usage?.promptTokens ?? 0;
    this.#completionTokens += answer.usage?.completionTokens ?? 0;
    if (answer.usage === null && this.#context.budgets.tokens !== null && this.#turns === 0) {
      await recorder.note("The model server reports no token usage; the token budget cannot be enforced.");
    }
    return { kind: "answer", answer };
  }

  /** Puts the answer into the history, with an id for each tool call that is this turn's only one. */
  async #hear(answer: Answer): Promise<readonly (ToolCall & { readonly id: string })[]> {
    const seen = new Set<string>();
    const calls = answer.toolCalls.map((call, index) => {
      const id = call.id !== null && call.id !== "" && !seen.has(call.id) ? call.id : `call_${this.#turns}_${index}`;
      seen.add(id);
      return { ...call, id };
    });
    await this.#say({
      role: "assistant",
      content: answer.content,
      ...(this.#settings.keepReasoning ? answer.reasoning : {}),
      ...(calls.length === 0 ? {} : { tool_calls: calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name: name || "unknown", arguments: renderable(text) } })) }),
    });
    return calls;
  }

  /** Null when the answer asks for tools. */
  #stopOf(answer: Answer, limit: number | null): Stop | null {
    if (answer.finishReason === "content_filter") return { stopReason: "refused", detail: "The model's answer was withheld by a content filter." };
    if (answer.finishReason === "model_context_window_exceeded") return { stopReason: "context_overflow", detail: "The answer ran into the end of the model's context." };
    if (answer.toolCalls.length > 0) return null;
    if (answer.refusal !== null) return { stopReason: "refused", detail: "The model refused." };
    if (answer.finishReason !== "length") return { stopReason: "finished", detail: "The model answered without a tool call." };
    const sampling = this.#context.upstream?.sampling ?? {};
    const capped = limit !== null || sampling["max_tokens"] !== undefined || sampling["max_completion_tokens"] !== undefined;
    // Without a cap of ours, what cuts an answer is the end of the context.
    return capped ? { stopReason: "tokens", detail: "An answer was cut at the token limit." } : { stopReason: "context_overflow", detail: "An answer was cut at the end of the model's context." };
  }

  /** Carries out the tool calls of one answer, in order. */
  async #act(shell: AgentShell, calls: readonly (ToolCall & { readonly id: string })[]): Promise<void> {
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
      await this.#say({ role: "tool", tool_call_id: call.id, content });
    }
  }

  async #say(message: ChatMessage & { readonly role: MessageRecord["role"] }): Promise<void> {
    this.#messages.push(message);
    this.#conversationBytes += Buffer.byteLength(JSON.stringify(message));
    const { role, content, tool_calls: toolCalls, tool_call_id: toolCallId } = message;
    await this.#context.recorder.message({
      at: new Date(this.#context.runtime.now()).toISOString(),
      role,
      content,
      ...(toolCalls === undefined ? {} : { toolCalls }),
      ...(typeof toolCallId === "string" ? { toolCallId } : {}),
    });
  }

  #end(stop: Stop): HarnessEnd {
    return { ...stop, turns: this.#turns, promptTokens: this.#promptTokens, completionTokens: this.#completionTokens, modelMs: this.#modelMs, toolMs: this.#toolMs };
  }
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

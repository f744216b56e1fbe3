/**
 * A rollout as a trace of verifiers v1 (`verifiers/v1/trace.py`, `graph.py`): messages as nodes, each with the tokens that it adds.
 *
 * Each of our samples is a path of its own from a root to a leaf, which is what their trainer makes one sequence of. Tokens that an earlier sample trains have mask false in a
 * later one. The messages that came between two answers share one stretch of tokens, which stands on the last of them.
 */
import type { Call } from "../../gateway/call.ts";
import type { FinishReason, Message, ToolDefinition } from "../../gateway/conversation.ts";
import type { Sample } from "../../gateway/samples/sample.ts";
import { transcriptOf } from "../../gateway/trace/transcript.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import type { RolloutTokens } from "../../rollout/samples/rollout-samples.ts";
import { newMessages, reasoningOf, textOf } from "../single/conversation-text.ts";

export interface WireNode {
  readonly parent: number | null;
  readonly tools?: readonly unknown[];
  readonly semantic_parents: readonly never[];
  readonly message: unknown;
  readonly sampled: boolean;
  readonly timestamp: number;
  readonly token_ids: readonly number[];
  readonly mask: readonly boolean[];
  readonly is_content: readonly never[];
  readonly logprobs: readonly number[];
}

export interface WireTrace {
  readonly nodes: readonly WireNode[];
  readonly calls: readonly unknown[];
  readonly tools: readonly unknown[];
}

/** Without tokens, from upstreams that tell none, a trace is the conversation alone. */
export function traceOf(tokens: RolloutTokens | null): WireTrace {
  if (tokens === null) return { nodes: [], calls: [], tools: [] };
  const path = new Path(tokens.calls);
  if (tokens.set.samples.length === 0) path.conversation(tokens);
  else for (const sample of tokens.set.samples) path.sample(sample);
  return { nodes: path.nodes, calls: path.calls, tools: path.tools };
}

class Path {
  readonly nodes: WireNode[] = [];
  readonly calls: unknown[] = [];
  readonly tools: readonly unknown[];
  readonly #byNumber: ReadonlyMap<number, Call>;
  #parent: number | null = null;

  constructor(calls: readonly Call[]) {
    this.#byNumber = new Map(calls.map((call) => [call.number, call]));
    this.tools = calls.length === 0 ? [] : toolsOf(turnOf(calls[0] as Call).tools);
  }

  sample({ tokenIds, logprobs, spans }: Sample): void {
    this.#parent = null;
    let pending = 0;
    for (const { start, end, call: number, origin } of spans) {
      if (origin !== "trained") continue;
      // Spans name calls of the log.
      const call = this.#byNumber.get(number) as Call;
      const { messages } = turnOf(call);
      const context = [...tokenIds.subarray(pending, start)];
      const before = this.#parent === null ? messages : newMessages(messages);
      for (const [at, message] of before.entries()) this.#add(messageOf(message), at === before.length - 1 ? context : [], call);
      const scaffold = before.length === 0 ? context : [];
      this.#answer(call, scaffold, [...tokenIds.subarray(start, end)], [...logprobs.subarray(start, end)]);
      pending = end;
    }
  }

  conversation({ calls, trace }: RolloutTokens): void {
    for (const { message, call: number } of transcriptOf(calls, trace, turnOf)) {
      const call = this.#byNumber.get(number) as Call;
      if (message.role === "assistant" && message.content === call.answer?.blocks) this.#answer(call, [], [], []);
      else this.#add(messageOf(message), [], call);
    }
  }

  #add(message: unknown, tokens: readonly number[], call: Call): void {
    this.#push({ message, sampled: false, token_ids: tokens, mask: tokens.map(() => false), logprobs: [] }, call);
  }

  #answer(call: Call, scaffold: readonly number[], ids: readonly number[], logprobs: readonly number[]): void {
    const message = messageOf({ role: "assistant", content: call.answer?.blocks ?? [] });
    this.#push({ message, sampled: true, token_ids: [...scaffold, ...ids], mask: [...scaffold.map(() => false), ...ids.map(() => true)], logprobs }, call);
    this.calls.push(callOf(call, this.nodes.length - 1));
  }

  #push(node: Pick<WireNode, "message" | "sampled" | "token_ids" | "mask" | "logprobs">, call: Call): void {
    const root = this.#parent === null && this.tools.length > 0 ? { tools: this.tools } : {};
    this.nodes.push({ parent: this.#parent, ...root, semantic_parents: [], timestamp: Date.parse(call.at) / 1000, is_content: [], ...node });
    this.#parent = this.nodes.length - 1;
  }
}

function messageOf(message: Message): unknown {
  switch (message.role) {
    case "system":
    case "user":
      return { role: message.role, content: textOf(message.content) };
    case "tool":
      return { role: "tool", tool_call_id: message.callId, content: textOf(message.content), name: message.name };
    case "assistant": {
      const calls = message.content.flatMap((block) => (block.type === "tool_call" ? [{ id: block.id, type: block.kind ?? "function", name: block.name, arguments: block.arguments }] : []));
      return { role: "assistant", content: textOf(message.content), reasoning_content: reasoningOf(message.content), tool_calls: calls.length === 0 ? null : calls };
    }
  }
}

function toolsOf(tools: readonly ToolDefinition[]): readonly unknown[] {
  return tools.map(({ name, description, parameters, kind }) => ({ type: kind ?? "function", name, description: description ?? "", parameters: parameters ?? {} }));
}

const ENDPOINTS: Readonly<Record<Call["dialect"], string>> = { "openai-chat": "/chat/completions", "openai-responses": "/responses", anthropic: "/messages", gemini: "/generateContent", turn: "/chat/completions" };

function callOf({ model, sampling, answer, at, durationMs, dialect }: Call, node: number): unknown {
  const start = Date.parse(at) / 1000;
  const usage = answer?.usage ?? null;
  return {
    node,
    model,
    sampling: { temperature: sampling.temperature, top_p: sampling.topP, max_tokens: sampling.maxTokens },
    endpoint: ENDPOINTS[dialect],
    finish_reason: answer === null ? null : finishOf(answer.finish),
    usage: usage === null ? null : { prompt_tokens: usage.promptTokens - usage.cachedTokens, completion_tokens: usage.completionTokens, cached_input_tokens: usage.cachedTokens, reasoning_tokens: usage.reasoningTokens },
    time: { start, end: start + durationMs / 1000 },
    error: null,
  };
}

function finishOf(finish: FinishReason): "stop" | "length" | "tool_calls" {
  if (finish === "tool_calls") return "tool_calls";
  return finish === "length" || finish === "context" ? "length" : "stop";
}

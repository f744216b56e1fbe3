/**
 * Sessions as harnesses of every sort produce them, without a server: a toy engine whose tokenizer does not give back what it was given, behind harnesses that edit, drop,
 * branch, summarise and spawn. Every call knows exactly what was sampled, so that tests can say what may be trained.
 */
import { newId } from "../../../src/core/ids.ts";
import { seededRandom, systemRuntime } from "../../../src/core/runtime.ts";
import type { Call, CallStatus } from "../../../src/gateway/call.ts";
import { DEFAULT_SAMPLING, EMPTY_TURN, type AnswerBlock, type Message, type ToolDefinition, type TurnRequest } from "../../../src/gateway/conversation.ts";
import { conversationFacts } from "../../../src/gateway/trace/message-key.ts";

const TOOLS: readonly ToolDefinition[] = [{ name: "bash", description: null, parameters: { type: "object" } }];

export interface TurnOptions {
  readonly messages: readonly Message[];
  readonly tools?: readonly ToolDefinition[];
  readonly answer: readonly AnswerBlock[];
  /** The answer's tokens are not those that its text is rendered to in the next prompt. */
  readonly drift?: boolean;
  readonly status?: CallStatus;
  readonly maxTokens?: number;
  readonly tokens?: "all" | "no_logprobs" | "none";
}

export class SimulatedSession {
  readonly calls: Call[] = [];
  /** How the engine renders each message; answers that drifted are rendered unlike what was sampled. */
  readonly #rendered = new Map<string, readonly number[]>();
  readonly #random: () => number;
  #next = 1000;

  constructor(seed: string) {
    this.#random = seededRandom(seed);
  }

  /** Makes the call, and gives back its answer as the harness keeps it. */
  call({ messages, tools = TOOLS, answer, drift = false, status = "complete", maxTokens, tokens = "all" }: TurnOptions): Message {
    const request: TurnRequest = { ...EMPTY_TURN, model: "m", messages, tools, sampling: { ...DEFAULT_SAMPLING, maxTokens: maxTokens ?? null } };
    const promptIds = [tools.length, ...messages.flatMap((message) => this.#render(message)), 1];
    const completionIds = this.#fresh(1 + Math.floor(this.#random() * 6));
    const said: Message = { role: "assistant", content: answer };
    // What the next prompt holds for this answer: the generation prompt and the sampled ids, or another spelling of them.
    this.#rendered.set(JSON.stringify(said), drift ? [1, ...this.#fresh(3)] : [1, ...completionIds]);
    const number = this.calls.length + 1;
    this.calls.push({
      id: newId("call", systemRuntime),
      number,
      at: new Date(number * 1000).toISOString(),
      durationMs: 5,
      firstDeltaMs: null,
      dialect: "turn",
      route: { model: null, stream: null },
      status,
      failure: status === "complete" ? null : { kind: "truncated", message: "cut" },
      request,
      conversation: conversationFacts(request),
      model: "m",
      sampling: request.sampling,
      notes: [],
      answer: status === "failed" ? null : { blocks: answer, finish: "stop", stopSequence: null, usage: { promptTokens: promptIds.length, completionTokens: completionIds.length, cachedTokens: 0, reasoningTokens: 0 }, logprobs: null },
      capture: "tokens",
      tokens:
        status === "failed" || tokens === "none"
          ? null
          : {
              promptIds,
              completionIds,
              logprobs: tokens === "no_logprobs" ? null : completionIds.map(() => Math.fround(-this.#random())),
              versions: completionIds.length > 2 ? [["1", 2], ["2", completionIds.length - 2]] : [["1", completionIds.length]],
            },
      replays: 0,
    });
    return said;
  }

  #render(message: Message): readonly number[] {
    const key = JSON.stringify(message);
    let ids = this.#rendered.get(key);
    if (ids === undefined) this.#rendered.set(key, (ids = this.#fresh(1 + (key.length % 5))));
    return ids;
  }

  #fresh(count: number): readonly number[] {
    return Array.from({ length: count }, () => this.#next++);
  }
}

export const turnOf = (call: Call): TurnRequest => call.request as TurnRequest;

export const system = (text: string): Message => ({ role: "system", name: "system", content: [{ type: "text", text }] });
export const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
export const tool = (text: string): Message => ({ role: "tool", callId: "c", name: null, content: [{ type: "text", text }], isError: false });
export const text = (said: string): AnswerBlock => ({ type: "text", text: said });
export const bash = (command: string): AnswerBlock => ({ type: "tool_call", id: "c", name: "bash", arguments: JSON.stringify({ command }) });

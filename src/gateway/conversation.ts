/**
 * The conversation as all dialects mean it: what a harness asks, what a model answers, and the pieces in which an answer streams.
 *
 * A dialect decodes its wire form into these types and encodes answers back; an upstream does the reverse. Text is carried byte for byte: tool arguments stay the raw
 * text that was sampled, reasoning and its signatures go round unchanged. What a dialect cannot express here is refused by name, or listed in `TurnRequest.dropped`.
 */

export type Dialect = "openai-chat" | "openai-responses" | "anthropic" | "gemini";

export interface TextBlock {
  readonly type: "text";
  readonly text: string;
}

export interface ImageBlock {
  readonly type: "image";
  readonly source: { readonly kind: "url"; readonly url: string } | { readonly kind: "base64"; readonly mediaType: string; readonly data: string };
  /** OpenAI's `detail`, as given. */
  readonly detail?: string;
}

export interface ReasoningBlock {
  readonly type: "reasoning";
  /** Empty for reasoning that its vendor hides. */
  readonly text: string;
  /** What the vendor wants back with it: Anthropic's `signature`, Gemini's `thoughtSignature`, Responses' `encrypted_content`. Ours carries nothing and is null. */
  readonly signature: string | null;
  /** Anthropic's `redacted_thinking`: opaque data in place of a text. */
  readonly redacted?: boolean;
}

export interface ToolCallBlock {
  readonly type: "tool_call";
  /** Unique in its conversation. */
  readonly id: string;
  readonly name: string;
  /** The text as it was sampled or sent: JSON for functions (`{}` where the harness sent none), free text for custom tools. Need not parse. */
  readonly arguments: string;
  /** `custom`: a Responses tool that takes free text. Absent: function. */
  readonly kind?: "custom";
  /** Namespace of a Responses tool. */
  readonly namespace?: string;
  /** Gemini's `thoughtSignature` on the call, to be sent back. */
  readonly signature?: string;
}

export interface RefusalBlock {
  readonly type: "refusal";
  readonly text: string;
}

export type ContentBlock = TextBlock | ImageBlock;
export type AnswerBlock = TextBlock | ReasoningBlock | ToolCallBlock | RefusalBlock;

export type Message =
  /** Instructions, at the head or in the middle. `developer` is OpenAI's newer name; templates that do not know it get `system`. */
  | { readonly role: "system"; readonly name: "system" | "developer"; readonly content: readonly ContentBlock[] }
  | { readonly role: "user"; readonly content: readonly ContentBlock[] }
  | { readonly role: "assistant"; readonly content: readonly AnswerBlock[] }
  /** The result of one tool call. */
  | { readonly role: "tool"; readonly callId: string; readonly name: string | null; readonly content: readonly ContentBlock[]; readonly isError: boolean; readonly kind?: "custom" };

export interface ToolDefinition {
  readonly name: string;
  readonly description: string | null;
  /** JSON schema as given; null for tools without arguments and for custom tools. */
  readonly parameters: unknown;
  readonly strict?: boolean;
  readonly kind?: "custom";
  readonly namespace?: string;
  /** A custom tool's `format`, as given. */
  readonly format?: unknown;
}

export type ToolChoice = { readonly type: "auto" | "none" | "required" } | { readonly type: "tool"; readonly name: string };

/** Null: not given, the upstream's default holds. */
export interface Sampling {
  readonly temperature: number | null;
  readonly topP: number | null;
  readonly topK: number | null;
  readonly minP: number | null;
  /** Of the answer, reasoning included. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  readonly seed: number | null;
  readonly presencePenalty: number | null;
  readonly frequencyPenalty: number | null;
  readonly repetitionPenalty: number | null;
}

export const DEFAULT_SAMPLING: Sampling = {
  temperature: null,
  topP: null,
  topK: null,
  minP: null,
  maxTokens: null,
  stop: [],
  seed: null,
  presencePenalty: null,
  frequencyPenalty: null,
  repetitionPenalty: null,
};

/** One model call as a harness asks for it. */
export interface TurnRequest {
  readonly dialect: Dialect;
  /** As the harness named it. */
  readonly model: string;
  readonly messages: readonly Message[];
  readonly tools: readonly ToolDefinition[];
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly sampling: Sampling;
  /** What was asked about thinking; null where nothing was. */
  readonly reasoning: { readonly enabled: boolean | null; readonly effort: string | null; readonly budgetTokens: number | null } | null;
  /** `json_object`, or `json_schema` with the schema as given. */
  readonly responseFormat: { readonly type: "json_object" } | { readonly type: "json_schema"; readonly name: string | null; readonly schema: unknown; readonly strict: boolean | null } | null;
  /** Top alternatives a token that the harness itself wants to see; null: it asked for no logprobs. */
  readonly logprobs: number | null;
  readonly stream: boolean;
  /** Chat's `stream_options.include_usage`. */
  readonly streamUsage: boolean;
  /** Top-level fields that we do not know, as given: passed on to an upstream of the same dialect, else the request is refused. */
  readonly extra: Readonly<Record<string, unknown>>;
  /** What was understood and has no effect on the answer's meaning here, by field: cache marks, metadata, provider tools. Recorded with the call. */
  readonly dropped: readonly string[];
}

/** Asks for nothing: to be filled in. */
export const EMPTY_TURN: TurnRequest = {
  dialect: "openai-chat",
  model: "",
  messages: [],
  tools: [],
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
};

/**
 * `stop`: the model ended its turn; `stop_sequence`: one of `Sampling.stop` was met; `length`: the token limit; `context`: the end of the model's window.
 */
export type FinishReason = "stop" | "stop_sequence" | "tool_calls" | "length" | "context" | "content_filter" | "refusal";

export interface Usage {
  readonly promptTokens: number;
  /** Reasoning included. */
  readonly completionTokens: number;
  /** Of the prompt, those that the engine had computed already; 0 where it does not say. */
  readonly cachedTokens: number;
  readonly reasoningTokens: number;
}

/** One sampled token with its alternatives, for harnesses that ask for logprobs. */
export interface TokenLogprob {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: readonly number[] | null;
  readonly top: readonly { readonly token: string; readonly logprob: number; readonly bytes: readonly number[] | null }[];
}

export interface Answer {
  /** In the order in which they were sampled. */
  readonly blocks: readonly AnswerBlock[];
  readonly finish: FinishReason;
  /** The sequence that was met, for `stop_sequence`. */
  readonly stopSequence: string | null;
  /** Null where the upstream does not count. */
  readonly usage: Usage | null;
  /** Null unless `TurnRequest.logprobs` asked. */
  readonly logprobs: readonly TokenLogprob[] | null;
}

/**
 * A piece of a streamed answer. Pieces of one block are contiguous, blocks come in their order; joined they are exactly `Answer.blocks`. A tool call is opened by
 * `tool_call` and filled by `arguments`; texts, reasoning and refusals open with their first piece and close when another block opens or the answer ends. No piece
 * ends inside a code point: half of one cannot be written in every client's language.
 */
export type Delta =
  | { readonly type: "text" | "reasoning" | "refusal"; readonly text: string }
  /** Ends the open reasoning block. */
  | { readonly type: "signature"; readonly signature: string; readonly redacted?: boolean }
  | { readonly type: "tool_call"; readonly id: string; readonly name: string; readonly kind?: "custom"; readonly namespace?: string; readonly signature?: string }
  | { readonly type: "arguments"; readonly text: string };

/**
 * Recognises, among the error texts of inference servers, the one that is no failure: the conversation no longer fits the model.
 *
 * Servers agree on neither code nor wording: OpenAI sends code `context_length_exceeded`, vLLM "maximum context length is N tokens" or "longer than the maximum
 * model length", SGLang "longer than the model's context length" or "exceeds the model's maximum context length", llama.cpp type `exceed_context_size_error`.
 */
const PATTERNS: readonly RegExp[] = [
  /context_length_exceeded/,
  /context_window_exceeded/,
  /exceed_context_size/,
  /maximum context length/,
  /maximum model length/,
  /(longer|greater|larger) than the (model's|maximum) (maximum )?context/,
  /exceeds? (the )?(model's )?(maximum |available |allowed )?(allowed )?(context|input) (length|size|window)/,
  /(prompt|input)[^.]{0,80} is too long/,
  /too long to fit into the model/,
  /prompt contains \d+ tokens/,
  /reduce the length of the (messages|prompt|input)/,
];

const CONTEXT_PATTERNS: readonly RegExp[] = [/maximum (?:context|model) length (?:is|of) \(?(\d+)/, /(?:maximum )?context length \((\d+)/, /"n_ctx":\s*(\d+)/, /> (\d+) maximum/];
const PROMPT_PATTERNS: readonly RegExp[] = [
  /(\d+) (?:input tokens|tokens from the input|in the messages)/,
  /resulted in (\d+) tokens/,
  /(?:input|prompt)[^.(]{0,20}\((?:length )?(\d+)/,
  /"n_prompt_tokens":\s*(\d+)/,
  /too long: (\d+) tokens/,
  /prompt contains (\d+) tokens/,
];

export interface Overflow {
  /** Null where the text does not tell. */
  readonly promptTokens: number | null;
  readonly contextTokens: number | null;
}

/** What the error body of a context overflow says; null for any other. `status`: of the HTTP response; only errors can be one. */
export function readOverflow(status: number, body: string): Overflow | null {
  if (status < 400 || status === 401 || status === 403 || status === 404 || status === 429) return null;
  const text = body.slice(0, 20_000).toLowerCase();
  if (!PATTERNS.some((pattern) => pattern.test(text))) return null;
  return { promptTokens: firstNumber(PROMPT_PATTERNS, text), contextTokens: firstNumber(CONTEXT_PATTERNS, text) };
}

function firstNumber(patterns: readonly RegExp[], text: string): number | null {
  for (const pattern of patterns) {
    const found = pattern.exec(text)?.[1];
    if (found !== undefined) return Number(found);
  }
  return null;
}

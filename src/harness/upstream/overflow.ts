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

/** True for the error body of a context overflow. `status`: of the HTTP response; only errors can be one. */
export function isContextOverflow(status: number, body: string): boolean {
  if (status < 400 || status === 401 || status === 403 || status === 404 || status === 429) return false;
  const text = body.slice(0, 20_000).toLowerCase();
  return PATTERNS.some((pattern) => pattern.test(text));
}

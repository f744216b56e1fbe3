/** How the policy server tells an answer, or what is new of one: SGLang's form. */
import type { Answered, SampledToken } from "./engine.ts";
import type { Finish, GenerateRequest } from "./protocol.ts";

export interface AnswerFacts {
  readonly id: string;
  readonly request: GenerateRequest;
  readonly finish: Finish | null;
  readonly weightVersion: string;
}

/** `tokens`: all so far; those from `from` on are told. */
export function answerBody(tokens: Answered["tokens"], from: number, { id, request, finish, weightVersion }: AnswerFacts): unknown {
  const told = tokens.slice(from);
  const spans = versionSpans(tokens);
  return {
    text: "",
    output_ids: told.map((token) => token.id),
    meta_info: {
      id,
      finish_reason: finish,
      prompt_tokens: request.input_ids.length,
      completion_tokens: tokens.length,
      cached_tokens: 0,
      weight_version: spans.at(-1)?.version ?? weightVersion,
      ...(spans.length > 1 ? { weight_versions: spans } : {}),
      ...(request.return_logprob ? { output_token_logprobs: told.map((token) => [token.logprob, token.id, null]) } : {}),
      ...(request.return_logprob && request.top_logprobs_num > 0 ? { output_top_logprobs: told.map(({ alternatives }) => alternatives.map((one) => [one.logprob, one.id, null])) } : {}),
    },
  };
}

function versionSpans(tokens: readonly SampledToken[]): readonly { readonly version: string; readonly start: number; readonly end: number }[] {
  const spans: { version: string; start: number; end: number }[] = [];
  for (const [at, { version }] of tokens.entries()) {
    const last = spans.at(-1);
    if (last?.version === version) last.end = at + 1;
    else spans.push({ version, start: at, end: at + 1 });
  }
  return spans;
}

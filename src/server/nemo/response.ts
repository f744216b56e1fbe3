/**
 * A rollout as one response of the Responses API, as NeMo Gym has it (`nemo_gym/openai_utils.py`): the messages of all calls in order, and on the last item of each answer the
 * three token fields.
 *
 * Their trainer asserts that each prompt extends the tokens before it. So of a rollout with several samples it is given the one with most trained tokens; what is left out is said.
 */
import type { Call } from "../../gateway/call.ts";
import type { Message, Usage } from "../../gateway/conversation.ts";
import { isVisible, outputItem, responseBase } from "../../gateway/dialects/openai-responses/encode.ts";
import type { Sample } from "../../gateway/samples/sample.ts";
import { transcriptOf } from "../../gateway/trace/transcript.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import type { RolloutTokens } from "../../rollout/samples/rollout-samples.ts";
import { newMessages, textOf } from "../single/conversation-text.ts";

type Item = Readonly<Record<string, unknown>>;

export interface NemoResponse {
  readonly response: Readonly<Record<string, unknown>>;
  /** What the agent was asked first, as input items. */
  readonly input: readonly Item[];
  /** Samples of the rollout that are not in it. */
  readonly left: number;
}

export function responseOf(tokens: RolloutTokens | null, about: { readonly id: string; readonly createdAt: number; readonly model: string }): NemoResponse {
  const sample = tokens?.set.samples.toSorted((a, b) => trained(b) - trained(a))[0];
  const told = tokens === null ? { input: [], output: [] } : sample === undefined ? conversation(tokens) : ofSample(tokens, sample);
  const first = tokens?.calls[0];
  const base = first === undefined ? { id: `resp_${about.id}`, object: "response", created_at: about.createdAt / 1000, parallel_tool_calls: true, tool_choice: "auto", tools: [] } : responseBase({ callId: about.id, createdAt: about.createdAt, request: turnOf(first) });
  const usage = usageOf(tokens?.calls ?? []);
  return { response: { ...base, model: about.model, status: "completed", output: told.output, usage }, input: told.input, left: Math.max(0, (tokens?.set.samples.length ?? 0) - 1) };
}

function ofSample({ calls }: RolloutTokens, { tokenIds, logprobs, spans }: Sample): { readonly input: readonly Item[]; readonly output: readonly Item[] } {
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  const output: Item[] = [];
  let input: readonly Item[] | null = null;
  for (const { start, end, call: number, origin } of spans) {
    if (origin !== "trained") continue;
    // Spans name calls of the log.
    const call = byNumber.get(number) as Call;
    const { messages } = turnOf(call);
    const asked: readonly Item[] = (input === null ? messages : newMessages(messages)).flatMap((message, at) => itemsOf(message, `${call.id}_${at}`));
    if (input === null) input = asked;
    else output.push(...asked);
    const items = answerItems(call);
    const tokens = { prompt_token_ids: [...tokenIds.subarray(0, start)], generation_token_ids: [...tokenIds.subarray(start, end)], generation_log_probs: [...logprobs.subarray(start, end)] };
    output.push(...items.slice(0, -1), { ...items.at(-1), ...tokens });
  }
  return { input: input ?? [], output };
}

/** For upstreams that tell no tokens. */
function conversation({ calls, trace }: RolloutTokens): { readonly input: readonly Item[]; readonly output: readonly Item[] } {
  const items: { readonly answer: boolean; readonly items: readonly Item[] }[] = [];
  for (const [at, { message, call: number }] of transcriptOf(calls, trace, turnOf).entries()) items.push({ answer: message.role === "assistant", items: itemsOf(message, `${number}_${at}`) });
  const first = items.findIndex(({ answer }) => answer);
  const cut = first === -1 ? items.length : first;
  return { input: items.slice(0, cut).flatMap(({ items: of }) => of), output: items.slice(cut).flatMap(({ items: of }) => of) };
}

/** At least one: an answer without anything that is seen is an empty message. */
function answerItems(call: Call): readonly Item[] {
  const blocks = (call.answer?.blocks ?? []).filter(isVisible);
  const shown = blocks.length === 0 ? [{ type: "text" as const, text: "" }] : blocks;
  return shown.map((block, index) => outputItem(block, index, "completed", call.id, []));
}

function itemsOf(message: Message, id: string): readonly Item[] {
  switch (message.role) {
    case "system":
    case "user":
      return [{ type: "message", role: message.role === "system" ? message.name : "user", content: textOf(message.content) }];
    case "tool":
      return [{ type: "function_call_output", call_id: message.callId, output: textOf(message.content), id: `fco_${id}`, status: "completed" }];
    case "assistant":
      return message.content.filter(isVisible).map((block, index) => outputItem(block, index, "completed", id, []));
  }
}

function usageOf(calls: readonly Call[]): Readonly<Record<string, unknown>> | null {
  const known = calls.flatMap(({ answer }) => (answer?.usage == null ? [] : [answer.usage]));
  if (known.length === 0) return null;
  const sum = (of: (usage: Usage) => number): number => known.reduce((total, usage) => total + of(usage), 0);
  const [input, output] = [sum(({ promptTokens }) => promptTokens), sum(({ completionTokens }) => completionTokens)];
  return {
    input_tokens: input,
    input_tokens_details: { cached_tokens: sum(({ cachedTokens }) => cachedTokens), cache_write_tokens: 0 },
    output_tokens: output,
    output_tokens_details: { reasoning_tokens: sum(({ reasoningTokens }) => reasoningTokens) },
    total_tokens: input + output,
  };
}

function trained({ lossMask }: Sample): number {
  return lossMask.reduce((total, mask) => total + mask, 0);
}

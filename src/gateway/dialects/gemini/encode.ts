/** Answers as `GenerateContentResponse`s. A reasoning block is a thought part; the part after it carries it once more, for clients that leave thoughts out of what they send back. */
import type { Answer, AnswerBlock, FinishReason, ReasoningBlock, TokenLogprob, Usage } from "../../conversation.ts";
import type { EncodeContext } from "../dialect.ts";
import { argumentsObjectText } from "../tool-arguments.ts";
import { sealRider } from "./signature.ts";

type Part = Readonly<Record<string, unknown>>;

export function encode(answer: Answer, context: EncodeContext): unknown {
  return finalResponse(answer, encodeBlocks(answer.blocks), context);
}

/** One piece of an answer. */
export function response(parts: readonly Part[], context: EncodeContext): Readonly<Record<string, unknown>> {
  return { candidates: [{ content: { parts, role: "model" }, index: 0 }], modelVersion: context.request.model, responseId: context.callId };
}

/** The last piece, or the whole. */
export function finalResponse(answer: Answer, parts: readonly Part[], context: EncodeContext): Readonly<Record<string, unknown>> {
  const candidate = { content: { parts, role: "model" }, finishReason: FINISH_REASONS[answer.finish], index: 0, ...(answer.logprobs === null ? {} : encodeLogprobs(answer.logprobs)) };
  return { ...response(parts, context), candidates: [candidate], ...(answer.usage === null ? {} : { usageMetadata: encodeUsage(answer.usage) }) };
}

const FINISH_REASONS: Readonly<Record<FinishReason, string>> = {
  stop: "STOP",
  stop_sequence: "STOP",
  tool_calls: "STOP",
  refusal: "STOP",
  length: "MAX_TOKENS",
  context: "MAX_TOKENS",
  content_filter: "SAFETY",
};

function encodeBlocks(blocks: readonly AnswerBlock[]): readonly Part[] {
  let thoughts: ReasoningBlock[] = [];
  const parts = blocks.flatMap((block): readonly Part[] => {
    if (block.type === "reasoning") {
      if (block.text === "" && block.signature === null) return [];
      thoughts.push(block);
      return [{ text: block.text, ...thoughtPart(block.signature) }];
    }
    if (block.type !== "tool_call" && block.text === "") return [];
    const part = encodeBlock(block, thoughts);
    thoughts = [];
    return [part];
  });
  return thoughts.length > 0 || parts.length === 0 ? [...parts, encodeBlock({ type: "text", text: "" }, thoughts)] : parts;
}

export function thoughtPart(signature: string | null): Part {
  return { thought: true, ...(signature === null ? {} : { thoughtSignature: signature }) };
}

/** `thoughts`: the reasoning right before it. */
export function encodeBlock(block: Exclude<AnswerBlock, ReasoningBlock>, thoughts: readonly ReasoningBlock[]): Part {
  const before = thoughts.length === 0 ? {} : { thoughts };
  if (block.type !== "tool_call") return { text: block.text, ...signed(sealRider({ ...before, ...(block.type === "refusal" ? { refusal: true } : {}) })) };
  const args: unknown = JSON.parse(argumentsObjectText(block.arguments));
  const rider = {
    ...before,
    ...(JSON.stringify(args) === block.arguments ? {} : { arguments: block.arguments }),
    ...(block.signature === undefined ? {} : { signature: block.signature }),
  };
  return { functionCall: { id: block.id, name: block.name, args }, ...signed(sealRider(rider)) };
}

function signed(thoughtSignature: string | undefined): Part {
  return thoughtSignature === undefined ? {} : { thoughtSignature };
}

function encodeUsage({ promptTokens, completionTokens, cachedTokens, reasoningTokens }: Usage): unknown {
  return {
    promptTokenCount: promptTokens,
    candidatesTokenCount: completionTokens - reasoningTokens,
    totalTokenCount: promptTokens + completionTokens,
    ...(cachedTokens === 0 ? {} : { cachedContentTokenCount: cachedTokens }),
    ...(reasoningTokens === 0 ? {} : { thoughtsTokenCount: reasoningTokens }),
  };
}

function encodeLogprobs(logprobs: readonly TokenLogprob[]): Part {
  const one = ({ token, logprob }: { readonly token: string; readonly logprob: number }): object => ({ token, logProbability: logprob });
  const sum = logprobs.reduce((total, { logprob }) => total + logprob, 0);
  return {
    ...(logprobs.length === 0 ? {} : { avgLogprobs: sum / logprobs.length }),
    logprobsResult: { chosenCandidates: logprobs.map(one), topCandidates: logprobs.map(({ top }) => ({ candidates: top.map(one) })) },
  };
}

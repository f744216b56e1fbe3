/** Chat completions out: whole answers, and the parts that streamed ones share with them. */
import type { Answer, AnswerBlock, TokenLogprob, ToolCallBlock, Usage } from "../../conversation.ts";
import type { EncodeContext } from "../dialect.ts";
import { argumentsText } from "../tool-arguments.ts";

export function encodeChat(answer: Answer, context: EncodeContext): unknown {
  const calls = answer.blocks.filter((block) => block.type === "tool_call");
  const reasoning = joined(answer, "reasoning");
  return {
    ...envelope(context, "chat.completion"),
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: joined(answer, "text"),
          refusal: joined(answer, "refusal"),
          ...(reasoning === null ? {} : { reasoning_content: reasoning }),
          ...(calls.length === 0 ? {} : { tool_calls: calls.map(encodeCall) }),
        },
        logprobs: encodeLogprobs(answer),
        finish_reason: finishReason(answer),
      },
    ],
    ...(answer.usage === null ? {} : { usage: encodeUsage(answer.usage) }),
  };
}

export function envelope(context: EncodeContext, object: "chat.completion" | "chat.completion.chunk"): object {
  return { id: `chatcmpl-${context.callId}`, object, created: Math.floor(context.createdAt / 1000), model: context.request.model };
}

/** An answer that calls tools says so, whatever else the engine said of its end, unless it was cut off. */
export function finishReason(answer: Answer): string {
  switch (answer.finish) {
    case "stop":
    case "stop_sequence":
    case "refusal":
    case "tool_calls":
      return answer.blocks.some((block) => block.type === "tool_call") ? "tool_calls" : "stop";
    case "length":
    case "context":
      return "length";
    case "content_filter":
      return "content_filter";
  }
}

export function encodeUsage(usage: Usage): object {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: { cached_tokens: usage.cachedTokens },
    completion_tokens_details: { reasoning_tokens: usage.reasoningTokens },
  };
}

export function encodeLogprobs(answer: Answer): { readonly content: readonly object[]; readonly refusal: null } | null {
  if (answer.logprobs === null) return null;
  const own = ({ token, logprob, bytes }: Pick<TokenLogprob, "token" | "logprob" | "bytes">) => ({ token, logprob, bytes });
  return { content: answer.logprobs.map((entry) => ({ ...own(entry), top_logprobs: entry.top.map(own) })), refusal: null };
}

function encodeCall(call: ToolCallBlock): object {
  if (call.kind === "custom") return { id: call.id, type: "custom", custom: { name: call.name, input: call.arguments } };
  return { id: call.id, type: "function", function: { name: call.name, arguments: argumentsText(call.arguments) } };
}

/** Null where the answer has nothing of the kind, as the API has it. */
function joined(answer: Answer, type: Exclude<AnswerBlock["type"], "tool_call">): string | null {
  return answer.blocks.map((block) => (block.type === type ? block.text : "")).join("") || null;
}

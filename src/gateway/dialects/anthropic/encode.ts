/** Anthropic Messages out: whole answers, and the parts that streamed ones share with them. */
import type { Answer, AnswerBlock, Usage } from "../../conversation.ts";
import type { EncodeContext } from "../dialect.ts";
import { argumentsObjectText } from "../tool-arguments.ts";
import { signatureOut } from "./signature.ts";

export function encodeMessage(answer: Answer, context: EncodeContext): unknown {
  return { ...emptyMessage(context), content: answer.blocks.map(encodeBlock), ...stop(answer), usage: encodeUsage(answer.usage) };
}

/** The message as it stands when nothing is sampled yet. */
export function emptyMessage(context: EncodeContext): object {
  return {
    id: `msg_${context.callId}`,
    type: "message",
    role: "assistant",
    model: context.request.model,
    content: [],
    stop_reason: null,
    stop_sequence: null,
    stop_details: null,
  };
}

interface Stop {
  readonly stop_reason: string;
  readonly stop_sequence: string | null;
  /** Of a refusal; open models give no category and no explanation. */
  readonly stop_details: { readonly type: "refusal"; readonly category: null; readonly explanation: null } | null;
}

/** `tool_use` makes clients run the tools: an answer that calls some says so, whatever else the engine said of its end, unless it was cut off. */
export function stop(answer: Answer): Stop {
  const because = (stop_reason: string, stop_sequence: string | null = null): Stop => ({ stop_reason, stop_sequence, stop_details: null });
  switch (answer.finish) {
    case "stop":
    case "tool_calls":
    case "stop_sequence":
      if (answer.blocks.some((block) => block.type === "tool_call")) return because("tool_use");
      return answer.finish === "stop_sequence" ? because("stop_sequence", answer.stopSequence) : because("end_turn");
    case "length":
      return because("max_tokens");
    case "context":
      return because("model_context_window_exceeded");
    case "content_filter":
    case "refusal":
      return { ...because("refusal"), stop_details: { type: "refusal", category: null, explanation: null } };
  }
}

/** Cached tokens are counted apart from the others of the prompt, as the API has it. Zeros where nobody counted: the type has no null. */
export function encodeUsage(usage: Usage | null): object {
  const cached = usage?.cachedTokens ?? 0;
  return {
    input_tokens: (usage?.promptTokens ?? 0) - cached,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
    output_tokens: usage?.completionTokens ?? 0,
    output_tokens_details: { thinking_tokens: usage?.reasoningTokens ?? 0 },
  };
}

function encodeBlock(block: AnswerBlock): object {
  switch (block.type) {
    case "text":
    case "refusal":
      return { type: "text", text: block.text };
    case "reasoning":
      if (block.redacted === true) return { type: "redacted_thinking", data: block.signature ?? "" };
      return { type: "thinking", thinking: block.text, signature: signatureOut(block.signature) };
    case "tool_call":
      return { type: "tool_use", id: block.id, name: block.name, input: JSON.parse(argumentsObjectText(block.arguments)) as object };
  }
}

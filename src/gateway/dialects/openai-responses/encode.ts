/** Answers as response objects. Everything is a function of the call's id, so that the same answer has the same ids whole and streamed. */
import type { Answer, AnswerBlock, TokenLogprob, ToolDefinition, TurnRequest, Usage } from "../../conversation.ts";
import type { EncodeContext } from "../dialect.ts";
import { argumentsText } from "../tool-arguments.ts";
import { sealReasoning } from "./reasoning.ts";

export type ItemStatus = "in_progress" | "completed" | "incomplete";

export function encode(answer: Answer, context: EncodeContext): unknown {
  return finishedResponse(answer, answer.blocks.filter(isVisible), context);
}

/** The response object at its end. `blocks`: those of the answer, as they were sent. */
export function finishedResponse(answer: Answer, blocks: readonly AnswerBlock[], context: EncodeContext): Readonly<Record<string, unknown>> {
  const incomplete = incompleteReason(answer);
  const last = blocks.length - 1;
  const logprobs = logprobsOfTexts(answer, blocks);
  return {
    ...responseBase(context),
    status: incomplete === null ? "completed" : "incomplete",
    incomplete_details: incomplete === null ? null : { reason: incomplete },
    output: blocks.map((block, index) => outputItem(block, index, incomplete !== null && index === last ? "incomplete" : "completed", context.callId, logprobs[index] ?? [])),
    usage: answer.usage === null ? null : encodeUsage(answer.usage),
  };
}

/** A streamed answer has no block without content. */
export function isVisible(block: AnswerBlock): boolean {
  return block.type === "tool_call" || block.text !== "" || (block.type === "reasoning" && block.signature !== null);
}

/** What is the same from the first event to the last. */
export function responseBase({ callId, createdAt, request }: EncodeContext): Readonly<Record<string, unknown>> {
  return {
    id: `resp_${callId}`,
    object: "response",
    created_at: Math.floor(createdAt / 1000),
    status: "in_progress",
    background: false,
    error: null,
    incomplete_details: null,
    instructions: null,
    max_output_tokens: request.sampling.maxTokens,
    metadata: {},
    model: request.model,
    output: [],
    parallel_tool_calls: request.parallelToolCalls ?? true,
    previous_response_id: null,
    reasoning: { effort: request.reasoning?.effort ?? null, summary: null },
    store: false,
    temperature: request.sampling.temperature,
    text: { format: encodeFormat(request) },
    tool_choice: encodeToolChoice(request),
    tools: encodeTools(request.tools),
    top_logprobs: request.logprobs ?? 0,
    top_p: request.sampling.topP,
    truncation: "disabled",
    usage: null,
  };
}

export function outputItem(block: AnswerBlock, index: number, status: ItemStatus, callId: string, logprobs: readonly unknown[]): Readonly<Record<string, unknown>> {
  const id = itemId(block, index, callId);
  switch (block.type) {
    case "text":
      return { id, type: "message", status, role: "assistant", content: [{ type: "output_text", text: block.text, annotations: [], logprobs }] };
    case "refusal":
      return { id, type: "message", status, role: "assistant", content: [{ type: "refusal", refusal: block.text }] };
    case "reasoning":
      return { id, type: "reasoning", status, summary: [], content: block.text === "" ? [] : [{ type: "reasoning_text", text: block.text }], encrypted_content: sealReasoning(block) };
    case "tool_call": {
      const call = { call_id: block.id, name: block.name, ...(block.namespace === undefined ? {} : { namespace: block.namespace }) };
      if (block.kind === "custom") return { id, type: "custom_tool_call", status, ...call, input: block.arguments };
      return { id, type: "function_call", status, ...call, arguments: argumentsText(block.arguments) };
    }
  }
}

export function itemId(block: AnswerBlock, index: number, callId: string): string {
  const prefix = block.type === "reasoning" ? "rs" : block.type === "tool_call" ? (block.kind === "custom" ? "ctc" : "fc") : "msg";
  return `${prefix}_${callId}_${index}`;
}

function incompleteReason({ finish }: Answer): string | null {
  if (finish === "length" || finish === "context") return "max_output_tokens";
  return finish === "content_filter" ? "content_filter" : null;
}

function encodeUsage(usage: Usage): unknown {
  return {
    input_tokens: usage.promptTokens,
    input_tokens_details: { cached_tokens: usage.cachedTokens, cache_write_tokens: 0 },
    output_tokens: usage.completionTokens,
    output_tokens_details: { reasoning_tokens: usage.reasoningTokens },
    total_tokens: usage.promptTokens + usage.completionTokens,
  };
}

/** The API gives logprobs with texts only, ours are of the whole answer: those that spell a block's text, in order. By index of the block. */
export function logprobsOfTexts({ logprobs }: Answer, blocks: readonly AnswerBlock[]): readonly (readonly unknown[])[] {
  let from = 0;
  return blocks.map((block) => {
    if (block.type !== "text" || logprobs === null) return [];
    const run = findRun(logprobs, block.text, from);
    if (run === null) return [];
    from = run.end;
    return logprobs.slice(run.start, run.end).map(encodeLogprob);
  });
}

function findRun(tokens: readonly TokenLogprob[], text: string, from: number): { readonly start: number; readonly end: number } | null {
  for (let start = from; start < tokens.length; start++) {
    let rest = text;
    let end = start;
    for (let token = tokens[end]; rest !== "" && token !== undefined && token.token !== "" && rest.startsWith(token.token); token = tokens[++end]) rest = rest.slice(token.token.length);
    if (rest === "") return { start, end };
  }
  return null;
}

function encodeLogprob({ token, logprob, bytes, top }: TokenLogprob): unknown {
  const one = (entry: { readonly token: string; readonly logprob: number; readonly bytes: readonly number[] | null }): object => ({
    token: entry.token,
    logprob: entry.logprob,
    bytes: entry.bytes ?? [...Buffer.from(entry.token)],
  });
  return { ...one({ token, logprob, bytes }), top_logprobs: top.map(one) };
}

function encodeFormat({ responseFormat }: TurnRequest): unknown {
  if (responseFormat === null) return { type: "text" };
  if (responseFormat.type === "json_object") return { type: "json_object" };
  return { type: "json_schema", name: responseFormat.name, schema: responseFormat.schema, strict: responseFormat.strict };
}

function encodeToolChoice({ toolChoice, tools }: TurnRequest): unknown {
  if (toolChoice === null) return "auto";
  if (toolChoice.type !== "tool") return toolChoice.type;
  return { type: tools.find(({ name }) => name === toolChoice.name)?.kind ?? "function", name: toolChoice.name };
}

/** As they were offered; a namespace's tools are neighbours. */
function encodeTools(tools: readonly ToolDefinition[]): readonly unknown[] {
  const encoded: unknown[] = [];
  let open: { name: string; tools: unknown[] } = { name: "", tools: [] };
  for (const tool of tools) {
    const one =
      tool.kind === "custom"
        ? { type: "custom", name: tool.name, description: tool.description, ...(tool.format === undefined ? {} : { format: tool.format }) }
        : { type: "function", name: tool.name, description: tool.description, parameters: tool.parameters, strict: tool.strict ?? null };
    if (tool.namespace === undefined) {
      open = { name: "", tools: [] };
      encoded.push(one);
    } else if (open.name === tool.namespace) open.tools.push(one);
    else {
      open = { name: tool.namespace, tools: [one] };
      encoded.push({ type: "namespace", name: open.name, description: "", tools: open.tools });
    }
  }
  return encoded;
}

/** Chat completions in: a body to the turn that it asks for. */
import type { AnswerBlock, ContentBlock, Message, Sampling, ToolCallBlock, ToolChoice, ToolDefinition, TurnRequest } from "../../conversation.ts";
import { imageSource } from "../image-source.ts";
import { Dropped, invalid, readBody, unknownFields } from "../read-request.ts";
import { argumentsText } from "../tool-arguments.ts";
import { chatRequestSchema, IGNORED_FIELDS, REFUSED_FIELDS, type ChatMessage, type ChatPart, type ChatRequest, type ChatTool } from "./schema.ts";

export function decodeChat(body: unknown): TurnRequest {
  const request = readBody(chatRequestSchema, body);
  refuseUnsupported(request);
  const dropped = new Dropped();
  dropped.fields(request, "", IGNORED_FIELDS);
  if (request.stream_options) dropped.fields(request.stream_options, "stream_options", ["include_obfuscation", "continuous_usage_stats"]);
  const { tools, toolChoice } = readTools(request, dropped);
  return {
    dialect: "openai-chat",
    model: request.model,
    messages: readMessages(request.messages, dropped),
    tools,
    toolChoice,
    parallelToolCalls: request.parallel_tool_calls ?? null,
    sampling: readSampling(request, dropped),
    reasoning: typeof request.reasoning_effort === "string" ? { enabled: request.reasoning_effort === "none" ? false : null, effort: request.reasoning_effort, budgetTokens: null } : null,
    responseFormat: readFormat(request.response_format, dropped),
    logprobs: request.logprobs === true ? (request.top_logprobs ?? 0) : null,
    stream: request.stream === true,
    streamUsage: request.stream_options?.include_usage === true,
    extra: unknownFields(chatRequestSchema, request),
    dropped: dropped.list(),
  };
}

function refuseUnsupported(request: ChatRequest): void {
  for (const [name, reason] of Object.entries(REFUSED_FIELDS)) {
    const value = request[name];
    if (value !== undefined && value !== null) throw invalid(name, reason);
  }
  if (typeof request.n === "number" && request.n !== 1) throw invalid("n", "one answer per call; send the request again for another");
  if (request.modalities?.some((modality) => modality !== "text") === true) throw invalid("modalities", "only text is supported");
  if (typeof request.top_logprobs === "number" && request.logprobs !== true) throw invalid("top_logprobs", "needs logprobs: true");
}

function readMessages(messages: readonly ChatMessage[], dropped: Dropped): readonly Message[] {
  const calls = new Map<string, ToolCallBlock>();
  return messages.map((message, index): Message => {
    const path = `messages[${index}]`;
    switch (message.role) {
      case "system":
      case "developer":
        dropped.fields(message, "messages[]", ["name"]);
        return { role: "system", name: message.role, content: readContent(message.content, `${path}.content`, dropped) };
      case "user":
        dropped.fields(message, "messages[]", ["name"]);
        return { role: "user", content: readContent(message.content, `${path}.content`, dropped) };
      case "assistant": {
        const content = readAssistant(message, path, dropped);
        for (const block of content) if (block.type === "tool_call") calls.set(block.id, block);
        return { role: "assistant", content };
      }
      case "tool": {
        const call = calls.get(message.tool_call_id);
        return {
          role: "tool",
          callId: message.tool_call_id,
          name: message.name ?? call?.name ?? null,
          content: readContent(message.content ?? "", `${path}.content`, dropped),
          isError: false,
          ...(call?.kind === "custom" ? { kind: "custom" as const } : {}),
        };
      }
      case "function":
        throw invalid(`${path}.role`, "function messages are the legacy form of tool results; send role tool");
    }
  });
}

/** Reasoning, text, refusal, calls: the order in which a flat message was sampled. */
function readAssistant(message: Extract<ChatMessage, { role: "assistant" }>, path: string, dropped: Dropped): readonly AnswerBlock[] {
  if (message.function_call) throw invalid(`${path}.function_call`, "the legacy form of tool_calls; send tool_calls");
  if (message.audio) throw invalid(`${path}.audio`, "audio is not supported");
  dropped.fields(message, "messages[]", ["name", "annotations", "reasoning_details"]);
  const blocks: AnswerBlock[] = [];
  // The same text under two names: servers differ in what they call it.
  const reasoning = message.reasoning_content || message.reasoning;
  if (reasoning) blocks.push({ type: "reasoning", text: reasoning, signature: null });
  if (message.reasoning && message.reasoning !== reasoning) dropped.add("messages[].reasoning", "reasoning_content says something else");
  for (const part of typeof message.content === "string" ? [{ type: "text" as const, text: message.content }] : (message.content ?? [])) {
    if (part.type === "refusal") blocks.push({ type: "refusal", text: part.refusal });
    else {
      dropped.fields(part, "messages[].content[]", ["cache_control", "prompt_cache_breakpoint"]);
      if (part.text !== "") blocks.push({ type: "text", text: part.text });
    }
  }
  if (message.refusal) blocks.push({ type: "refusal", text: message.refusal });
  for (const [index, call] of (message.tool_calls ?? []).entries()) {
    if (call.function && call.type !== "custom") blocks.push({ type: "tool_call", id: call.id, name: call.function.name, arguments: argumentsText(call.function.arguments ?? "") });
    else if (call.custom && call.type === "custom") blocks.push({ type: "tool_call", id: call.id, name: call.custom.name, arguments: call.custom.input ?? "", kind: "custom" });
    else throw invalid(`${path}.tool_calls[${index}]`, "a call of type function needs function, one of type custom needs custom");
  }
  return blocks;
}

function readContent(content: string | readonly ChatPart[], path: string, dropped: Dropped): readonly ContentBlock[] {
  if (typeof content === "string") return [{ type: "text", text: content }];
  return content.map((part, index): ContentBlock => {
    if (part.type === "text") {
      dropped.fields(part, "messages[].content[]", ["cache_control", "prompt_cache_breakpoint"]);
      return { type: "text", text: part.text };
    }
    if (part.type !== "image_url") throw invalid(`${path}[${index}]`, `content of type ${part.type} is not supported; send text or image_url`);
    dropped.fields(part, "messages[].content[]", ["cache_control", "prompt_cache_breakpoint"]);
    const { url, detail } = part.image_url as { readonly url: string; readonly detail?: string | null };
    return { type: "image", source: imageSource(url), ...(typeof detail === "string" ? { detail } : {}) };
  });
}

function readTools(request: ChatRequest, dropped: Dropped): { readonly tools: readonly ToolDefinition[]; readonly toolChoice: ToolChoice | null } {
  const tools = (request.tools ?? []).map((tool) => readTool(tool, dropped));
  const choice = request.tool_choice ?? null;
  if (choice === "required" && tools.length === 0) throw invalid("tool_choice", "there are no tools of which one could be called");
  if (choice === null || typeof choice === "string") return { tools, toolChoice: choice === null ? null : { type: choice } };
  if (choice.type !== "allowed_tools") return { tools, toolChoice: { type: "tool", name: knownTool(tools, nameOf(choice), "tool_choice") } };
  const { mode, tools: allowed } = choice.allowed_tools;
  const names = new Set(allowed.map((named, index) => knownTool(tools, nameOf(named), `tool_choice.allowed_tools.tools[${index}]`)));
  // The model is shown only what it may call: nothing else keeps every engine to it.
  return { tools: tools.filter((tool) => names.has(tool.name)), toolChoice: { type: mode } };
}

function readTool(tool: ChatTool, dropped: Dropped): ToolDefinition {
  dropped.fields(tool, "tools[]", ["cache_control"]);
  if (tool.type === "custom") {
    const { name, description, format } = tool.custom;
    return { name, description: description ?? null, parameters: null, kind: "custom", ...(format === undefined || format === null ? {} : { format }) };
  }
  const { name, description, parameters, strict } = tool.function;
  return { name, description: description ?? null, parameters: parameters ?? null, ...(typeof strict === "boolean" ? { strict } : {}) };
}

function nameOf(named: { readonly type: "function"; readonly function: { readonly name: string } } | { readonly type: "custom"; readonly custom: { readonly name: string } }): string {
  return named.type === "function" ? named.function.name : named.custom.name;
}

function knownTool(tools: readonly ToolDefinition[], name: string, field: string): string {
  if (tools.some((tool) => tool.name === name)) return name;
  throw invalid(field, `there is no tool ${JSON.stringify(name)} in tools`);
}

function readSampling(request: ChatRequest, dropped: Dropped): Sampling {
  const limit = request.max_completion_tokens ?? request.max_tokens ?? null;
  if (typeof request.max_tokens === "number" && request.max_tokens !== limit) dropped.add("max_tokens", "max_completion_tokens is given");
  const stop = typeof request.stop === "string" ? [request.stop] : (request.stop ?? []);
  if (stop.includes("")) throw invalid("stop", "an empty sequence is met at once");
  return {
    temperature: request.temperature ?? null,
    topP: request.top_p ?? null,
    topK: request.top_k ?? null,
    minP: request.min_p ?? null,
    maxTokens: limit,
    stop,
    seed: request.seed ?? null,
    presencePenalty: request.presence_penalty ?? null,
    frequencyPenalty: request.frequency_penalty ?? null,
    repetitionPenalty: request.repetition_penalty ?? null,
  };
}

function readFormat(format: ChatRequest["response_format"], dropped: Dropped): TurnRequest["responseFormat"] {
  if (!format || format.type === "text") return null;
  if (format.type === "json_object") return { type: "json_object" };
  const { name, schema, strict } = format.json_schema;
  dropped.fields(format.json_schema, "response_format.json_schema", ["description"]);
  return { type: "json_schema", name: name ?? null, schema: schema ?? null, strict: strict ?? null };
}

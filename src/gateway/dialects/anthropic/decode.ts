/** Anthropic Messages in: a body to the turn that it asks for. */
import { DEFAULT_SAMPLING, type Message, type ToolCallBlock, type ToolChoice, type TurnRequest } from "../../conversation.ts";
import { Dropped, invalid, readBody, unknownFields } from "../read-request.ts";
import { readAssistant, readContent, readTexts } from "./content.ts";
import { IGNORED_FIELDS, messagesRequestSchema, REFUSED_FIELDS, type MessagesRequest, type WireMessage } from "./schema.ts";
import { readTools } from "./tools.ts";

export function decodeMessages(body: unknown): TurnRequest {
  const request = readBody(messagesRequestSchema, body);
  for (const [name, reason] of Object.entries(REFUSED_FIELDS)) {
    const value = request[name];
    if (value !== undefined && value !== null) throw invalid(name, reason);
  }
  if (isPrefilled(request)) throw invalid(`messages[${request.messages.length - 1}].role`, "the last message is the assistant's; answers that begin with a given text are not supported");
  const dropped = new Dropped();
  dropped.fields(request, "", IGNORED_FIELDS);
  if (request.output_config) dropped.fields(request.output_config, "output_config", ["task_budget"]);
  const tools = readTools(request, dropped);
  const format = request.output_config?.format ?? request.output_format;
  return {
    dialect: "anthropic",
    model: request.model,
    messages: [...readSystem(request.system, dropped), ...readMessages(request.messages, dropped)],
    tools,
    ...readToolChoice(request.tool_choice, tools.map((tool) => tool.name)),
    sampling: {
      ...DEFAULT_SAMPLING,
      temperature: request.temperature ?? null,
      topP: request.top_p ?? null,
      topK: request.top_k ?? null,
      maxTokens: request.max_tokens ?? null,
      stop: request.stop_sequences ?? [],
    },
    reasoning: readReasoning(request, dropped),
    responseFormat: format ? { type: "json_schema", name: null, schema: format.schema, strict: null } : null,
    logprobs: null,
    stream: request.stream === true,
    streamUsage: true,
    extra: unknownFields(messagesRequestSchema, request),
    dropped: dropped.list(),
  };
}

/** A count of tokens, which has no limit, may end anywhere. */
function isPrefilled(request: MessagesRequest): boolean {
  return typeof request.max_tokens === "number" && request.messages.at(-1)?.role === "assistant";
}

function readSystem(system: MessagesRequest["system"], dropped: Dropped): readonly Message[] {
  if (system === undefined || system === null || system === "") return [];
  const content = readTexts(system, "system[]", dropped);
  return content.length === 0 ? [] : [{ role: "system", name: "system", content }];
}

function readMessages(messages: readonly WireMessage[], dropped: Dropped): readonly Message[] {
  const calls = new Map<string, ToolCallBlock>();
  const lastUser = messages.findLastIndex((message) => message.role === "user");
  return messages.flatMap((message, index): readonly Message[] => {
    const path = `messages[${index}].content`;
    switch (message.role) {
      case "user":
        return readUser(message.content, path, calls, dropped);
      case "assistant": {
        const content = readAssistant(message.content, path, dropped);
        for (const block of content) if (block.type === "tool_call") calls.set(block.id, block);
        return [{ role: "assistant", content }];
      }
      case "system": {
        // By the API such a message is out of the model's sight from the next user message on; it stays in the list.
        if (message.clear_at === "next_user_message" && index < lastUser) {
          dropped.add("messages[]", "cleared by the user message after it, as its clear_at says");
          return [];
        }
        // Changes of tools are read with the tools.
        const wire = message.content ?? [];
        const texts = typeof wire === "string" ? wire : wire.filter((block) => block.type === "text");
        const content = readTexts(texts, "messages[].content[]", dropped);
        return content.length === 0 ? [] : [{ role: "system", name: "system", content }];
      }
    }
  });
}

/** A user's turn: results of tools come first, as the model's calls want them, then what the user says, each in its order. */
function readUser(content: Extract<WireMessage, { role: "user" }>["content"], path: string, calls: ReadonlyMap<string, ToolCallBlock>, dropped: Dropped): readonly Message[] {
  if (typeof content === "string") return [{ role: "user", content: [{ type: "text", text: content }] }];
  const results: Message[] = [];
  const rest = content.flatMap((block, index) => {
    if (block.type !== "tool_result") return readContent([block], "messages[].content[]", dropped);
    dropped.fields(block, "messages[].content[]", ["cache_control"]);
    const callId = block.tool_use_id;
    if (results.some((result) => result.role === "tool" && result.callId === callId)) throw invalid(`${path}[${index}].tool_use_id`, `a second result of call ${callId}`);
    results.push({
      role: "tool",
      callId,
      name: calls.get(callId)?.name ?? null,
      content: readContent(block.content ?? "", "messages[].content[].content[]", dropped),
      isError: block.is_error === true,
    });
    return [];
  });
  return rest.length === 0 && results.length > 0 ? results : [...results, { role: "user", content: rest }];
}

function readToolChoice(choice: MessagesRequest["tool_choice"], names: readonly string[]): { readonly toolChoice: ToolChoice | null; readonly parallelToolCalls: boolean | null } {
  if (!choice) return { toolChoice: null, parallelToolCalls: null };
  const parallelToolCalls = typeof choice.disable_parallel_tool_use === "boolean" ? !choice.disable_parallel_tool_use : null;
  switch (choice.type) {
    case "auto":
    case "none":
      return { toolChoice: { type: choice.type }, parallelToolCalls };
    case "any":
      if (names.length === 0) throw invalid("tool_choice.type", "there are no tools of which one could be called");
      return { toolChoice: { type: "required" }, parallelToolCalls };
    case "tool":
      if (!names.includes(choice.name)) throw invalid("tool_choice.name", `there is no tool ${JSON.stringify(choice.name)} that can be offered`);
      return { toolChoice: { type: "tool", name: choice.name }, parallelToolCalls };
  }
}

function readReasoning(request: MessagesRequest, dropped: Dropped): TurnRequest["reasoning"] {
  const { thinking } = request;
  const effort = turnEffort(request.messages) ?? request.output_config?.effort ?? null;
  if (!thinking) return effort === null ? null : { enabled: null, effort, budgetTokens: null };
  dropped.fields(thinking, "thinking", ["display", "block_binding"]);
  return { enabled: thinking.type !== "disabled", effort, budgetTokens: thinking.type === "enabled" ? thinking.budget_tokens : null };
}

/** What a system message asks for its own turn: until the user speaks again, results of tools aside. */
function turnEffort(messages: readonly WireMessage[]): string | null {
  for (const message of messages.toReversed()) {
    if (message.role === "system" && message.output_config?.effort) return message.output_config.effort;
    if (message.role === "user" && (typeof message.content === "string" || message.content.some((block) => block.type !== "tool_result"))) return null;
  }
  return null;
}

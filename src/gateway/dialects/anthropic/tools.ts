/** Tools of a Messages request: the harness's own, those that Anthropic defines, and changes of them in the middle of the conversation. */
import type { ToolDefinition } from "../../conversation.ts";
import { invalid, type Dropped } from "../read-request.ts";
import type { MessagesRequest, WireTool, WireTypedTool } from "./schema.ts";

/** Families that run on Anthropic's servers: without them the model has one tool less, and the conversation still means the same. */
const SERVER_TOOLS = ["web_search", "web_fetch", "code_execution", "tool_search_tool", "advisor", "mcp_toolset"];

/** As they stand at the end of the conversation. */
export function readTools(request: MessagesRequest, dropped: Dropped): readonly ToolDefinition[] {
  const offered = new Map<string, ToolDefinition>();
  for (const [index, tool] of (request.tools ?? []).entries()) {
    if (isOwn(tool)) {
      if (offered.has(tool.name)) throw invalid(`tools[${index}].name`, `there is a tool ${JSON.stringify(tool.name)} already`);
      offered.set(tool.name, readTool(tool, dropped));
    } else if (SERVER_TOOLS.some((family) => tool.type.startsWith(family))) dropped.add(`tools(${tool.type})`, "a tool of the provider's own, not offered to the model");
    else throw invalid(`tools[${index}].type`, `${tool.type} is defined by Anthropic for its own models; send it as a custom tool, with input_schema`);
  }
  const removed = new Map<string, ToolDefinition>();
  for (const [index, message] of request.messages.entries()) {
    if (message.role !== "system" || typeof message.content !== "object") continue;
    for (const [position, block] of (message.content ?? []).entries()) {
      if (block.type === "text") continue;
      dropped.fields(block, "messages[].content[]", ["cache_control"]);
      const change = block.tool;
      const name = change.type === "tool_definition" ? change.definition.name : change.name;
      const known = change.type === "tool_definition" ? readTool(change.definition, dropped) : (offered.get(name) ?? removed.get(name));
      if (known === undefined) throw invalid(`messages[${index}].content[${position}].tool.name`, `there is no tool ${JSON.stringify(name)} in tools`);
      if (block.type === "tool_addition") offered.set(name, known);
      else {
        offered.delete(name);
        removed.set(name, known);
      }
    }
  }
  return [...offered.values()];
}

function isOwn(tool: WireTool | WireTypedTool): tool is WireTool {
  return tool.type === undefined || tool.type === null || tool.type === "custom";
}

function readTool(tool: WireTool, dropped: Dropped): ToolDefinition {
  dropped.fields(tool, "tools[]", ["cache_control", "eager_input_streaming", "defer_loading", "input_examples", "allowed_callers"]);
  return { name: tool.name, description: tool.description ?? null, parameters: tool.input_schema, ...(typeof tool.strict === "boolean" ? { strict: tool.strict } : {}) };
}

/** Tools of the Responses API: functions, custom tools, and namespaces of both. Tools that OpenAI's own servers carry out are not offered to the model. */
import { z } from "zod";
import type { ToolChoice, ToolDefinition } from "../../conversation.ts";
import { type Dropped, invalid, readBody, readObject, shown } from "../read-request.ts";

const functionSchema = z.looseObject({
  name: z.string().min(1),
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  strict: z.boolean().nullish(),
});
const customSchema = z.looseObject({ name: z.string().min(1), description: z.string().nullish(), format: z.looseObject({ type: z.string() }).nullish() });
const namespaceSchema = z.looseObject({ name: z.string().min(1), description: z.string().nullish(), tools: z.array(z.unknown()) });

const FUNCTION_FIELDS = new Set(["type", "name", "description", "parameters", "strict"]);
const CUSTOM_FIELDS = new Set(["type", "name", "description", "format"]);
const NAMESPACE_FIELDS = new Set(["type", "name", "description", "tools"]);
/** Known to the API, and built into its models or servers. */
const PROVIDER_TOOLS = /^(web_search|file_search|computer|mcp$|code_interpreter$|image_generation$|local_shell$|shell$|tool_search$|apply_patch$|programmatic_tool_calling$)/;

export function decodeTools(tools: readonly unknown[], path: string, dropped: Dropped): readonly ToolDefinition[] {
  return tools.flatMap((tool, index) => decodeTool(tool, `${path}[${index}]`, dropped, null));
}

function decodeTool(value: unknown, path: string, dropped: Dropped, namespace: { readonly name: string; readonly description: string } | null): readonly ToolDefinition[] {
  const tool = readObject(value, path);
  const type = readBody(z.string(), tool["type"], `${path}.type`);
  const place = namespace === null ? {} : { namespace: namespace.name };
  switch (type) {
    case "function": {
      const { name, description, parameters, strict } = readBody(functionSchema, tool, path);
      dropped.unknown(tool, `${path}(function)`, FUNCTION_FIELDS);
      return [{ name, description: describe(description, namespace), parameters: parameters ?? null, ...(typeof strict === "boolean" ? { strict } : {}), ...place }];
    }
    case "custom": {
      const { name, description, format } = readBody(customSchema, tool, path);
      dropped.unknown(tool, `${path}(custom)`, CUSTOM_FIELDS);
      return [{ name, description: describe(description, namespace), parameters: null, kind: "custom", ...(format ? { format } : {}), ...place }];
    }
    case "namespace": {
      if (namespace !== null) throw invalid(`${path}.type`, "a namespace inside a namespace");
      const inner = readBody(namespaceSchema, tool, path);
      dropped.unknown(tool, `${path}(namespace)`, NAMESPACE_FIELDS);
      return inner.tools.flatMap((entry, index) => decodeTool(entry, `${path}.tools[${index}]`, dropped, { name: inner.name, description: inner.description ?? "" }));
    }
    default:
      if (!PROVIDER_TOOLS.test(type)) throw invalid(`${path}.type`, `no tool of type ${shown(type)} is known`);
      dropped.add(`tools(${type})`, "a tool of the provider's own, not offered to the model");
      return [];
  }
}

/** Conversations tell their tools again as they go on: the last telling holds, at the place of the first. */
export function withoutRepeats(tools: readonly ToolDefinition[]): readonly ToolDefinition[] {
  const byName = new Map<string, ToolDefinition>();
  for (const tool of tools) byName.set(JSON.stringify([tool.namespace, tool.name]), tool);
  return [...byName.values()];
}

/** A namespace has a description and nobody to tell it but its tools. */
function describe(description: string | null | undefined, namespace: { readonly description: string } | null): string | null {
  const own = description ?? "";
  const shared = namespace?.description ?? "";
  if (shared === "") return description ?? null;
  return own === "" ? shared : `${shared}\n\n${own}`;
}

const namedSchema = z.looseObject({ name: z.string().min(1) });
const allowedSchema = z.looseObject({ mode: z.enum(["auto", "required"]), tools: z.array(z.looseObject({ type: z.string(), name: z.string().optional() })) });

/** The choice, and the tools that it leaves: `allowed_tools` narrows them. */
export function decodeToolChoice(value: unknown, tools: readonly ToolDefinition[]): { readonly choice: ToolChoice | null; readonly tools: readonly ToolDefinition[] } {
  if (value === undefined || value === null) return { choice: null, tools };
  if (value === "auto" || value === "none" || value === "required") return { choice: { type: value }, tools };
  if (typeof value === "string") throw invalid("tool_choice", `${shown(value)} is not one of auto, none, required`);
  const choice = readObject(value, "tool_choice");
  switch (choice["type"]) {
    case "function":
    case "custom": {
      const { name } = readBody(namedSchema, choice, "tool_choice");
      if (!tools.some((tool) => tool.name === name)) throw invalid("tool_choice.name", `there is no tool ${shown(name)}`);
      return { choice: { type: "tool", name }, tools };
    }
    case "allowed_tools": {
      const { mode, tools: allowed } = readBody(allowedSchema, choice, "tool_choice");
      const names = new Set(allowed.map(({ name, type }, index) => {
        if (name === undefined) throw invalid(`tool_choice.tools[${index}]`, `tools of type ${shown(type)} cannot be chosen here`);
        return name;
      }));
      return { choice: { type: mode }, tools: tools.filter(({ name }) => names.has(name)) };
    }
    default:
      throw invalid("tool_choice.type", `${shown(choice["type"])} cannot be chosen here`);
  }
}

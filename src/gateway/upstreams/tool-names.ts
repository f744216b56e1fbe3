/**
 * Tools as plain functions, which is all that inference servers know: a namespaced tool becomes `namespace__name`, a custom tool a function with one string `input`.
 * The way back is a look-up among the request's own tools, so a name that merely looks composed stays as it is.
 */
import type { ToolCallBlock, ToolDefinition } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";

export interface WireTool {
  readonly type: "function";
  readonly function: { readonly name: string; readonly description?: string; readonly parameters?: unknown; readonly strict?: boolean };
}

const CUSTOM_PARAMETERS = { type: "object", properties: { input: { type: "string" } }, required: ["input"], additionalProperties: false } as const;

export function wireName(tool: { readonly name: string; readonly namespace?: string }): string {
  return tool.namespace === undefined ? tool.name : `${tool.namespace}__${tool.name}`;
}

/** Throws `invalid_request` where two tools would have one name. */
export function wireTools(tools: readonly ToolDefinition[]): readonly WireTool[] {
  const seen = new Set<string>();
  return tools.map((tool) => {
    const name = wireName(tool);
    if (seen.has(name)) throw new GatewayFailure("invalid_request", `Two tools are called ${name} once namespaces are part of the name.`, { field: "tools" });
    seen.add(name);
    const description = tool.kind === "custom" ? customDescription(tool) : tool.description;
    const parameters = tool.kind === "custom" ? CUSTOM_PARAMETERS : (tool.parameters ?? { type: "object", properties: {} });
    const details = { name, ...(description === null ? {} : { description }), parameters };
    return { type: "function", function: tool.strict === undefined ? details : { ...details, strict: tool.strict } };
  });
}

/** What a grammar says about the input is kept as words: no server takes it for a function. */
function customDescription(tool: ToolDefinition): string | null {
  if (tool.format === undefined) return tool.description;
  const { description } = tool;
  const format = `The input has this format: ${JSON.stringify(tool.format)}`;
  return description === null ? format : `${description}\n\n${format}`;
}

/** A call of the history, as the server is to see it. */
export function wireCall(call: ToolCallBlock): { readonly name: string; readonly arguments: string } {
  const name = wireName(call);
  return { name, arguments: call.kind === "custom" ? JSON.stringify({ input: call.arguments }) : call.arguments.trim() === "" ? "{}" : call.arguments };
}

export type ToolIdentity = Pick<ToolCallBlock, "name" | "kind" | "namespace">;

/** Finds the tool that a server's name means. */
export class ToolNames {
  readonly #tools: ReadonlyMap<string, ToolIdentity>;

  constructor(tools: readonly ToolDefinition[]) {
    this.#tools = new Map(tools.flatMap((tool) => (tool.namespace === undefined && tool.kind === undefined ? [] : [[wireName(tool), identity(tool)]])));
  }

  /** Any other name is passed on: that there is no such tool is the harness's to say. */
  find(name: string): ToolIdentity {
    return this.#tools.get(name) ?? { name };
  }
}

function identity({ name, kind, namespace }: ToolDefinition): ToolIdentity {
  return { name, ...(kind === undefined ? {} : { kind }), ...(namespace === undefined ? {} : { namespace }) };
}

/** Tools and the choice among them. Only function declarations reach the model; what Google's servers carry out is not offered. */
import { z } from "zod";
import type { ToolChoice, ToolDefinition } from "../../conversation.ts";
import { type Dropped, invalid, readBody, readList, shown } from "../read-request.ts";
import { jsonSchema } from "./json-schema.ts";
import { camelAt } from "./keys.ts";

const declarationSchema = z.looseObject({ name: z.string().min(1), description: z.string().nullish(), parametersJsonSchema: z.record(z.string(), z.unknown()).nullish() });
const DECLARATION_FIELDS = new Set(["name", "description", "parameters", "parametersJsonSchema"]);
const PROVIDER_TOOLS = new Set([
  "googleSearch",
  "googleSearchRetrieval",
  "codeExecution",
  "urlContext",
  "googleMaps",
  "enterpriseWebSearch",
  "computerUse",
  "fileSearch",
  "retrieval",
  "mcpServers",
  "exaAiSearch",
  "parallelAiSearch",
]);

export function decodeTools(value: unknown, dropped: Dropped): readonly ToolDefinition[] {
  return listAt(value, "tools").flatMap((entry, index) => {
    const path = `tools[${index}]`;
    return Object.entries(camelAt(entry, path)).flatMap(([key, part]) => {
      if (part === null || part === undefined) return [];
      if (key === "functionDeclarations") return listAt(part, `${path}.functionDeclarations`).map((declaration, at) => decodeDeclaration(declaration, `${path}.functionDeclarations[${at}]`, dropped));
      if (!PROVIDER_TOOLS.has(key)) throw invalid(`${path}.${key}`, "no such tool is known");
      dropped.add(`tools(${key})`, "a tool of the provider's own, not offered to the model");
      return [];
    });
  });
}

function decodeDeclaration(value: unknown, path: string, dropped: Dropped): ToolDefinition {
  const declaration = camelAt(value, path);
  const { name, description, parametersJsonSchema } = readBody(declarationSchema, declaration, path);
  dropped.unknown(declaration, path, DECLARATION_FIELDS);
  const { parameters } = declaration;
  if (parameters && parametersJsonSchema) throw invalid(`${path}.parametersJsonSchema`, "is given together with parameters");
  return { name, description: description ?? null, parameters: parametersJsonSchema ?? (parameters ? jsonSchema(parameters, `${path}.parameters`) : null) };
}

const callingSchema = z.looseObject({ mode: z.string().nullish(), allowedFunctionNames: z.array(z.string()).nullish() });
const CALLING_FIELDS = new Set(["mode", "allowedFunctionNames"]);

/** The choice, and the tools that it leaves: `allowedFunctionNames` narrows them. */
export function decodeToolConfig(value: unknown, tools: readonly ToolDefinition[], dropped: Dropped): { readonly choice: ToolChoice | null; readonly tools: readonly ToolDefinition[] } {
  if (value === null || value === undefined) return { choice: null, tools };
  const config = camelAt(value, "toolConfig");
  dropped.unknown(config, "toolConfig", new Set(["functionCallingConfig"]));
  if (!config["functionCallingConfig"]) return { choice: null, tools };
  const path = "toolConfig.functionCallingConfig";
  const calling = camelAt(config["functionCallingConfig"], path);
  dropped.unknown(calling, path, CALLING_FIELDS);
  const { mode, allowedFunctionNames: allowed } = readBody(callingSchema, calling, path);
  const left = allowed?.length ? tools.filter(({ name }) => allowed.includes(name)) : tools;
  switch (mode ?? "MODE_UNSPECIFIED") {
    case "MODE_UNSPECIFIED":
    case "AUTO":
      return { choice: mode === "AUTO" ? { type: "auto" } : null, tools: left };
    case "VALIDATED":
      dropped.add(`${path}.mode(VALIDATED)`, "calls are not held to their schemas; taken as AUTO");
      return { choice: { type: "auto" }, tools: left };
    case "NONE":
      return { choice: { type: "none" }, tools };
    case "ANY": {
      const [only, ...others] = allowed ?? [];
      if (allowed?.length && left.length === 0) throw invalid(`${path}.allowedFunctionNames`, "names no declared function");
      return { choice: only !== undefined && others.length === 0 ? { type: "tool", name: only } : { type: "required" }, tools: left };
    }
    default:
      throw invalid(`${path}.mode`, `${shown(mode)} is not one of AUTO, ANY, NONE, VALIDATED`);
  }
}

/** Left out is empty, as protobuf has it. */
export function listAt(value: unknown, path: string): readonly unknown[] {
  return value === null || value === undefined ? [] : readList(value, path);
}

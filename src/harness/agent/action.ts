/** What an agent can do in its machine, in one form for all tool interfaces that a model may be shown. */

/** Offsets and limits count lines, from 1. Paths are absolute or below the working directory. */
export type Action =
  | { readonly tool: "shell"; readonly command: string; readonly timeoutMs?: number }
  | { readonly tool: "read"; readonly path: string; readonly firstLine?: number; readonly lines?: number }
  | { readonly tool: "write"; readonly path: string; readonly content: string }
  | { readonly tool: "edit"; readonly path: string; readonly old: string; readonly new: string; readonly everywhere?: boolean }
  | { readonly tool: "list"; readonly path?: string }
  | { readonly tool: "search"; readonly pattern: string; readonly path?: string; readonly files?: string }
  | { readonly tool: "finish"; readonly message?: string };

export type ToolName = Action["tool"];

/** The kinds of values that arguments have. `milliseconds` may be shown to a model in other units. */
export type ValueKind = "text" | "count" | "flag" | "milliseconds";

export interface ParameterSpec {
  readonly kind: ValueKind;
  readonly required: boolean;
}

/** Every argument of every tool; the keys are those of `Action`. */
export const TOOLS = {
  shell: { command: { kind: "text", required: true }, timeoutMs: { kind: "milliseconds", required: false } },
  read: { path: { kind: "text", required: true }, firstLine: { kind: "count", required: false }, lines: { kind: "count", required: false } },
  write: { path: { kind: "text", required: true }, content: { kind: "text", required: true } },
  edit: { path: { kind: "text", required: true }, old: { kind: "text", required: true }, new: { kind: "text", required: true }, everywhere: { kind: "flag", required: false } },
  list: { path: { kind: "text", required: false } },
  search: { pattern: { kind: "text", required: true }, path: { kind: "text", required: false }, files: { kind: "text", required: false } },
  finish: { message: { kind: "text", required: false } },
} as const satisfies Record<ToolName, Readonly<Record<string, ParameterSpec>>>;

/** The arguments of a tool with their specifications. */
export function parametersOf(tool: ToolName): readonly (readonly [name: string, spec: ParameterSpec])[] {
  return Object.entries(TOOLS[tool]);
}

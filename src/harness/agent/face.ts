/**
 * The face of a tool: the name, description and arguments under which a model sees it. A face and its inverse are one table, so that what the model calls is exactly what was
 * meant: `readCall(dress(action))` gives the action back, whatever the face.
 */
import type { ToolDefinition } from "../../gateway/conversation.ts";
import { LIMITS } from "../../core/limits.ts";
import { parametersOf, type Action, type ParameterSpec, type ToolName } from "./action.ts";

/** How a value is spelt on the wire. `argv`: a shell command as `["bash", "-lc", command]`. `number_text`: a number in quotes. */
export type Spelling = "plain" | "seconds" | "argv" | "number_text";

export interface ParameterFace {
  /** The argument that it stands for; null: asked of the model (a reason, a description) and without effect. */
  readonly stands: string | null;
  readonly name: string;
  /** Empty: none is shown. */
  readonly description: string;
  readonly spelling: Spelling;
}

export interface ToolFace {
  readonly tool: ToolName;
  readonly name: string;
  readonly description: string;
  /** In the order in which they are shown. Every required argument of the tool is among them. */
  readonly parameters: readonly ParameterFace[];
  /** All arguments lie in an object under this name; null: at the top. */
  readonly wrapper: string | null;
}

export interface SurfaceCall {
  readonly name: string;
  /** JSON text. */
  readonly arguments: string;
}

export type ReadCall = { readonly kind: "action"; readonly action: Action } | { readonly kind: "invalid"; readonly why: string };

/** What the model is shown. */
export function definitionOf(face: ToolFace): ToolDefinition {
  const properties = Object.fromEntries(face.parameters.map((parameter) => [parameter.name, schemaOf(face.tool, parameter)]));
  const required = face.parameters.filter(({ stands }) => specOf(face.tool, stands)?.required === true).map(({ name }) => name);
  const object = { type: "object", properties, required, additionalProperties: false };
  const parameters = face.wrapper === null ? object : { type: "object", properties: { [face.wrapper]: object }, required: [face.wrapper], additionalProperties: false };
  return { name: face.name, description: face.description, parameters };
}

/** The call by which a model would ask for this action. Throws for an action whose tool has no face here. */
export function dress(faces: readonly ToolFace[], action: Action): SurfaceCall {
  const face = faces.find(({ tool }) => tool === action.tool);
  if (face === undefined) throw new Error(`no face shows the tool ${action.tool}`);
  const given = action as unknown as Readonly<Record<string, unknown>>;
  const values = face.parameters.flatMap(({ stands, name, spelling }) => {
    const value = stands === null ? undefined : given[stands];
    return value === undefined ? [] : [[name, spell(value as string | number | boolean, spelling)] as const];
  });
  const object = Object.fromEntries(values);
  return { name: face.name, arguments: JSON.stringify(face.wrapper === null ? object : { [face.wrapper]: object }) };
}

/** The action that a call asks for. What a model sends is data: anything else becomes a sentence that it can act on. */
export function readCall(faces: readonly ToolFace[], call: SurfaceCall): ReadCall {
  const face = faces.find(({ name }) => name === call.name);
  if (face === undefined) return invalid(`There is no tool named ${JSON.stringify(call.name.slice(0, 100))}; the tools are ${faces.map(({ name }) => name).join(", ")}.`);
  let value: unknown;
  try {
    value = JSON.parse(call.arguments.trim() === "" ? "{}" : call.arguments);
  } catch {
    return invalid(`The arguments are not valid JSON. ${exampleOf(face)}`);
  }
  const given = face.wrapper === null ? value : isRecord(value) ? value[face.wrapper] : undefined;
  if (!isRecord(given)) return invalid(`The arguments must be a JSON object${face.wrapper === null ? "" : ` with an object under ${JSON.stringify(face.wrapper)}`}. ${exampleOf(face)}`);
  const action: Record<string, unknown> = { tool: face.tool };
  for (const { stands, name, spelling } of face.parameters) {
    const spec = specOf(face.tool, stands);
    // Own properties only: a model may call an argument `constructor`.
    const raw = Object.hasOwn(given, name) ? given[name] : undefined;
    if (spec === undefined || stands === null) continue;
    if (raw === undefined || raw === null) {
      if (spec.required) return invalid(`The argument ${JSON.stringify(name)} is missing. ${exampleOf(face)}`);
      continue;
    }
    const read = readValue(raw, spec, spelling);
    if (read === undefined) return invalid(`The argument ${JSON.stringify(name)} must be ${wanted(spec, spelling)}. ${exampleOf(face)}`);
    action[stands] = read;
  }
  const why = refusal(action);
  // Every argument was read by the specification of its tool.
  return why === null ? { kind: "action", action: action as unknown as Action } : invalid(why);
}

function refusal(action: Readonly<Record<string, unknown>>): string | null {
  for (const value of Object.values(action)) if (typeof value === "string" && value.includes("\0")) return "An argument contains a NUL character, which neither commands nor paths can.";
  const { command } = action;
  if (typeof command !== "string") return null;
  if (command.trim() === "") return "The command is empty.";
  return Buffer.byteLength(command) > LIMITS.agentCommandBytes ? `The command is longer than ${LIMITS.agentCommandBytes} bytes.` : null;
}

function spell(value: string | number | boolean, spelling: Spelling): unknown {
  switch (spelling) {
    case "plain":
      return value;
    case "seconds":
      return Number(value) / 1000;
    case "argv":
      return ["bash", "-lc", value];
    case "number_text":
      return String(value);
  }
}

function readValue(raw: unknown, { kind }: ParameterSpec, spelling: Spelling): string | number | boolean | undefined {
  const value = spelling === "argv" && Array.isArray(raw) ? commandOf(raw) : raw;
  switch (kind) {
    case "text":
      return typeof value === "string" ? value : undefined;
    case "flag":
      return typeof value === "boolean" ? value : value === "true" ? true : value === "false" ? false : undefined;
    case "count":
    case "milliseconds": {
      // Models put numbers in quotes whether they are asked to or not.
      const number = typeof value === "number" ? value : typeof value === "string" && /^\d+(\.\d+)?$/.test(value) ? Number(value) : Number.NaN;
      const scaled = spelling === "seconds" ? Math.round(number * 1000) : number;
      return Number.isSafeInteger(scaled) && scaled >= 0 ? scaled : undefined;
    }
  }
}

/** `["bash", "-lc", command]` is the command; any other argv is put together as words. */
function commandOf(argv: readonly unknown[]): string | undefined {
  if (argv.length === 0 || !argv.every((word) => typeof word === "string")) return undefined;
  const [shell = "", flags = "", script] = argv;
  if (/^(\/(usr\/)?bin\/)?(ba)?sh$/.test(shell) && /^-[a-z]*c$/.test(flags) && script !== undefined && argv.length === 3) return script;
  return argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

function schemaOf(tool: ToolName, { stands, description, spelling }: ParameterFace): unknown {
  const spec = specOf(tool, stands);
  const type = spec === undefined ? { type: "string" } : typeOf(spec, spelling);
  return description === "" ? type : { ...type, description };
}

function typeOf({ kind }: ParameterSpec, spelling: Spelling): Readonly<Record<string, unknown>> {
  if (spelling === "argv") return { type: "array", items: { type: "string" } };
  if (spelling === "number_text") return { type: "string" };
  switch (kind) {
    case "text":
      return { type: "string" };
    case "flag":
      return { type: "boolean" };
    case "count":
      return { type: "integer" };
    case "milliseconds":
      return { type: spelling === "seconds" ? "number" : "integer" };
  }
}

function wanted({ kind }: ParameterSpec, spelling: Spelling): string {
  if (spelling === "argv") return 'a list of words such as ["bash", "-lc", "ls"]';
  return { text: "a string", flag: "true or false", count: "a whole number", milliseconds: spelling === "seconds" ? "a number of seconds" : "a whole number of milliseconds" }[kind];
}

/** What a valid call looks like, for models that sent another. */
function exampleOf(face: ToolFace): string {
  const sample = Object.fromEntries(
    face.parameters.flatMap(({ stands, name, spelling }) => {
      const spec = specOf(face.tool, stands);
      return spec?.required === true ? [[name, spell("...", spelling)]] : [];
    }),
  );
  return `Send an object such as ${JSON.stringify(face.wrapper === null ? sample : { [face.wrapper]: sample })}.`;
}

function specOf(tool: ToolName, stands: string | null): ParameterSpec | undefined {
  return stands === null ? undefined : parametersOf(tool).find(([name]) => name === stands)?.[1];
}

function invalid(why: string): ReadCall {
  return { kind: "invalid", why };
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

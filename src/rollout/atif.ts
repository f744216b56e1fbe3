/**
 * A rollout as an ATIF v1.7 trajectory (Agent Trajectory Interchange Format, the RFC of the Harbor project), made from nothing but its records.
 *
 * One system or user message is one step; one answer of the model is one agent step that holds its tool calls, their results, and the tokens of its call. A harness
 * without a model (oracle, script) makes agent steps with `llm_call_count` 0. Absent values are left out, never null; strings are valid Unicode.
 *
 * What ATIF has no field for (outcome, reward, task, seed, exit codes) is in the `extra` objects.
 */
import { z } from "zod";
import type { Call } from "../gateway/call.ts";
import type { ToolDefinition } from "../gateway/conversation.ts";
import type { CommandRecord } from "../harness/harness.ts";
import type { SpokenMessage } from "./spoken-messages.ts";

/** A recorded command with its output as text, where it is wanted in the trajectory. */
export interface AtifCommand extends Omit<CommandRecord, "stdout" | "stderr"> {
  readonly stdout?: string;
  readonly stderr?: string;
}

export interface AtifInput {
  readonly rollout: string;
  readonly agent: { readonly name: string; readonly version: string; readonly settings: Readonly<Record<string, unknown>> };
  readonly model: string | null;
  /** For rollouts whose harness held no conversation. */
  readonly instruction: string;
  readonly messages: readonly SpokenMessage[];
  /** Of the model, all of them. */
  readonly calls: readonly Call[];
  /** What the model could call. */
  readonly tools: readonly ToolDefinition[];
  readonly commands: readonly AtifCommand[];
  /** Of the rollout: run, task, task digest, attempt, seed, harness... */
  readonly facts: Readonly<Record<string, unknown>>;
  /** How it ended: outcome, reward, rewards, stop reason, seconds... */
  readonly end: Readonly<Record<string, unknown>>;
}

type Json = Record<string, unknown>;

/** A value that `JSON.stringify` turns into a valid trajectory. */
export function atifTrajectory(input: AtifInput): Json {
  const talked = conversation(input);
  // A trajectory has at least one step.
  const steps = talked.length > 0 ? talked : [userStep(input.instruction), ...input.commands.map(scriptedStep)];
  const usages = input.calls.map((call) => call.answer?.usage ?? null).filter((usage) => usage !== null);
  const tools = input.tools.map(({ name, description, parameters }) => ({ type: "function", function: compact({ name, description, parameters }) }));
  return wellFormed(
    compact({
      schema_version: "ATIF-v1.7",
      session_id: input.rollout,
      trajectory_id: input.rollout,
      agent: compact({
        name: input.agent.name,
        version: input.agent.version,
        model_name: input.model,
        tool_definitions: tools.length === 0 ? undefined : tools,
        extra: { settings: input.agent.settings },
      }),
      steps: steps.map((step, index) => ({ step_id: index + 1, ...step })),
      final_metrics: compact({
        total_prompt_tokens: usages.length === 0 ? undefined : usages.reduce((total, usage) => total + usage.promptTokens, 0),
        total_completion_tokens: usages.length === 0 ? undefined : usages.reduce((total, usage) => total + usage.completionTokens, 0),
        total_steps: steps.length,
        extra: compact(input.end),
      }),
      extra: compact(input.facts),
    }),
  );
}

function conversation(input: AtifInput): Json[] {
  const steps: Json[] = [];
  let results: Json[] | null = null;
  let commands = 0;
  const answering = new Map(input.calls.map((call) => [call.number, call]));
  let ids = new Set<string>();
  for (const message of input.messages) {
    if (message.role === "tool") {
      // A result belongs to the agent step before it; an id that the step does not have may not be named.
      const id = message.toolCallId;
      results?.push(compact({ source_call_id: id !== undefined && ids.has(id) ? id : undefined, content: text(message.content) }));
      continue;
    }
    if (message.role !== "assistant") {
      steps.push({ timestamp: message.at, source: message.role, message: text(message.content) });
      results = null;
      continue;
    }
    const calls = readToolCalls(message.toolCalls);
    ids = new Set(calls.map((call) => call.id));
    results = [];
    const toolCalls = calls.map((call) => {
      const next = input.commands[commands];
      const ran = next !== undefined && next.command === call.arguments["command"] ? next : undefined;
      if (ran !== undefined) commands++;
      return compact({ tool_call_id: call.id, function_name: call.name, arguments: call.arguments, extra: ran === undefined ? undefined : commandFacts(ran) });
    });
    steps.push({
      ...agentStep(message, answering.get(message.call ?? 0), input.model),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls, observation: { results } }),
    });
  }
  return steps;
}

function agentStep(message: SpokenMessage, call: Call | undefined, model: string | null): Json {
  const reasoning = (call?.answer?.blocks ?? []).map((block) => (block.type === "reasoning" ? block.text : "")).join("");
  return compact({
    timestamp: message.at,
    source: "agent",
    model_name: model,
    message: text(message.content),
    reasoning_content: reasoning === "" ? undefined : reasoning,
    metrics: call === undefined ? undefined : metrics(call),
    llm_call_count: 1,
  });
}

function metrics({ answer, tokens, durationMs }: Call): Json {
  return compact({
    prompt_tokens: answer?.usage?.promptTokens,
    completion_tokens: answer?.usage?.completionTokens,
    cached_tokens: answer?.usage?.cachedTokens,
    prompt_token_ids: tokens?.promptIds,
    completion_token_ids: tokens?.completionIds,
    logprobs: tokens?.logprobs,
    extra: { duration_ms: durationMs },
  });
}

function userStep(instruction: string): Json {
  return { source: "user", message: instruction };
}

function scriptedStep(command: AtifCommand, index: number): Json {
  const id = `command-${index + 1}`;
  const shown = typeof command.command === "string" ? command.command : command.command.join(" ");
  return {
    timestamp: command.at,
    source: "agent",
    message: "",
    tool_calls: [{ tool_call_id: id, function_name: "bash", arguments: { command: shown }, extra: commandFacts(command) }],
    observation: { results: [{ source_call_id: id, content: (command.stdout ?? "") + (command.stderr ?? "") }] },
    llm_call_count: 0,
  };
}

function commandFacts(command: AtifCommand): Json {
  return compact({
    exit_code: command.code,
    ended: command.ended,
    cause: command.cause,
    duration_ms: command.durationMs,
    stdout_bytes: command.stdoutBytes,
    stderr_bytes: command.stderrBytes,
  });
}

const toolCallSchema = z.object({ id: z.string(), function: z.object({ name: z.string(), arguments: z.string() }) });

function readToolCalls(value: unknown): { readonly id: string; readonly name: string; readonly arguments: Json }[] {
  return list(value).flatMap((call) => {
    const parsed = toolCallSchema.safeParse(call);
    if (!parsed.success) return [];
    return [{ id: parsed.data.id, name: parsed.data.function.name, arguments: parseArguments(parsed.data.function.arguments) }];
  });
}

function parseArguments(source: string): Json {
  try {
    const value: unknown = JSON.parse(source);
    if (isRecord(value)) return value;
  } catch {
    // Falls through to the wrapped form.
  }
  return { invalid_arguments: source };
}

function text(content: unknown): string {
  if (typeof content === "string") return content;
  return content === null || content === undefined ? "" : JSON.stringify(content);
}

function isRecord(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function compact(value: Readonly<Json>): Json {
  return Object.fromEntries(Object.entries(value).filter(([, entry]) => entry !== undefined && entry !== null));
}

/** Readers in other languages refuse halves of surrogate pairs, which models and commands can produce. */
function wellFormed(value: Json): Json {
  return mapStrings(value, (part) => (/[\ud800-\udfff]/.test(part) ? Buffer.from(part, "utf8").toString("utf8") : part)) as Json;
}

function mapStrings(value: unknown, map: (text: string) => string): unknown {
  if (typeof value === "string") return map(value);
  // Token arrays are the bulk and hold no strings.
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((entry) => mapStrings(entry, map));
  if (!isRecord(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, entry]) => [map(key), mapStrings(entry, map)]));
}

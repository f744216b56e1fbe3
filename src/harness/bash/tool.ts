/** The one tool of the bash harness: its schema, the reading of its arguments, and what the model is told about a command that ran. */
import { LIMITS } from "../../core/limits.ts";
import type { ToolDefinition } from "../../gateway/conversation.ts";
import type { CommandResult } from "../command.ts";

export const SYSTEM_PROMPT = `You work on a task in a Linux machine of your own. The bash tool runs commands in it; there is no other way to act. Nobody answers questions: decide for yourself and carry the task through.
Look before you change things, and check your work before you stop. When the task is done, answer without a tool call.`;

export function toolDefinition(kind: "bash" | "sh", commandMs: number): ToolDefinition {
  return {
    name: "bash",
    description:
      `Runs a command with ${kind} and returns its exit code and output (stdout and stderr together). The working directory${kind === "bash" ? ", exported variables and functions" : " and exported variables"} ` +
      `are kept between calls. Input is not interactive. A command that takes longer than ${Math.round(commandMs / 1000)} seconds is killed; start servers and other long work in the background.`,
    parameters: {
      type: "object",
      properties: { command: { type: "string", description: `The command, as a script for ${kind}. It may have several lines.` } },
      required: ["command"],
      additionalProperties: false,
    },
  };
}

export type ParsedCall = { readonly kind: "command"; readonly command: string } | { readonly kind: "invalid"; readonly why: string };

/** What a model sends is data: anything that is no command becomes a sentence that it can act on. */
export function parseCall(name: string, text: string): ParsedCall {
  if (name !== "bash") return invalid(`There is no tool named ${JSON.stringify(name.slice(0, 100))}; the only tool is bash.`);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return invalid('The arguments are not valid JSON. Send an object such as {"command": "ls"}.');
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return invalid('The arguments must be a JSON object such as {"command": "ls"}.');
  const command: unknown = "command" in value ? value.command : undefined;
  if (typeof command !== "string") return invalid('The arguments need the field "command" with a string, such as {"command": "ls"}.');
  if (command.trim() === "") return invalid("The command is empty.");
  if (command.includes("\0")) return invalid("The command contains a NUL character, which no command can.");
  if (Buffer.byteLength(command) > LIMITS.agentCommandBytes) return invalid(`The command is longer than ${LIMITS.agentCommandBytes} bytes.`);
  return { kind: "command", command };
}

function invalid(why: string): ParsedCall {
  return { kind: "invalid", why };
}

/**
 * The status comes first, in a line that no output can stand before, then the output as text with U+FFFD for bytes that are no UTF-8. `timeoutMs`: what the command was
 * allowed.
 */
export function describeResult(result: CommandResult, timeoutMs: number): string {
  const output = new TextDecoder("utf-8", { ignoreBOM: true }).decode(result.stdout) + new TextDecoder("utf-8", { ignoreBOM: true }).decode(result.stderr);
  return `${statusOf(result, timeoutMs)}\n${output === "" ? "(no output)" : output}`;
}

function statusOf({ exit }: CommandResult, timeoutMs: number): string {
  const notes: string[] = [];
  if (exit.cause === "oom_killed") notes.push("a process was killed because the machine's memory limit was reached");
  if (exit.cause === "pids") notes.push("the machine's limit of processes was reached");
  if (exit.cause === "disk_full") notes.push("the machine's disk is full");
  const because = notes.length === 0 ? "" : ` (${notes.join("; ")})`;
  if (exit.ended === "timed_out") return `Killed: the command took longer than ${Math.round(timeoutMs / 1000)} seconds. Its output until then follows.${because}`;
  return `Exit code: ${exit.code}${because}`;
}

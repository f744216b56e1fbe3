/** Reads the one command of an answer that speaks text only. */
import { LIMITS } from "../../core/limits.ts";

export type Fenced = { readonly kind: "command"; readonly command: string } | { readonly kind: "none" } | { readonly kind: "invalid"; readonly why: string };

const FENCE = /^[ \t]*```[ \t]*(?:bash|sh|shell)[ \t]*\r?\n([\s\S]*?)^[ \t]*```[ \t]*$/gm;
const OPENING = /^[ \t]*```[ \t]*(?:bash|sh|shell)[ \t]*$/m;

export function fencedCommand(text: string): Fenced {
  const commands = [...text.matchAll(FENCE)].map(([, command = ""]) => command);
  const [command] = commands;
  if (command === undefined) return OPENING.test(text) ? { kind: "invalid", why: "The block is not closed with ``` on a line of its own." } : { kind: "none" };
  if (commands.length > 1) return { kind: "invalid", why: `The answer has ${commands.length} blocks with commands; give exactly one.` };
  if (command.trim() === "") return { kind: "invalid", why: "The command is empty." };
  if (command.includes("\0")) return { kind: "invalid", why: "The command contains a NUL character, which no command can." };
  if (Buffer.byteLength(command) > LIMITS.agentCommandBytes) return { kind: "invalid", why: `The command is longer than ${LIMITS.agentCommandBytes} bytes.` };
  return { kind: "command", command };
}

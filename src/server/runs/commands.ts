/** The commands of a rollout: their list from `commands.jsonl`, their output from the files beside it. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { CommandView } from "./contract/rollout.ts";
import { readRange } from "./rollout-files.ts";

const commandLineSchema = z.looseObject({
  number: z.int().nonnegative(),
  at: z.string(),
  command: z.union([z.string(), z.array(z.string())]),
  code: z.number().nullable().default(null),
  ended: z.string().default(""),
  cause: z.unknown().default(null),
  durationMs: z.number().default(0),
  stdoutBytes: z.int().nonnegative().default(0),
  stderrBytes: z.int().nonnegative().default(0),
});

/** A command with its whole text and without its output. */
export interface CommandHead {
  readonly number: number;
  readonly at: string;
  readonly command: string;
  readonly code: number | null;
  readonly ended: string;
  readonly cause: unknown;
  readonly durationMs: number;
  readonly stdoutBytes: number;
  readonly stderrBytes: number;
}

const COMMAND_CHARACTERS = 16_384;
/** Of each stream of each command in a list. */
const OUTPUT_BYTES = 4096;

export async function readCommands(directory: string): Promise<readonly CommandHead[]> {
  const text = await readFile(join(directory, "commands.jsonl"), "utf8").catch(() => "");
  return text.split("\n").flatMap((line) => {
    if (line === "") return [];
    try {
      const parsed = commandLineSchema.safeParse(JSON.parse(line));
      return parsed.success ? [{ ...parsed.data, command: typeof parsed.data.command === "string" ? parsed.data.command : parsed.data.command.join(" ") }] : [];
    } catch {
      // A torn last line.
      return [];
    }
  });
}

export async function shownCommand(directory: string, head: CommandHead): Promise<CommandView> {
  const [stdout, stderr] = await Promise.all([outputOf(directory, head.number, "stdout"), outputOf(directory, head.number, "stderr")]);
  return {
    number: head.number,
    at: head.at,
    command: head.command.slice(0, COMMAND_CHARACTERS),
    characters: head.command.length,
    code: head.code,
    ended: head.ended,
    cause: head.cause,
    durationMs: head.durationMs,
    stdoutBytes: head.stdoutBytes,
    stderrBytes: head.stderrBytes,
    stdout: stdout.text,
    stderr: stderr.text,
    stdoutKept: stdout.bytes,
    stderrKept: stderr.bytes,
  };
}

export function outputName(number: number, stream: "stdout" | "stderr"): string {
  return `commands/${String(number).padStart(4, "0")}-${stream}`;
}

async function outputOf(directory: string, number: number, stream: "stdout" | "stderr"): Promise<{ readonly text: string; readonly bytes: number }> {
  const range = await readRange(directory, outputName(number, stream), 0, OUTPUT_BYTES);
  return range === null ? { text: "", bytes: 0 } : { text: range.bytes.toString("utf8"), bytes: range.total };
}

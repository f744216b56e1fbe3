/**
 * What a rollout's directory says, read once for each state of its files: calls without their tokens, how they hang together, the conversation, the commands. The last that were
 * looked at stay in memory.
 */
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Call } from "../../gateway/call.ts";
import { readCallHeads } from "../../gateway/log/read-calls.ts";
import { buildTrace, type Trace } from "../../gateway/trace/trace.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import { messagesOf, type SpokenView } from "./conversation.ts";
import { readCommands, type CommandHead } from "./commands.ts";

/** A call of which the token arrays are left out, because they outweigh everything else. */
export interface CallHead extends Omit<Call, "tokens"> {
  readonly tokens: null;
  readonly promptTokens: number | null;
  readonly completionTokens: number | null;
  readonly versions: readonly string[];
}

export interface RolloutRecord {
  readonly directory: string;
  readonly version: string;
  readonly instruction: string | null;
  readonly calls: readonly CallHead[];
  readonly trace: Trace;
  readonly messages: readonly SpokenView[];
  readonly transcript: readonly unknown[];
  readonly commands: readonly CommandHead[];
  /** Why the calls cannot be read; then there are none here. */
  readonly damage: string | null;
}

/** Files whose sizes make up the version. */
const FILES = ["calls.jsonl", "transcript.jsonl", "commands.jsonl", "instruction.md", "verdict.json", "artifacts.json", "notes.txt", "result.json", "verifier/test-stdout.txt", "workspace.tar"] as const;

export class RecordStore {
  readonly #records = new Map<string, Promise<RolloutRecord>>();
  readonly #versions = new Map<string, string>();

  async of(directory: string): Promise<RolloutRecord> {
    const version = await versionOf(directory);
    if (this.#versions.get(directory) !== version) this.#records.delete(directory);
    const record = this.#records.get(directory) ?? read(directory, version);
    this.#records.delete(directory);
    this.#records.set(directory, record);
    this.#versions.set(directory, version);
    for (const oldest of this.#records.keys()) {
      if (this.#records.size <= LIMITS.viewedRecords) break;
      this.#records.delete(oldest);
      this.#versions.delete(oldest);
    }
    return record;
  }
}

/** Changes whenever a file of the rollout does. */
export async function versionOf(directory: string): Promise<string> {
  const sizes = await Promise.all(
    FILES.map((name) =>
      stat(join(directory, name)).then(
        ({ size }) => size.toString(36),
        () => "",
      ),
    ),
  );
  return sizes.join(".");
}

async function read(directory: string, version: string): Promise<RolloutRecord> {
  const instruction = await readFile(join(directory, "instruction.md"), "utf8").catch(() => null);
  const transcript = await readTranscript(directory);
  const commands = await readCommands(directory);
  const common = { directory, version, instruction, transcript, commands };
  try {
    const calls = await readHeads(directory);
    const trace = buildTrace(calls, { turnOf, ...(instruction === null ? {} : { instruction }) });
    return { ...common, calls, trace, messages: messagesOf(calls, trace, transcript), damage: null };
  } catch (error) {
    return { ...common, calls: [], trace: { nodes: [], mainLine: [] }, messages: messagesOf([], { nodes: [], mainLine: [] }, transcript), damage: messageOf(error) };
  }
}

async function readHeads(directory: string): Promise<readonly CallHead[]> {
  const heads: CallHead[] = [];
  for await (const { call, lengths } of readCallHeads(join(directory, "calls.jsonl"))) {
    heads.push({
      ...call,
      tokens: null,
      promptTokens: lengths?.prompt ?? call.answer?.usage?.promptTokens ?? null,
      completionTokens: lengths?.completion ?? call.answer?.usage?.completionTokens ?? null,
      versions: [...new Set(lengths?.versions ?? [])],
    });
  }
  return heads;
}

/** Written line by line by our own recorder; a torn last line is no message. */
async function readTranscript(directory: string): Promise<readonly unknown[]> {
  const text = await readFile(join(directory, "transcript.jsonl"), "utf8").catch(() => "");
  return text.split("\n").flatMap((line) => {
    try {
      return line === "" ? [] : [JSON.parse(line) as unknown];
    } catch {
      return [];
    }
  });
}

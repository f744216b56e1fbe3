/** From a checkpoint back to what a rollout goes on with: its files up to there, the messages, the calls, and what had begun since. */
import { copyFile, cp, mkdir, open, readdir, readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { messageOf, MwError } from "../../core/errors.ts";
import type { RolloutId } from "../../core/ids.ts";
import type { Call } from "../../gateway/call.ts";
import type { Message } from "../../gateway/conversation.ts";
import { readCalls } from "../../gateway/log/read-calls.ts";
import { messageKey } from "../../gateway/trace/message-key.ts";
import { PARENT_FILE, type Parent } from "./parent.ts";
import { readHistory } from "./history.ts";
import { PrefixDigest } from "./prefix-digest.ts";
import type { Checkpoint, CheckpointSource } from "./record.ts";

export interface Restored {
  readonly checkpoint: Checkpoint;
  /** The rollout that this one branches from; null when it goes on with its own work. */
  readonly parent: RolloutId | null;
  readonly messages: readonly Message[];
  /** Calls until the checkpoint, in the order of their ends. */
  readonly calls: readonly Call[];
  readonly answered: Call | null;
  readonly begun: ReadonlySet<number>;
}

/** What cannot be gone on from. The rollout begins anew, and this says why. */
export class CheckpointLost extends MwError {
  constructor(turn: number, why: string, cause?: unknown) {
    super("corrupt", `the checkpoint after turn ${turn} cannot be gone on from: ${why}`, cause === undefined ? {} : { cause });
  }
}

/** Fills the rollout's directory, which is empty. Rejects `CheckpointLost`. */
export async function restoreFiles(directory: string, { checkpoint, parent, directory: of }: CheckpointSource): Promise<Restored> {
  const { turn, files } = checkpoint;
  try {
    const whole: string[] = [];
    for (const candidate of [of, ...(await triesOf(of))]) if (await holds(candidate, files)) whole.push(candidate);
    const [source] = whole;
    if (source === undefined) throw new CheckpointLost(turn, "no directory of the rollout holds its files as they were (some of them are missing or damaged)");
    for (const [name, { bytes }] of Object.entries(files)) await copyHead(join(source, name), join(directory, name), bytes);
    for (const name of ["harness.json", ...(parent === null ? [PARENT_FILE] : [])]) await copyFile(join(source, name), join(directory, name)).catch(ignoreMissing);
    if (parent !== null) await writeFile(join(directory, PARENT_FILE), `${JSON.stringify({ rollout: parent, turn, calls: checkpoint.calls } satisfies Parent)}\n`);
    await copyOutputs(join(source, "commands"), join(directory, "commands"), checkpoint.commands);
    const calls = await callsOf(directory);
    const { messages } = readHistory(await readText(join(directory, "history.jsonl")));
    const since = parent === null ? await happenedSince(whole, checkpoint, messages) : { answered: null, begun: new Set<number>() };
    return { checkpoint, parent, messages, calls, ...since };
  } catch (error) {
    if (error instanceof CheckpointLost || isFull(error)) throw error;
    throw new CheckpointLost(turn, `its files cannot be read (${messageOf(error)})`, error);
  }
}

/** The newest first. */
async function triesOf(directory: string): Promise<readonly string[]> {
  const names = await readdir(join(directory, "tries")).catch(() => []);
  return names.sort((a, b) => Number(b) - Number(a)).map((name) => join(directory, "tries", name));
}

async function holds(directory: string, files: Checkpoint["files"]): Promise<boolean> {
  for (const [name, { bytes, sha256 }] of Object.entries(files)) if ((await new PrefixDigest(join(directory, name)).of(bytes)) !== sha256) return false;
  return true;
}

/** The answer that was recorded behind the checkpoint, and which of its tool calls had begun in any try. */
async function happenedSince(directories: readonly string[], { calls: before, files }: Checkpoint, messages: readonly Message[]): Promise<Pick<Restored, "answered" | "begun">> {
  const keys = messages.map(messageKey).join();
  let answered: Call | null = null;
  const begun = new Set<number>();
  for (const directory of directories) {
    const found = (await callsOf(directory)).find((call) => call.number > before && call.status === "complete" && call.conversation.messages.join() === keys);
    answered ??= found ?? null;
    // The same answer, taken over by a later try.
    if (found === undefined || found.id !== answered?.id) continue;
    const tail = Buffer.from(await readText(join(directory, "history.jsonl"))).subarray(files["history.jsonl"]?.bytes ?? 0).toString("utf8");
    for (const { call, index } of readHistory(tail).acts) if (call === found.number) begun.add(index);
  }
  return { answered, begun };
}

async function callsOf(directory: string): Promise<readonly Call[]> {
  const calls: Call[] = [];
  for await (const call of readCalls(join(directory, "calls.jsonl"))) calls.push(call);
  return calls;
}

async function copyHead(from: string, to: string, bytes: number): Promise<void> {
  const [source, target] = [await open(from, "r"), await open(to, "wx")];
  try {
    const chunk = Buffer.allocUnsafe(Math.min(1 << 18, Math.max(1, bytes)));
    for (let at = 0; at < bytes; ) {
      const { bytesRead } = await source.read(chunk, 0, Math.min(chunk.length, bytes - at), at);
      if (bytesRead === 0) throw new Error(`${from} has become shorter`);
      await target.writeFile(chunk.subarray(0, bytesRead));
      at += bytesRead;
    }
  } finally {
    await source.close();
    await target.close();
  }
}

/** `0001-stdout` and the like. A command without output has none. */
async function copyOutputs(from: string, to: string, commands: number): Promise<void> {
  const names = (await readdir(from).catch(() => [])).filter((name) => Number.parseInt(name, 10) <= commands);
  if (names.length > 0) await mkdir(to, { recursive: true });
  for (const name of names) await cp(join(from, name), join(to, basename(name)));
}

async function readText(path: string): Promise<string> {
  return await readFile(path, "utf8");
}

/** Then it is not the checkpoint's fault. */
function isFull(error: unknown): boolean {
  return ["ENOSPC", "EDQUOT", "EMFILE", "ENFILE"].includes(String((error as NodeJS.ErrnoException).code));
}

function ignoreMissing(error: unknown): void {
  if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
}

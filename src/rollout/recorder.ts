/**
 * What one rollout leaves in its directory, written as it happens:
 *
 *     instruction.md      what the agent was told, byte for byte
 *     transcript.jsonl    the conversation, one message a line
 *     calls.jsonl         model calls with tokens, written by the gateway
 *     history.jsonl       where checkpoints are taken, or another controller may go on with the loop: the conversation as the harness goes on from it, see `checkpoint/history.ts`
 *     commands.jsonl      commands with timing and exit; their output in commands/0001-stdout and -stderr, raw bytes as the agent saw them
 *     notes.txt           remarks of the harness
 *     harness.json        what was drawn for this rollout's harness alone
 *     harness/            session logs of an agent CLI
 *     artifacts/          what the task declares as the agent's product
 *     verifier/           what the verifier wrote
 *     verdict.json        the verdict
 *     result.json         the end in one document
 *
 * Files appear with their first record.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { MwError, messageOf } from "../core/errors.ts";
import { NO_TOKENS, plusTokens, type Call, type Tokens } from "../gateway/call.ts";
import { CallLog } from "../gateway/log/call-log.ts";
import { readCalls } from "../gateway/log/read-calls.ts";
import type { CommandRecord, MessageRecord, Recorder } from "../harness/harness.ts";
import { AppendFile, countLines, cutTornLine, keepLines } from "../store/append-file.ts";
import { writeDurably, type Durability } from "../store/durable.ts";
import { askedIn } from "./asked.ts";
import { readLastTurn, type Alongside, type HistoryEntry, type LastTurn } from "./checkpoint/history.ts";
import { CHECKPOINTED_FILES, type Checkpoint, type CheckpointSource } from "./checkpoint/record.ts";
import { restoreFiles, type Restored } from "./checkpoint/restore.ts";

export interface TakenUp {
  readonly recorder: RolloutRecorder;
  readonly earlier: readonly Call[];
  readonly turn: LastTurn | null;
}

export class RolloutRecorder implements Recorder {
  readonly directory: string;
  /** For the gateway to write to. */
  readonly calls: CallLog;
  readonly #askedBefore: Tokens;
  readonly #durability: Durability;
  readonly #files = new Map<string, AppendFile>();
  #commands: number;
  #messages: number;
  #commandsFolder: Promise<unknown> | null = null;

  /** Makes the directory; what an earlier try left in it moves to `tries/<n>/`. */
  static async open(directory: string, durability: Durability): Promise<RolloutRecorder> {
    await prepare(directory);
    return new RolloutRecorder(directory, durability, null, NO_TOKENS);
  }

  /** The same for a try that goes on in the middle: what was recorded until the checkpoint is there. Rejects `CheckpointLost`. */
  static async goOn(directory: string, durability: Durability, source: CheckpointSource): Promise<{ readonly recorder: RolloutRecorder; readonly restored: Restored }> {
    await prepare(directory);
    const restored = await restoreFiles(directory, source);
    const { calls, commands } = source.checkpoint;
    const before = { calls, ran: commands, told: await countLines(join(directory, "transcript.jsonl")) };
    const recorder = new RolloutRecorder(directory, durability, before, await askedIn(directory, restored.calls));
    if (restored.answered !== null) await recorder.calls.append(restored.answered, null);
    return { recorder, restored };
  }

  /**
   * The same for a try that goes on in its living machine, with all that is recorded of it. `isRunning`: but for the command that is under way (an agent's own is all of its commands), which
   * is recorded when it ends. `earlier`: the calls; `turn`: of a loop of ours that is running.
   */
  static async takeUp(directory: string, durability: Durability, isRunning: boolean): Promise<TakenUp> {
    return await guarded(directory, async () => {
      for (const name of CHECKPOINTED_FILES) await cutTornLine(join(directory, name));
      const [transcript, commands] = [join(directory, "transcript.jsonl"), join(directory, "commands.jsonl")];
      const turn = isRunning ? readLastTurn(await readFile(join(directory, "history.jsonl"), "utf8").catch(ignoreMissing)) : null;
      const { told, ran } = isRunning ? (turn?.alongside ?? { told: 0, ran: 0 }) : { told: await countLines(transcript), ran: await countLines(commands) };
      await keepLines(transcript, told);
      await keepLines(commands, ran);
      const earlier: Call[] = [];
      for await (const call of readCalls(join(directory, "calls.jsonl"))) earlier.push(call);
      const before = { calls: Math.max(0, ...earlier.map(({ number }) => number)), told, ran };
      return { recorder: new RolloutRecorder(directory, durability, before, await askedIn(directory, earlier)), earlier, turn };
    });
  }

  private constructor(directory: string, durability: Durability, before: (Pick<Checkpoint, "calls"> & Alongside) | null, askedBefore: Tokens) {
    this.directory = directory;
    this.#askedBefore = askedBefore;
    this.calls = new CallLog({ path: join(directory, "calls.jsonl"), durability, lastNumber: before?.calls ?? 0 });
    this.#commands = before?.ran ?? 0;
    this.#messages = before?.told ?? 0;
    this.#durability = durability;
  }

  /** Commands until now. */
  get commands(): number {
    return this.#commands;
  }

  /** What the rollout has asked for by itself until now, as far as it is recorded here. */
  get asked(): Tokens {
    return plusTokens(this.#askedBefore, this.calls.tokens);
  }

  history(entry: HistoryEntry): Promise<void> {
    return this.#line("history.jsonl", { ...entry, told: this.#messages, ran: this.#commands } satisfies Alongside);
  }

  message(record: MessageRecord): Promise<void> {
    this.#messages++;
    return this.#line("transcript.jsonl", record);
  }

  async command(record: CommandRecord): Promise<void> {
    const number = String(++this.#commands).padStart(4, "0");
    const { stdout, stderr, ...rest } = record;
    if (stdout.length > 0) await this.#blob(`${number}-stdout`, stdout);
    if (stderr.length > 0) await this.#blob(`${number}-stderr`, stderr);
    await this.#line("commands.jsonl", { number: this.#commands, ...rest });
  }

  drawn(what: unknown): Promise<void> {
    return this.write("harness.json", `${JSON.stringify(what, null, 2)}\n`);
  }

  note(text: string): Promise<void> {
    return this.#append("notes.txt", `${text}\n`);
  }

  keep(name: string, copy: (target: string) => Promise<void>): Promise<void> {
    return guarded(this.directory, async () => {
      const target = join(this.directory, "harness", name);
      await mkdir(dirname(target), { recursive: true });
      // An earlier controller may have died in the middle of it.
      await rm(target, { recursive: true, force: true });
      await copy(target);
    });
  }

  /** Writes a whole document. */
  write(name: string, content: string | Uint8Array): Promise<void> {
    return guarded(this.directory, () => writeDurably(join(this.directory, name), content, this.#durability));
  }

  async close(): Promise<void> {
    await this.calls.close();
    for (const file of this.#files.values()) await file.close();
  }

  #line(name: string, record: unknown): Promise<void> {
    return this.#append(name, `${JSON.stringify(record)}\n`);
  }

  #append(name: string, text: string): Promise<void> {
    const file = this.#files.get(name) ?? new AppendFile({ path: join(this.directory, name), durability: this.#durability });
    this.#files.set(name, file);
    return file.append(text);
  }

  #blob(name: string, bytes: Uint8Array): Promise<void> {
    return guarded(this.directory, async () => {
      this.#commandsFolder ??= mkdir(join(this.directory, "commands"), { recursive: true });
      await this.#commandsFolder;
      await writeFile(join(this.directory, "commands", name), bytes);
    });
  }
}

async function prepare(directory: string): Promise<void> {
  await guarded(directory, async () => {
    await mkdir(directory, { recursive: true });
    await setAside(directory);
  });
}

/** Everything but `tries` itself. */
async function setAside(directory: string): Promise<void> {
  const names = (await readdir(directory)).filter((name) => name !== "tries");
  if (names.length === 0) return;
  const tries = join(directory, "tries");
  await mkdir(tries, { recursive: true });
  const target = join(tries, String((await readdir(tries)).length + 1));
  await mkdir(target);
  for (const name of names) await rename(join(directory, name), join(target, name));
}

function ignoreMissing(error: unknown): string {
  if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
  throw error;
}

/** A full disk is the host's failure, never the agent's. */
export async function guarded<T>(directory: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    const full = code === "ENOSPC" || code === "EDQUOT" || code === "EMFILE" || code === "ENFILE";
    throw new MwError(full ? "host_exhausted" : "sandbox_failed", `cannot record into ${directory}: ${messageOf(error)}`, {
      fix: full ? "free space on the disk that holds the data directory (or raise the limit of open files)" : "check the disk that holds the data directory",
      cause: error,
    });
  }
}

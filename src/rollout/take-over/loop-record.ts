/**
 * What another controller needs to go on with a loop of ours in its living machine, beside the history and the calls in the rollout's own directory:
 *
 *     handover/<rollout>/agent.json      written when the loop begins
 *     handover/<rollout>/command.json    of the tool call under way, written before its command begins
 *     handover/<rollout>/stdout, stderr  what that has said
 *
 * The id of a command follows from its tool call, and the machine forgets it when the call's result is in the history, never before: until then asking for it again starts no second process.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { execIdOf, isId, type ExecId } from "../../core/ids.ts";
import { HandoverLost, type Handover } from "../../harness/handover.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { writeDurably } from "../../store/durable.ts";
import { forgetAgent, makeHandover, writeAgentFacts, type AgentFacts } from "./agent-record.ts";
import { KeptProcess, keptOf } from "./kept-process.ts";

const FILE = "command.json";
/** `at`: wall clock, milliseconds since the epoch. */
const schema = z.object({ exec: z.custom<ExecId>((id) => typeof id === "string" && isId("ex", id)), at: z.number(), plan: z.unknown().optional() });

export class LoopRecord {
  readonly #directory: string;
  readonly #sandbox: Sandbox;
  readonly #now: () => number;
  readonly #facts: () => AgentFacts;
  /** Of an earlier controller: the last command that it began. */
  #earlier: z.infer<typeof schema> | null;
  #command: KeptProcess | null = null;

  /** For a loop that has not begun; `facts` are asked when it does. */
  static async make(directory: string, sandbox: Sandbox, now: () => number, facts: () => AgentFacts): Promise<LoopRecord> {
    await makeHandover(directory);
    return new LoopRecord(directory, sandbox, now, facts, null);
  }

  /** Of a loop that an earlier controller had. `acting`: a tool call was under way. */
  static async takeUp(directory: string, sandbox: Sandbox, now: () => number, facts: AgentFacts, acting: boolean): Promise<LoopRecord> {
    const record = new LoopRecord(directory, sandbox, now, () => facts, await commandOf(directory));
    // It may have died before the machine was told.
    if (!acting) await record.acted();
    return record;
  }

  private constructor(directory: string, sandbox: Sandbox, now: () => number, facts: () => AgentFacts, earlier: z.infer<typeof schema> | null) {
    this.#directory = directory;
    this.#sandbox = sandbox;
    this.#now = now;
    this.#facts = facts;
    this.#earlier = earlier;
  }

  /** From now on another controller may go on with it. Durable when it resolves. */
  async begins(): Promise<void> {
    await writeAgentFacts(this.#directory, this.#facts());
  }

  /** For the command of a tool call. */
  async acting(call: number, index: number): Promise<Handover> {
    const exec = execIdOf(call, index);
    // It died before the machine was told, or before the next command was written down.
    if (this.#earlier !== null && this.#earlier.exec !== exec) await this.acted();
    const earlier = this.#earlier;
    const begun = earlier?.exec === exec ? await keptOf(this.#directory, earlier.at, earlier.plan) : null;
    // A power cut ends the machine, too.
    const begin = (plan: unknown): Promise<void> => writeDurably(join(this.#directory, FILE), `${JSON.stringify({ exec, at: this.#now(), plan } satisfies z.infer<typeof schema>)}\n`, "process");
    return (this.#command = new KeptProcess(this.#directory, exec, begun, begin, { orBegins: true }));
  }

  /** The result of the last tool call is in the history. */
  async acted(): Promise<void> {
    const exec = this.#command?.exec ?? this.#earlier?.exec;
    await this.#command?.close();
    this.#command = this.#earlier = null;
    if (exec === undefined) return;
    const end = { stdout: Number.MAX_SAFE_INTEGER, stderr: Number.MAX_SAFE_INTEGER };
    // What was no command is not there, nor is anything in a machine that is over.
    await this.#sandbox.attach(exec, end).then((ended) => ended.acknowledge()).catch(() => undefined);
  }

  /** The try is over. */
  async remove(): Promise<void> {
    await this.#command?.close();
    await forgetAgent(this.#directory);
  }
}

/** Rejects `HandoverLost` for a record that is damaged: nobody may begin what has begun. */
async function commandOf(directory: string): Promise<z.infer<typeof schema> | null> {
  try {
    return schema.parse(JSON.parse(await readFile(join(directory, FILE), "utf8")));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw new HandoverLost("the record of its command cannot be read", error);
  }
}

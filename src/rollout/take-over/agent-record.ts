/**
 * What another controller needs to go on with an agent whose process outlives this one, and with it the rollout. It lies beside the log, in a directory of its own, because it holds the
 * agent's key to the gateway and what the agent has said, which are nobody's once the try is over:
 *
 *     handover/<rollout>/agent.json        written before the agent's process begins
 *     handover/<rollout>/stdout, stderr    its output as it was read, whole
 *     handover/<rollout>/cleaned.json      what is taken out of its workspace before that is verified, see `clean-record.ts`
 */
import { createReadStream } from "node:fs";
import { mkdir, open, readFile, rm, rmdir, stat, type FileHandle } from "node:fs/promises";
import { dirname, join } from "node:path";
import { z } from "zod";
import { isId, type ExecId, type SandboxId } from "../../core/ids.ts";
import type { BegunAgent, Handover } from "../../harness/handover.ts";
import type { ExecChunk } from "../../sandbox/sandbox.ts";
import { writeDurably } from "../../store/durable.ts";
import { guarded } from "../recorder.ts";

const schema = z.object({
  format: z.literal(1),
  /** Of the rollout, and its machine. */
  try: z.int(),
  sandbox: z.custom<SandboxId>((id) => typeof id === "string" && isId("sbx", id)),
  exec: z.custom<ExecId>((id) => typeof id === "string" && isId("ex", id)),
  /** Of its session at the gateway. */
  token: z.string(),
  /** Wall clock, milliseconds since the epoch: when the process began, and when the agent's time is over. */
  at: z.number(),
  endsAt: z.number(),
  /** CPU time of the machine before; null where nobody counts. */
  cpuMs: z.number().nullable(),
});

export type AgentFacts = Readonly<z.infer<typeof schema>>;

/** Null where none is, or none of this version. */
export async function readAgentFacts(directory: string): Promise<AgentFacts | null> {
  const text = await readFile(join(directory, "agent.json"), "utf8").catch(() => null);
  if (text === null) return null;
  try {
    const parsed = schema.safeParse(JSON.parse(text));
    return parsed.success ? parsed.data : null;
  } catch {
    return null;
  }
}

export class AgentRecord implements Handover {
  readonly exec: ExecId;
  readonly begun: BegunAgent | null;
  readonly #directory: string;
  readonly #facts: () => AgentFacts;
  readonly #files = new Map<ExecChunk["stream"], FileHandle>();

  /** For an agent that has not begun; `facts` are asked when it does. */
  static async make(directory: string, exec: ExecId, facts: () => AgentFacts): Promise<AgentRecord> {
    await rm(directory, { recursive: true, force: true });
    await mkdir(directory, { recursive: true, mode: 0o700 });
    return new AgentRecord(directory, exec, null, facts);
  }

  /** Of one that an earlier controller began. */
  static async takeUp(directory: string, facts: AgentFacts): Promise<AgentRecord> {
    const [stdout, stderr] = [await sizeOf(join(directory, "stdout")), await sizeOf(join(directory, "stderr"))];
    return new AgentRecord(directory, facts.exec, { at: facts.at, offsets: { stdout, stderr }, earlier: () => earlier(directory) }, () => facts);
  }

  private constructor(directory: string, exec: ExecId, begun: BegunAgent | null, facts: () => AgentFacts) {
    this.exec = exec;
    this.begun = begun;
    this.#directory = directory;
    this.#facts = facts;
  }

  async beginning(): Promise<void> {
    // A power cut ends the machine, too.
    await guarded(this.#directory, () => writeDurably(join(this.#directory, "agent.json"), `${JSON.stringify(this.#facts())}\n`, "process"));
  }

  async said({ stream, data }: ExecChunk): Promise<void> {
    await guarded(this.#directory, async () => {
      const file = this.#files.get(stream) ?? (await open(join(this.#directory, stream), "a", 0o600));
      this.#files.set(stream, file);
      await file.writeFile(data);
    });
  }

  /** The try is over. */
  async remove(): Promise<void> {
    for (const file of this.#files.values()) await file.close().catch(() => undefined);
    await forgetAgent(this.#directory);
  }
}

/** Nobody goes on with it. */
export async function forgetAgent(directory: string): Promise<void> {
  await rm(directory, { recursive: true, force: true }).catch(() => undefined);
  // With the last one.
  await rmdir(dirname(directory)).catch(() => undefined);
}

async function* earlier(directory: string): AsyncGenerator<ExecChunk> {
  for (const stream of ["stdout", "stderr"] as const) {
    if ((await sizeOf(join(directory, stream))) === 0) continue;
    for await (const data of createReadStream(join(directory, stream))) yield { stream, data: data as Buffer };
  }
}

async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => null))?.size ?? 0;
}

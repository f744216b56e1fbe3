/**
 * What another controller needs to go on with an agent whose process outlives this one, and with it the rollout. It lies beside the log, in a directory of its own, because it holds the
 * agent's key to the gateway and what the agent has said, which are nobody's once the try is over:
 *
 *     handover/<rollout>/agent.json        written before the agent's process begins
 *     handover/<rollout>/stdout, stderr    its output as it was read, whole
 *     handover/<rollout>/cleaned.json      what is taken out of its workspace before that is verified, see `clean-record.ts`
 *
 * Of an agent whose loop runs in the controller, see `loop-record.ts`.
 */
import { mkdir, readFile, rm, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { z } from "zod";
import { isId, type ExecId, type SandboxId } from "../../core/ids.ts";
import type { BegunProcess } from "../../harness/handover.ts";
import { writeDurably } from "../../store/durable.ts";
import { guarded } from "../recorder.ts";
import { KeptProcess, keptOf } from "./kept-process.ts";

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

/** Of a loop of ours `exec` names nothing: its commands have ids of their own. */
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

/** An empty directory for what is kept of an agent that has not begun. */
export async function makeHandover(directory: string): Promise<void> {
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true, mode: 0o700 });
}

export async function writeAgentFacts(directory: string, facts: AgentFacts): Promise<void> {
  // A power cut ends the machine, too.
  await guarded(directory, () => writeDurably(join(directory, "agent.json"), `${JSON.stringify(facts)}\n`, "process"));
}

/** Nobody goes on with it. */
export async function forgetAgent(directory: string): Promise<void> {
  await rm(directory, { recursive: true, force: true }).catch(() => undefined);
  // With the last one.
  await rmdir(dirname(directory)).catch(() => undefined);
}

export class AgentRecord extends KeptProcess {
  readonly #directory: string;

  /** For an agent that has not begun; `facts` are asked when it does. */
  static async make(directory: string, exec: ExecId, facts: () => AgentFacts): Promise<AgentRecord> {
    await makeHandover(directory);
    return new AgentRecord(directory, exec, null, facts);
  }

  /** Of one that an earlier controller began. */
  static async takeUp(directory: string, facts: AgentFacts): Promise<AgentRecord> {
    return new AgentRecord(directory, facts.exec, await keptOf(directory, facts.at), () => facts);
  }

  private constructor(directory: string, exec: ExecId, begun: BegunProcess | null, facts: () => AgentFacts) {
    super(directory, exec, begun, () => writeAgentFacts(directory, facts()));
    this.#directory = directory;
  }

  /** The try is over. */
  async remove(): Promise<void> {
    await this.close();
    await forgetAgent(this.#directory);
  }
}

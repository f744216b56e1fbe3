/**
 * The harness: the contract between agent and world. A harness drives the model (or plays a script) in one rollout's sandbox and says why it stopped.
 *
 * A bad rollout is data: `run` rejects only for failures of the machinery (as `MwError`), never for what the policy did.
 */
import type { Runtime } from "../core/runtime.ts";
import type { StopReason } from "../core/outcome.ts";
import type { GatewaySession } from "../gateway/session.ts";
import type { ImageProgress } from "../image/image.ts";
import type { LocalImageStore } from "../image/store.ts";
import type { LayerMount, Sandbox } from "../sandbox/sandbox.ts";
import type { ModelEndpoint } from "./cli/endpoint.ts";
import type { Continuity } from "./continuity.ts";
import type { Handover } from "./handover.ts";

export interface Budgets {
  readonly turns: number;
  /** Sampled tokens over the whole rollout. */
  readonly tokens: number | null;
  /** Wall time of the agent. */
  readonly timeMs: number | null;
  /** Wall time of one command. */
  readonly commandMs: number;
  /** Bytes of one command's output that the model sees; what is cut is said. */
  readonly outputBytes: number;
}

/** One command as it ran. Output is what the agent saw, at most the cap. */
export interface CommandRecord {
  readonly at: string;
  readonly command: string | readonly string[];
  readonly code: number;
  readonly ended: string;
  readonly cause: string | null;
  readonly durationMs: number;
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  readonly stdoutBytes: number;
  readonly stderrBytes: number;
}

/** A message of the conversation, in OpenAI chat form, for the transcript. */
export interface MessageRecord {
  readonly at: string;
  readonly role: "system" | "user" | "assistant" | "tool";
  readonly content: unknown;
  readonly toolCalls?: unknown;
  readonly toolCallId?: string;
}

/** Where a harness writes what happens. Each promise resolves when the record is durable. */
export interface Recorder {
  command(record: CommandRecord): Promise<void>;
  message(record: MessageRecord): Promise<void>;
  note(text: string): Promise<void>;
  /** What was drawn for this rollout alone, as JSON. */
  drawn(what: unknown): Promise<void>;
  /** Keeps a file or tree beside the records: `copy` makes it at the host path that it is given, where nothing is yet. */
  keep(name: string, copy: (target: string) => Promise<void>): Promise<void>;
}

export interface HarnessContext {
  readonly sandbox: Sandbox;
  /** Byte for byte what the task says. */
  readonly instruction: string;
  /** Reference solution on the host, for the oracle alone. */
  readonly solution: { readonly directory: string | null; readonly env: Readonly<Record<string, string>> };
  readonly user: string | null;
  readonly workdir: string | null;
  /** Access to the model; null when the run names none. Its calls are recorded by the session itself, and its budget is the rollout's. */
  readonly session: GatewaySession | null;
  /** The rollout's own model API inside the sandbox, for programs that call the model by themselves. */
  readonly endpoint: ModelEndpoint | null;
  readonly budgets: Budgets;
  /** Drawn from the run's seed for this rollout. */
  readonly seed: string;
  readonly recorder: Recorder;
  readonly runtime: Runtime;
  /** Aborted when the rollout is cancelled or the agent's time is over (reason: an `MwError` `cancelled` or `timeout`). */
  readonly signal: AbortSignal;
  /** Of a harness that `continues`, in a rollout that is to be kept between its turns, or whose machine may outlive this controller, or has outlived another. */
  readonly continuity?: Continuity;
  /** Of a harness that is `handedOver`, in a rollout whose machine may outlive this controller, or has outlived another. */
  readonly handover?: Handover;
}

export interface HarnessEnd {
  readonly stopReason: StopReason;
  /** One sentence for people. */
  readonly detail: string;
  readonly turns: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Wall time by what it was spent on, milliseconds. */
  readonly modelMs: number;
  readonly toolMs: number;
}

export interface LayerOptions {
  readonly progress: ImageProgress;
  readonly signal: AbortSignal;
  /** Of the host. */
  readonly env: Readonly<Record<string, string | undefined>>;
}

export interface Harness {
  readonly name: string;
  readonly version: string;
  readonly needsModel: boolean;
  /** Programs in the machine call the model by themselves, so the machine gets a port for it. A model that is called from here is out of the agent's reach. */
  readonly callsFromMachine?: true;
  /** It can go on with another process: between two of its turns with another machine, anywhere with the same. */
  readonly continues?: true;
  /** Its agent is a process of the machine, which goes on without this controller until another one attaches to it. */
  readonly handedOver?: true;
  /** Everything that decides its behaviour, for the run's record. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** Only a harness that says so is given the task's reference solution and its environment. */
  readonly usesSolution?: boolean;
  /** Throws a `MwError` when this harness cannot work on the task at all; called before anything of the task starts. */
  check?(task: Pick<HarnessContext, "solution">): void;
  /** What its machines need over the task's image, topmost first; made when it is not here. Called before a run starts. */
  layers?(images: LocalImageStore, options: LayerOptions): Promise<readonly LayerMount[]>;
  run(context: HarnessContext): Promise<HarnessEnd>;
}

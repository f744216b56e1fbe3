/** A gateway on real sockets in a directory of its own, with sessions whose engine the test plays itself. */
import { mkdtempSync, rmSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newId, type SandboxId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import type { Call } from "../../src/gateway/call.ts";
import type { Answer, AnswerBlock, Delta } from "../../src/gateway/conversation.ts";
import { openGateway, type GatewayOptions } from "../../src/gateway/gateway.ts";
import { CallLog } from "../../src/gateway/log/call-log.ts";
import { readCalls } from "../../src/gateway/log/read-calls.ts";
import type { Gateway, GatewaySession, SessionOptions } from "../../src/gateway/session.ts";
import type { GenerateJob, Generation, Upstream } from "../../src/gateway/upstreams/upstream.ts";

/** Answers calls as the test says. */
export type Play = (job: GenerateJob, number: number) => Promise<Generation>;

export interface Bench {
  readonly gateway: Gateway;
  readonly url: string;
  readonly directory: string;
  /** Jobs as they reached the engine. */
  readonly jobs: GenerateJob[];
  /** `count`: how tokens are counted. */
  open(play: Play, options?: Partial<SessionOptions> & { readonly count?: Upstream["countTokens"] }): Promise<{ readonly session: GatewaySession; readonly log: CallLog; calls(): Promise<readonly Call[]> }>;
  close(): Promise<void>;
}

export async function openBench(options: Partial<GatewayOptions> = {}): Promise<Bench> {
  const directory = mkdtempSync(join(tmpdir(), "mw-gateway-"));
  const gateway = await openGateway({ runtime: systemRuntime, socketPath: join(directory, "gateway"), port: 0, ...options });
  const jobs: GenerateJob[] = [];
  const logs: CallLog[] = [];
  return {
    gateway,
    url: gateway.url ?? "",
    directory,
    jobs,
    open: async (play, { count = () => Promise.resolve(7), ...changes } = {}) => {
      const path = join(directory, `calls-${logs.length}.jsonl`);
      const log = new CallLog({ path, durability: "process" });
      logs.push(log);
      const upstream: Upstream = {
        name: "test",
        probe: () => Promise.resolve({ capture: "tokens", reason: null, models: null }),
        generate: (job) => play(job, jobs.push(job)),
        countTokens: count,
        close: () => Promise.resolve(),
      };
      const session = await gateway.open({
        label: "test",
        sandbox: null,
        upstream,
        model: "upstream-model",
        sampling: {},
        budgets: { calls: null, tokens: null, timeMs: null },
        purpose: "train",
        log,
        ...changes,
      });
      return { session, log, calls: () => readAll(path) };
    },
    close: async () => {
      await gateway.close();
      await Promise.all(logs.map((log) => log.close()));
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

export async function readAll(path: string): Promise<readonly Call[]> {
  const calls: Call[] = [];
  for await (const call of readCalls(path)) calls.push(call);
  return calls;
}

export function generation(blocks: readonly AnswerBlock[], changes: Partial<Answer> = {}): Generation {
  const completionIds = blocks.flatMap((block) => [...Buffer.from(block.type === "tool_call" ? block.arguments : block.text)]);
  return {
    answer: {
      blocks,
      finish: blocks.some((block) => block.type === "tool_call") ? "tool_calls" : "stop",
      stopSequence: null,
      usage: { promptTokens: 3, completionTokens: completionIds.length, cachedTokens: 0, reasoningTokens: 0 },
      logprobs: null,
      ...changes,
    },
    tokens: { promptIds: [1, 2, 3], completionIds, logprobs: completionIds.map(() => -0.5), versions: [["0", completionIds.length]] },
    upstreamId: null,
    notes: [],
  };
}

/** Says a text word by word. */
export function says(text: string): Play {
  return async (job) => {
    for (const word of text.split(/(?<= )/)) await job.onDelta?.({ type: "text", text: word } satisfies Delta);
    return generation([{ type: "text", text }]);
  };
}

/** A promise to be settled from outside. */
export interface Gate {
  readonly passed: Promise<void>;
  open(): void;
}

export function gate(): Gate {
  let open = (): void => undefined;
  const passed = new Promise<void>((resolve) => (open = resolve));
  return { passed, open };
}

export async function until(condition: () => boolean | Promise<boolean>, limitMs = 60_000): Promise<void> {
  for (const end = Date.now() + limitMs; !(await condition()); ) {
    if (Date.now() > end) throw new Error("waited in vain");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export const newSandbox = (): SandboxId => newId("sbx", systemRuntime);

/** A connection as a machine's forwarder makes it. */
export function connectFrom(gateway: Gateway, preface: string): Socket {
  const socket = connect(gateway.socketPath);
  socket.on("error", () => undefined);
  socket.write(preface);
  return socket;
}

/** Everything that comes until the other side ends. */
export function readToEnd(socket: Socket): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
    socket.once("close", () => resolve(text));
  });
}

/**
 * Tries an agent CLI without a model and without network: a scripted model behind the real gateway has it run commands in a machine, and what came in, what was done,
 * what was recorded and how it ended is compared with what should have been.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { Call } from "../../gateway/call.ts";
import type { ContentBlock, TurnRequest } from "../../gateway/conversation.ts";
import { openGateway } from "../../gateway/gateway.ts";
import type { GatewaySession, SessionBudgets } from "../../gateway/session.ts";
import type { LayerMount, RootFilesystem, Sandbox, SandboxBackend } from "../../sandbox/sandbox.ts";
import { cliHarness } from "../cli/cli-harness.ts";
import type { CliDescriptor } from "../cli/descriptor.ts";
import type { CommandRecord, HarnessContext, HarnessEnd } from "../harness.ts";
import { ScriptedUpstream, type Script } from "./scripted-upstream.ts";

/** Text that every shell, option parser and template would do something to. */
export const AWKWARD_INSTRUCTION = "--help\n- [ ] write `one` to $(touch /tmp/mw-pwned)/out.txt\n'; touch /tmp/mw-pwned; \"{token}\" \\ {{ x }}\nEOF\n北 😀 é\n";

export interface RehearsalOptions {
  readonly backend: SandboxBackend;
  readonly root: RootFilesystem;
  readonly layers: readonly LayerMount[];
  readonly descriptor: CliDescriptor;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
  /** Default: the image's. */
  readonly user?: string;
  readonly instruction?: string;
  /** Failures of the model. */
  readonly fault?: NonNullable<Script["fault"]>;
  /** Of the model session; default: none. */
  readonly budgets?: Partial<SessionBudgets>;
}

export interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** What was seen instead; null when it is as it should be. */
  readonly seen: string | null;
}

export interface Rehearsal {
  readonly checks: readonly Check[];
  /** As they were logged. */
  readonly calls: readonly Call[];
  readonly end: HarnessEnd | null;
  /** What the harness threw. */
  readonly error: Error | null;
  readonly durationMs: number;
}

const PORT = 20_411;
const MODEL = "rehearsal-model";
const WORKDIR = "/mw-rehearsal";
/** Without command substitution, which some CLIs refuse. */
const COMMANDS = ["printf 'rehearsed-%s\\n' 42 > out.txt", 'cat out.txt; echo "preload:[$LD_PRELOAD$LD_LIBRARY_PATH$PYTHONHOME$PYTHONPATH]"; pwd'] as const;
/** Of the CLI. A machine under load takes its time. */
const TIME_MS = 600_000;

export async function rehearse(options: RehearsalOptions): Promise<Rehearsal> {
  const { descriptor, backend, runtime, root, fault } = options;
  const directory = await mkdtemp(join(tmpdir(), "mw-rehearsal-"));
  const done = descriptor.doneCommand === undefined ? [] : [descriptor.doneCommand];
  const upstream = new ScriptedUpstream({ commands: [...COMMANDS, ...done], final: "Rehearsed.", ...(fault === undefined ? {} : { fault }) });
  const gateway = await openGateway({ runtime, socketPath: join(directory, "gateway"), port: null });
  const calls: Call[] = [];
  let sandbox: Sandbox | null = null;
  try {
    sandbox = await backend.create({ root, layers: options.layers, network: "none", services: [{ port: PORT, target: gateway.socketPath }], workdir: "/", labels: { rehearsal: descriptor.name } });
    const owner = options.user ?? root.user;
    await sandbox.files.mkdir(WORKDIR, { mode: 0o755, owner: owner === "" ? "0:0" : owner });
    const log = { append: (call: Call) => Promise.resolve(void calls.push(call)), replayed: () => Promise.resolve() };
    const budgets = { calls: null, tokens: null, timeMs: null, ...options.budgets };
    const session = await gateway.open({ label: descriptor.name, sandbox: sandbox.id, upstream, model: MODEL, sampling: {}, budgets, purpose: "train", log });
    const startedAt = runtime.monotonic();
    const played = await play(options, sandbox, session, directory);
    await session.close();
    const durationMs = Math.round(runtime.monotonic() - startedAt);
    return { end: played.end, error: played.error, calls, checks: await checksOf(options, sandbox, upstream.requests, calls, played), durationMs };
  } finally {
    await sandbox?.kill();
    await gateway.close();
    await rm(directory, { recursive: true, force: true });
  }
}

interface Played extends Pick<Rehearsal, "end" | "error"> {
  readonly command: CommandRecord | null;
  /** Names of the session logs that were kept. */
  readonly kept: readonly string[];
}

async function play(options: RehearsalOptions, sandbox: Sandbox, session: GatewaySession, directory: string): Promise<Played> {
  const kept: string[] = [];
  let command: CommandRecord | null = null;
  const nothing = (): Promise<void> => Promise.resolve();
  const context: HarnessContext = {
    sandbox,
    instruction: options.instruction ?? AWKWARD_INSTRUCTION,
    solution: { directory: null, env: {} },
    user: options.user ?? null,
    workdir: WORKDIR,
    session,
    endpoint: { baseUrl: `http://127.0.0.1:${PORT}`, token: session.token, model: MODEL, contextTokens: null, totals: () => session.totals() },
    budgets: { turns: 20, tokens: null, timeMs: TIME_MS, commandMs: TIME_MS, outputBytes: 16_384 },
    seed: "rehearsal",
    recorder: {
      drawn: nothing,
      message: nothing,
      note: nothing,
      command: (record) => {
        command = record;
        return nothing();
      },
      keep: async (name, copy) => {
        await copy(join(directory, `kept-${kept.length}`));
        kept.push(name);
      },
    },
    runtime: options.runtime,
    signal: options.signal,
  };
  try {
    return { end: await cliHarness(options.descriptor).run(context), error: null, command, kept };
  } catch (error) {
    options.signal.throwIfAborted();
    return { end: null, error: error instanceof Error ? error : new Error(String(error)), command, kept };
  }
}

async function checksOf({ descriptor, instruction = AWKWARD_INSTRUCTION }: RehearsalOptions, sandbox: Sandbox, requests: readonly TurnRequest[], calls: readonly Call[], { end, error, command, kept }: Played): Promise<readonly Check[]> {
  const check = (name: string, ok: boolean, seen: unknown): Check => ({ name, ok, seen: ok ? null : (typeof seen === "string" ? seen : JSON.stringify(seen)).slice(0, 2000) });
  const expected = descriptor.trimsInstruction === true ? instruction.trim() : instruction;
  const told = textsOf(requests[0], "user");
  const results = textsOf(requests.at(-1), "tool");
  const after = await sandbox.run({ command: ["/bin/sh", "-c", 'cat "$0/out.txt"; test -e /tmp/mw-pwned && echo pwned; ls -A /.mw/home 2>/dev/null', WORKDIR], user: "0:0", timeoutMs: 60_000 });
  const state = Buffer.from(after.stdout).toString("utf8");
  const tail = command === null ? "" : `${Buffer.from(command.stdout).toString("utf8").slice(-1000)}${Buffer.from(command.stderr).toString("utf8").slice(-1000)}`;
  const exact = calls.filter(({ status, tokens }) => status === "complete" && tokens !== null && tokens.completionIds.length === tokens.logprobs?.length);
  return [
    check("it ended by itself, as finished", end?.stopReason === "finished", error === null ? `${end?.stopReason}: ${end?.detail}\n${tail}` : `${messageOf(error)}\n${tail}`),
    check(`it asked the model through the ${descriptor.dialect} API`, calls.length > 0 && calls.every(({ dialect }) => dialect === descriptor.dialect), calls.map(({ dialect }) => dialect)),
    check("every call is complete and has its exact tokens", exact.length === calls.length && requests.length === calls.length, calls.map(({ number, status, failure, tokens }) => ({ number, status, failure, tokens: tokens !== null }))),
    check(descriptor.trimsInstruction === true ? "the task reached the model byte for byte between its blanks" : "the task reached the model byte for byte", told.some((text) => text.includes(expected)), told),
    check("the model saw what its commands printed", results.some((text) => text.includes("rehearsed-42")) && results.some((text) => text.includes(WORKDIR)), results),
    check("commands inherit nothing of how the CLI is loaded", results.some((text) => text.includes("preload:[]")), results),
    check("the work is in the machine, nothing of the task was executed, nothing of the CLI is left", state === "rehearsed-42\n", state),
    check("its session log was kept", descriptor.logs.length === 0 || kept.length > 0, kept),
  ];
}

/** Texts of one role's messages, each block by itself. */
function textsOf(request: TurnRequest | undefined, role: "user" | "tool"): readonly string[] {
  const blocks = (request?.messages ?? []).flatMap((message): readonly ContentBlock[] => (message.role === role ? message.content : []));
  return blocks.flatMap((block) => (block.type === "text" ? [block.text] : []));
}

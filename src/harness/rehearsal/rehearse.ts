/**
 * Tries an agent CLI without a model and without network: a scripted model has it run commands in a machine, and what came in, what was done and how it ended is
 * compared with what should have been.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { LayerMount, RootFilesystem, Sandbox, SandboxBackend } from "../../sandbox/sandbox.ts";
import { cliHarness } from "../cli/cli-harness.ts";
import type { CliDescriptor } from "../cli/descriptor.ts";
import type { CommandRecord, HarnessContext, HarnessEnd } from "../harness.ts";
import { startScriptedModel, type Fault, type ModelRequest, type ScriptedModel } from "./scripted-model.ts";

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
  /** Errors that the model answers with. */
  readonly fault?: (request: ModelRequest) => Fault | null;
  readonly timeMs?: number;
}

export interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** What was seen instead; null when it is as it should be. */
  readonly seen: string | null;
}

export interface Rehearsal {
  readonly checks: readonly Check[];
  readonly requests: readonly ModelRequest[];
  readonly end: HarnessEnd | null;
  /** What the harness threw. */
  readonly error: Error | null;
  readonly command: CommandRecord | null;
  /** Names of the session logs that were kept. */
  readonly kept: readonly string[];
  readonly durationMs: number;
}

const PORT = 8199;
const TOKEN = "mw-rehearsal-token";
const MODEL = "rehearsal-model";
const WORKDIR = "/mw-rehearsal";
/** Without command substitution, which some CLIs refuse. */
const COMMANDS = ["printf 'rehearsed-%s\\n' 42 > out.txt", 'cat out.txt; echo "preload:[$LD_PRELOAD$LD_LIBRARY_PATH$PYTHONHOME$PYTHONPATH]"; pwd'] as const;
const TIME_MS = 300_000;

export async function rehearse(options: RehearsalOptions): Promise<Rehearsal> {
  const { descriptor, backend, runtime, root } = options;
  const directory = await mkdtemp(join(tmpdir(), "mw-rehearsal-"));
  const socket = join(directory, "model");
  const done = descriptor.doneCommand === undefined ? [] : [descriptor.doneCommand];
  const model = await startScriptedModel(socket, { script: { commands: [...COMMANDS, ...done], final: "Rehearsed." }, ...(options.fault === undefined ? {} : { fault: options.fault }) });
  let sandbox: Sandbox | null = null;
  try {
    sandbox = await backend.create({ root, layers: options.layers, network: "none", services: [{ port: PORT, target: socket }], workdir: "/", labels: { rehearsal: descriptor.name } });
    const owner = options.user ?? root.user;
    await sandbox.files.mkdir(WORKDIR, { mode: 0o755, owner: owner === "" ? "0:0" : owner });
    const startedAt = runtime.monotonic();
    const played = await play(options, sandbox, directory);
    const durationMs = Math.round(runtime.monotonic() - startedAt);
    return { ...played, requests: model.requests, checks: await checksOf(options, sandbox, model, played), durationMs };
  } finally {
    await sandbox?.kill();
    await model.close();
    await rm(directory, { recursive: true, force: true });
  }
}

type Played = Pick<Rehearsal, "end" | "error" | "command" | "kept">;

async function play(options: RehearsalOptions, sandbox: Sandbox, directory: string): Promise<Played> {
  const kept: string[] = [];
  let command: CommandRecord | null = null;
  const nothing = (): Promise<void> => Promise.resolve();
  const context: HarnessContext = {
    sandbox,
    instruction: options.instruction ?? AWKWARD_INSTRUCTION,
    solution: { directory: null, env: {} },
    user: options.user ?? null,
    workdir: WORKDIR,
    session: null,
    endpoint: { baseUrl: `http://127.0.0.1:${PORT}`, token: TOKEN, model: MODEL, contextTokens: null, totals: () => null },
    budgets: { turns: 20, tokens: null, timeMs: options.timeMs ?? TIME_MS, commandMs: TIME_MS, outputBytes: 16_384 },
    seed: "rehearsal",
    recorder: {
      message: nothing,
      note: nothing,
      drawn: nothing,
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

async function checksOf({ descriptor, instruction = AWKWARD_INSTRUCTION }: RehearsalOptions, sandbox: Sandbox, { requests }: ScriptedModel, { end, error, command, kept }: Played): Promise<readonly Check[]> {
  const check = (name: string, ok: boolean, seen: unknown): Check => ({ name, ok, seen: ok ? null : typeof seen === "string" ? seen.slice(0, 2000) : JSON.stringify(seen).slice(0, 2000) });
  const expected = descriptor.trimsInstruction === true ? instruction.trim() : instruction;
  const texts = requests[0]?.userTexts ?? [];
  const results = requests.at(-1)?.results ?? [];
  const after = await sandbox.run({ command: ["/bin/sh", "-c", 'cat "$0/out.txt"; test -e /tmp/mw-pwned && echo pwned; ls -A /.mw/home 2>/dev/null', WORKDIR], user: "0:0", timeoutMs: 60_000 });
  const state = Buffer.from(after.stdout).toString("utf8");
  const tail = command === null ? "" : `${Buffer.from(command.stdout).toString("utf8").slice(-1000)}${Buffer.from(command.stderr).toString("utf8").slice(-1000)}`;
  return [
    check("it ended by itself, as finished", end?.stopReason === "finished", error === null ? `${end?.stopReason}: ${end?.detail}\n${tail}` : `${messageOf(error)}\n${tail}`),
    check(`it asked the model through the ${descriptor.dialect} API`, requests.length > 0 && requests.every((request) => request.dialect === descriptor.dialect), requests.map(({ path }) => path)),
    check("every request brought the session's token", requests.every(({ token }) => token === TOKEN), requests.map(({ token }) => token)),
    check(descriptor.trimsInstruction === true ? "the task reached the model byte for byte between its blanks" : "the task reached the model byte for byte", texts.some((text) => text.includes(expected)), texts),
    check("the model saw what its commands printed", results.some((text) => text.includes("rehearsed-42")) && results.some((text) => text.includes(WORKDIR)), results),
    check("commands inherit nothing of how the CLI is loaded", results.some((text) => text.includes("preload:[]")), results),
    check("the work is in the machine, nothing of the task was executed, nothing of the CLI is left", state === "rehearsed-42\n", state),
    check("its session log was kept", descriptor.logs.length === 0 || kept.length > 0, kept),
  ];
}

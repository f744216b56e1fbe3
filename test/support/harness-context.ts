/** A rollout's surroundings for tests of harnesses: everything recorded is kept, and can be searched as one text. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemRuntime } from "../../src/core/runtime.ts";
import type { Call, CallSink } from "../../src/gateway/call.ts";
import type { Budgets, CommandRecord, HarnessContext, MessageRecord } from "../../src/harness/harness.ts";
import type { Sandbox } from "../../src/sandbox/sandbox.ts";

export interface Recorded {
  readonly calls: Call[];
  readonly commands: CommandRecord[];
  readonly messages: MessageRecord[];
  readonly notes: string[];
  readonly drawn: unknown[];
  /** Kinds of the records, in the order in which they were written. */
  readonly order: string[];
  /** Host directory of what was kept beside the records. */
  readonly directory: string;
  text(): string;
}

export const BUDGETS: Budgets = { turns: 20, tokens: null, timeMs: null, commandMs: 20_000, outputBytes: 16_384 };

let kept: string | null = null;

/** One directory for all contexts of this process, gone with the test run: workers are killed at its end. */
function keptDirectory(): string {
  if (kept !== null) return kept;
  return (kept = mkdtempSync(join(process.env["MW_HOME"] ?? tmpdir(), "mw-kept-")));
}

export function harnessContext(sandbox: Sandbox, changes: Partial<HarnessContext> = {}): { readonly context: HarnessContext; readonly recorded: Recorded; readonly log: CallSink } {
  const calls: Call[] = [];
  const commands: CommandRecord[] = [];
  const messages: MessageRecord[] = [];
  const notes: string[] = [];
  const drawn: unknown[] = [];
  const order: string[] = [];
  const directory = mkdtempSync(join(keptDirectory(), "context-"));
  const keep =
    <T>(kind: string, list: T[]) =>
    (record: T): Promise<void> => {
      // What is recorded is what was true at that moment.
      list.push(structuredClone(record));
      order.push(kind);
      return Promise.resolve();
    };
  const context: HarnessContext = {
    sandbox,
    instruction: "Do it.",
    solution: { directory: null, env: {} },
    user: null,
    workdir: "/work",
    session: null,
    endpoint: null,
    budgets: BUDGETS,
    seed: "seed",
    recorder: { command: keep("command", commands), message: keep("message", messages), note: keep("note", notes), drawn: keep("drawn", drawn), keep: (name, copy) => copy(join(directory, name.replaceAll("/", "-"))) },
    runtime: systemRuntime,
    signal: new AbortController().signal,
    ...changes,
  };
  const text = (): string =>
    JSON.stringify({ calls, messages, notes }) + commands.map((command) => JSON.stringify(command.command) + Buffer.from(command.stdout).toString() + Buffer.from(command.stderr).toString()).join("");
  const log: CallSink = { append: keep("call", calls), replayed: () => Promise.resolve() };
  return { context, log, recorded: { calls, commands, messages, notes, drawn, order, directory, text } };
}

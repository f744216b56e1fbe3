/** A run's recorded rollouts for other programs, one JSON document a line. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RunId } from "../core/ids.ts";
import type { ToolDefinition } from "../gateway/conversation.ts";
import type { SampleOptions } from "../gateway/samples/build-samples.ts";
import { turnOf } from "../gateway/trace/turn-of-call.ts";
import type { MessageRecord } from "../harness/harness.ts";
import { rolloutDirectory } from "../store/run-directory.ts";
import { atifTrajectory, type AtifCommand } from "./atif.ts";
import { rolloutDocument } from "./report.ts";
import type { RolloutState } from "./rollout-state.ts";
import type { RunConfig } from "./run-config.ts";
import { rolloutTokens, type RolloutTokens } from "./samples/rollout-samples.ts";
import { spokenMessages, type SpokenMessage } from "./spoken-messages.ts";

export const EXPORT_FORMATS = ["jsonl", "atif", "parquet", "safetensors"] as const;
export type ExportFormat = (typeof EXPORT_FORMATS)[number];

export interface ExportOptions extends SampleOptions {
  readonly format: "jsonl" | "atif";
  readonly scoredOnly: boolean;
}

/** Those of `rollouts` that are recorded, in their order. */
export async function* exportLines(home: string, config: RunConfig, rollouts: Iterable<RolloutState>, options: ExportOptions): AsyncGenerator<string> {
  const run = config.run as RunId;
  for (const rollout of rollouts) {
    if (rollout.phase !== "recorded" || (options.scoredOnly && rollout.outcome !== "scored")) continue;
    const records = await readRecords(rolloutDirectory(home, run, rollout.rollout), options);
    yield JSON.stringify(options.format === "atif" ? await atifDocument(run, config, rollout, records) : jsonDocument(run, rollout, records));
  }
}

interface Records {
  readonly directory: string;
  readonly instruction: string | null;
  readonly messages: readonly SpokenMessage[];
  readonly tokens: RolloutTokens;
  readonly commands: readonly unknown[];
  readonly verdict: unknown;
}

async function readRecords(directory: string, options: SampleOptions): Promise<Records> {
  const read = async (name: string): Promise<string | null> => readFile(join(directory, name), "utf8").catch(() => null);
  const verdict = await read("verdict.json");
  const tokens = await rolloutTokens(directory, options);
  const messages = parseLines(await read("transcript.jsonl"));
  return {
    directory,
    instruction: await read("instruction.md"),
    // Written by our own recorder, line by line, in this shape.
    messages: spokenMessages(tokens, messages as readonly MessageRecord[]),
    tokens,
    commands: parseLines(await read("commands.jsonl")),
    verdict: verdict === null ? null : (JSON.parse(verdict) as unknown),
  };
}

/** The result with what led to it. Command output stays in the rollout's directory. */
function jsonDocument(run: RunId, rollout: RolloutState, { tokens: { calls, trace, set }, ...records }: Records): unknown {
  const places = new Map(trace.nodes.map(({ call, ...place }) => [call, place]));
  return {
    run,
    ...rolloutDocument(rollout),
    ...records,
    // Requests repeat the history with every call; the call log has them.
    calls: calls.map(({ request: _request, conversation: _conversation, route: _route, ...call }) => ({ ...call, ...places.get(call.number) })),
    samples: {
      builder: set.builder,
      versions: set.versions,
      ledger: set.ledger,
      samples: set.samples.map(({ tokenIds, lossMask, logprobs, versions, ...facts }) => ({ ...facts, tokenIds: [...tokenIds], lossMask: [...lossMask], logprobs: [...logprobs], versions: [...versions] })),
    },
  };
}

async function atifDocument(run: RunId, config: RunConfig, rollout: RolloutState, { directory, instruction, messages, tokens, commands, verdict }: Records): Promise<unknown> {
  const { name, version, settings } = config.harnesses.find((harness) => harness.name === rollout.harness) ?? { name: rollout.harness, version: "", settings: {} };
  const { outcome, reward, rewards, seconds, stopReason, error, tries, turns, phaseMs, ...facts } = rolloutDocument(rollout);
  return atifTrajectory({
    rollout: rollout.rollout,
    agent: { name, version, settings },
    model: config.upstream?.model ?? null,
    instruction: instruction ?? "",
    messages,
    calls: tokens.calls,
    tools: toolsOf(tokens),
    // A conversation holds the output already, as its model saw it.
    commands: messages.length > 0 ? (commands as readonly AtifCommand[]) : await withOutput(directory, commands as readonly NumberedCommand[]),
    facts: { run, ...facts },
    end: { outcome, reward, rewards, seconds, stopReason, error, tries, turns, phaseMs, verdict },
  });
}

function toolsOf({ calls, trace }: RolloutTokens): readonly ToolDefinition[] {
  const first = calls.find(({ number }) => number === trace.mainLine[0]);
  return first === undefined ? [] : turnOf(first).tools;
}

type NumberedCommand = AtifCommand & { readonly number: number };

/** The outputs lie beside the list; a file that is not there stands for nothing written. */
async function withOutput(directory: string, commands: readonly NumberedCommand[]): Promise<readonly AtifCommand[]> {
  const loaded: AtifCommand[] = [];
  for (const { number, ...command } of commands) {
    const read = (stream: string): Promise<string> => readFile(join(directory, "commands", `${String(number).padStart(4, "0")}-${stream}`), "utf8").catch(() => "");
    loaded.push({ ...command, stdout: await read("stdout"), stderr: await read("stderr") });
  }
  return loaded;
}

/** What a writer that died left half written is no record. */
function parseLines(text: string | null): readonly unknown[] {
  const lines = (text ?? "").split("\n");
  return lines.slice(0, -1).map((line) => JSON.parse(line) as unknown);
}

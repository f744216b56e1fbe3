/** A run's recorded rollouts for other programs, one JSON document a line, in the order of the plan. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RunId } from "../core/ids.ts";
import { rolloutDirectory } from "../store/run-directory.ts";
import { rolloutDocument } from "./report.ts";
import type { RolloutState } from "./rollout-state.ts";
import type { RunState } from "./run-state.ts";

export type ExportFormat = "jsonl" | "atif";

export interface ExportOptions {
  readonly format: ExportFormat;
  readonly scoredOnly: boolean;
}

export async function* exportLines(home: string, run: RunId, state: RunState, options: ExportOptions): AsyncGenerator<string> {
  for (const group of state.groups) {
    for (const rollout of group.rollouts) {
      if (rollout.phase !== "recorded" || (options.scoredOnly && rollout.outcome !== "scored")) continue;
      yield JSON.stringify(await jsonDocument(home, run, rollout));
    }
  }
}

/** The result with what led to it. Command output stays in the rollout's directory. */
async function jsonDocument(home: string, run: RunId, rollout: RolloutState): Promise<unknown> {
  const directory = rolloutDirectory(home, run, rollout.rollout);
  const read = async (name: string): Promise<string | null> => readFile(join(directory, name), "utf8").catch(() => null);
  const verdict = await read("verdict.json");
  return {
    run,
    ...rolloutDocument(rollout),
    instruction: await read("instruction.md"),
    messages: parseLines(await read("transcript.jsonl")),
    calls: parseLines(await read("calls.jsonl")),
    commands: parseLines(await read("commands.jsonl")),
    verdict: verdict === null ? null : (JSON.parse(verdict) as unknown),
    directory,
  };
}

function parseLines(text: string | null): readonly unknown[] {
  return (text ?? "").split("\n").flatMap((line) => (line === "" ? [] : [JSON.parse(line) as unknown]));
}

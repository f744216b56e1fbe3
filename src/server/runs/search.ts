/**
 * Text in everything that the agents of a run said, saw and did. Files are read in the order of the plan and hits go out as they are found; what is read and found is bounded, and a
 * reader who goes away ends it.
 */
import { createReadStream } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { LIMITS } from "../../core/limits.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import type { SearchHit, SearchLine } from "./contract/search.ts";
import type { LiveRun } from "./live-run.ts";
import { readRange } from "./rollout-files.ts";

/** Hits of one rollout that are told; the rest are in the rollout. */
const HITS_A_ROLLOUT = 5;
const AROUND = 80;
/** Of each output file. */
const OUTPUT_BYTES = 4 << 20;
const PROGRESS_EVERY = 100;

type Place = Pick<SearchHit, "where" | "ref">;
type Text = Place & { readonly text: string };

export async function* searchRun(run: LiveRun, rollouts: readonly RolloutState[], query: string, signal: AbortSignal): AsyncGenerator<SearchLine> {
  const needle = query.toLowerCase();
  const budget = { bytes: LIMITS.searchBytes };
  let hits = 0;
  let done = 0;
  const state = (): { readonly rollouts: number; readonly of: number; readonly hits: number } => ({ rollouts: done, of: rollouts.length, hits });
  for (const rollout of rollouts) {
    if (signal.aborted) return;
    let found = 0;
    const seen = new Set<string>();
    for await (const { text, ...place } of textsOf(rolloutDirectory(run.home, run.run, rollout.rollout), budget)) {
      const at = text.toLowerCase().indexOf(needle);
      if (at === -1) continue;
      const match = text.slice(at, at + query.length);
      const before = text.slice(Math.max(0, at - AROUND), at);
      const after = text.slice(at + query.length, at + query.length + AROUND);
      // A message stands in the transcript and in the calls.
      const key = `${before}\0${match}\0${after}`;
      if (seen.has(key)) continue;
      seen.add(key);
      yield { type: "hit", hit: { rollout: rollout.rollout, task: rollout.task.name, attempt: rollout.attempt, ...place, before, match, after } };
      hits++;
      if (++found >= HITS_A_ROLLOUT || hits >= LIMITS.searchHits) break;
    }
    done++;
    if (hits >= LIMITS.searchHits || budget.bytes <= 0) {
      yield { type: "end", ...state(), stopped: hits >= LIMITS.searchHits ? "hits" : "bytes" };
      return;
    }
    if (done % PROGRESS_EVERY === 0) yield { type: "progress", ...state() };
  }
  yield { type: "end", ...state(), stopped: "complete" };
}

async function* textsOf(directory: string, budget: { bytes: number }): AsyncGenerator<Text> {
  yield* wholeFile(directory, "instruction.md", { where: "instruction", ref: null }, budget);
  yield* jsonTexts(directory, "transcript.jsonl", budget, (record) => [{ where: "conversation", ref: null, text: strings(record) }]);
  yield* jsonTexts(directory, "calls.jsonl", budget, (record) => ("e" in record ? [{ where: "conversation", ref: null, text: strings(record["e"]) }] : callTexts(record["call"])));
  yield* jsonTexts(directory, "commands.jsonl", budget, (record) => [{ where: "command", ref: Number(record["number"]), text: strings(record["command"]) }]);
  const outputs = await readdir(join(directory, "commands")).catch(() => []);
  for (const name of outputs.sort()) yield* wholeFile(directory, `commands/${name}`, { where: "output", ref: Number.parseInt(name, 10) }, budget);
  yield* wholeFile(directory, "verifier/test-stdout.txt", { where: "verifier", ref: null }, budget);
}

function callTexts(call: unknown): readonly Text[] {
  if (typeof call !== "object" || call === null) return [];
  const { number, answer } = call as { readonly number?: number; readonly answer?: { readonly blocks?: unknown } | null };
  return [{ where: "conversation", ref: number ?? null, text: strings(answer?.blocks) }];
}

async function* wholeFile(directory: string, name: string, place: Place, budget: { bytes: number }): AsyncGenerator<Text> {
  if (budget.bytes <= 0) return;
  const range = await readRange(directory, name, 0, OUTPUT_BYTES);
  if (range === null) return;
  budget.bytes -= range.bytes.length;
  yield { ...place, text: range.bytes.toString("utf8") };
}

async function* jsonTexts(directory: string, name: string, budget: { bytes: number }, texts: (record: Readonly<Record<string, unknown>>) => readonly Text[]): AsyncGenerator<Text> {
  const path = join(directory, name);
  if (budget.bytes <= 0 || (await stat(path).catch(() => null)) === null) return;
  const lines = createInterface({ input: createReadStream(path), crlfDelay: Infinity });
  try {
    for await (const line of lines) {
      budget.bytes -= line.length;
      if (budget.bytes <= 0) return;
      let record: unknown;
      try {
        record = JSON.parse(line);
      } catch {
        continue;
      }
      if (typeof record === "object" && record !== null) yield* texts(record as Readonly<Record<string, unknown>>);
    }
  } finally {
    lines.close();
  }
}

/** Fields of messages that nobody said. */
const UNSAID = new Set(["at", "role", "type", "kind", "id", "callId", "toolCallId", "tool_call_id", "signature"]);

/** All texts in a value, as people read them, without the names of its fields; in one order, for transcript and call log have the same ones in different orders. */
function strings(value: unknown): string {
  if (typeof value === "string") return value;
  const found: string[] = [];
  const walk = (part: unknown): void => {
    if (typeof part === "string") found.push(part);
    else if (Array.isArray(part)) part.forEach(walk);
    else if (typeof part === "object" && part !== null) for (const [name, field] of Object.entries(part).sort(([a], [b]) => (a < b ? 1 : -1))) if (!UNSAID.has(name)) walk(field);
  };
  walk(value);
  return found.join("\n");
}

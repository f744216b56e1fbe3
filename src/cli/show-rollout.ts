/** One rollout as people read it: its timeline from the log, and what is in its directory. */
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { RolloutId, RunId } from "../core/ids.ts";
import type { MessageRecord } from "../harness/harness.ts";
import { fromLogEvent, type RunEvent } from "../rollout/events.ts";
import { costOf } from "../rollout/cost.ts";
import { rolloutDocument } from "../rollout/report.ts";
import { readReverifications } from "../rollout/reverify.ts";
import { readRunConfig } from "../rollout/run-config.ts";
import { loadRunState } from "../rollout/run-state.ts";
import { rolloutTokens } from "../rollout/samples/rollout-samples.ts";
import { spokenMessages } from "../rollout/spoken-messages.ts";
import { eventsFile, rolloutDirectory } from "../store/run-directory.ts";
import { readLog, startOfLog } from "../store/log-reader.ts";
import type { AppContext } from "./context.ts";
import { fateOf, lineageLines, lineageOf, openDeliveryLineage } from "./lineage.ts";
import { formatBytes, formatDuration, note, printJson, printLine, printable, styler } from "./output.ts";
import { failureText, spentText, tokenText } from "./run-summary.ts";

/** As the white-box harnesses keep them; what the id of a call is good for, the order says to people. */
const toolCallsSchema = z.array(z.object({ function: z.object({ name: z.string(), arguments: z.string() }) }));

/** Of each file at most so much is shown. */
const SHOWN_BYTES = 256 * 1024;
const OUTPUT_LINES = 20;
const LINE_CHARACTERS = 400;

export async function showRollout(context: AppContext, home: string, run: RunId, id: RolloutId, flags: { readonly json: boolean; readonly all: boolean }): Promise<void> {
  const whole = await loadRunState(home, run);
  const state = whole.rollout(id);
  const directory = rolloutDirectory(home, run, id);
  const timeline = await timelineOf(home, run, id);
  const verdict = await readJson(join(directory, "verdict.json"));
  const commands = await readLines(join(directory, "commands.jsonl"));
  const tokens = await rolloutTokens(directory, { builder: "prefix-merge" });
  // Written by our own recorder, line by line, in this shape.
  const transcript = spokenMessages(tokens, (await readLines(join(directory, "transcript.jsonl"))) as unknown as readonly MessageRecord[]);
  const document = rolloutDocument(state);
  const lineage = lineageOf(state, tokens, fateOf(await openDeliveryLineage(home, run), whole, state));
  const again = await readReverifications(directory);
  const { prices } = await readRunConfig(home, run);
  if (flags.json) {
    printJson(context, { run, ...document, cost: prices === undefined ? null : costOf(state, prices), directory, timeline, verdict, reverified: again, lineage, commands, transcript });
    return;
  }
  const paint = styler(context.process.stdout, context.env);
  const title = (text: string): void => printLine(context, `\n${paint("bold", text)}`);
  printLine(context, `${id} of run ${run}`);
  printLine(context, `task ${printable(state.task.name)} (${printable(state.task.family)}), attempt ${state.attempt}, harness ${state.harness}, seed ${state.seed}`);
  printLine(context, `outcome ${state.outcome ?? `none yet (${state.phase})`}, reward ${state.reward ?? "none"}${Object.keys(state.rewards).length > 1 ? ` ${printable(JSON.stringify(state.rewards))}` : ""}, stopped: ${state.stopReason ?? "-"}, try ${state.try}`);
  if (state.error !== null) printLine(context, `${paint("red", state.error.code)}: ${failureText(state.error)}`);
  const used = [tokenText([state]), prices === undefined ? "" : spentText([state], prices)];
  for (const line of used) if (line !== "") printLine(context, line);
  printLine(context, `files ${directory}`);

  title("timeline");
  for (const { at, event, detail } of timeline) printLine(context, `  ${at.slice(11, 23)}  ${event}${detail === "" ? "" : `  ${printable(detail)}`}`);
  if (transcript.length > 0) {
    title("transcript");
    for (const line of transcript) printLine(context, messageText(line));
  }
  if (commands.length > 0) {
    title("commands");
    for (const line of commands) printLine(context, await commandText(directory, line, flags.all));
  }
  if (verdict !== null) {
    title("verdict");
    for (const line of verdictLines(verdict)) printLine(context, printable(line));
  }
  if (again.length > 0) {
    title("verified again");
    for (const { number, at, verifier, reward, was } of again) printLine(context, printable(`  ${at} reverified/${number}: reward ${reward ?? "none"}, was ${was ?? "none"} (verifier ${verifier})`));
  }
  title("lineage");
  for (const line of lineageLines(lineage)) printLine(context, printable(line));
  const output = await readText(join(directory, "verifier", "test-stdout.txt"));
  if (output !== null && output.trim() !== "") {
    title("verifier output");
    printLine(context, printable(lastLines(output, flags.all)));
  }
  if (tokens.calls.length > 0) note(context, `\nmw show ${id} --tokens shows its model calls and which text is trained`);
}

/** One line a field; verdict.json has the same in full. */
function verdictLines(verdict: unknown): readonly string[] {
  if (!isRecord(verdict)) return [`  ${JSON.stringify(verdict)}`];
  const fields = Object.entries(verdict).filter(([, value]) => value !== null);
  const width = Math.max(...fields.map(([key]) => key.length));
  return fields.map(([key, value]) => `  ${key.padEnd(width)}  ${typeof value === "string" ? value : JSON.stringify(value)}`);
}

interface TimelineEntry {
  readonly at: string;
  readonly event: string;
  readonly detail: string;
}

async function timelineOf(home: string, run: RunId, id: RolloutId): Promise<readonly TimelineEntry[]> {
  const entries: TimelineEntry[] = [];
  for await (const stored of readLog(eventsFile(home, run), startOfLog())) {
    const event = fromLogEvent(stored.event);
    if (!("rollout" in event) || event.rollout !== id) continue;
    const { type, rollout: _rollout, ...fields } = event.type === "rollout_checkpointed" ? checkpointFields(event) : event;
    entries.push({ at: stored.at, event: type.replace("rollout_", ""), detail: detailOf(fields) });
  }
  return entries;
}

/** What people want of it; the rest is for whoever goes on from it. */
function checkpointFields({ type, rollout, checkpoint: { turn, snapshot, calls, policyVersion }, kept, ...cost }: Extract<RunEvent, { type: "rollout_checkpointed" }>): { readonly type: string; readonly rollout: RolloutId } {
  return { type, rollout, turn, snapshot, calls, policyVersion, kept, ...cost } as { readonly type: string; readonly rollout: RolloutId };
}

function detailOf(fields: Readonly<Record<string, unknown>>): string {
  return Object.entries(fields)
    .filter(([key, value]) => value !== null && key !== "v" && key !== "isolation" && !(key === "try" && value === 1))
    .map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(key.endsWith("Ms") ? Math.round(Number(value)) : value)}`)
    .join(" ");
}

function messageText(line: MessageRecord): string {
  const { role, content, toolCalls } = line;
  const text = typeof content === "string" ? content : content === null ? "" : JSON.stringify(content);
  const calls = toolCallsSchema.safeParse(toolCalls ?? []);
  const called = calls.success ? calls.data.map(({ function: { name, arguments: given } }) => `${name} ${given}`) : [JSON.stringify(toolCalls)];
  return printable([`  ${role}: ${text}`, ...called.map((line) => `    ${line}`)].join("\n"));
}

async function commandText(directory: string, line: Readonly<Record<string, unknown>>, all: boolean): Promise<string> {
  const number = String(line["number"]).padStart(4, "0");
  const command = Array.isArray(line["command"]) ? line["command"].join(" ") : String(line["command"]);
  const ended = line["ended"] === "exited" ? `exit ${String(line["code"])}` : String(line["ended"]);
  const parts = [`  $ ${command}`, `    [${ended}${line["cause"] === null ? "" : `, ${JSON.stringify(line["cause"])}`}, ${formatDuration(Number(line["durationMs"]))}, ${formatBytes(Number(line["stdoutBytes"]) + Number(line["stderrBytes"]))} of output]`];
  for (const stream of ["stdout", "stderr"]) {
    const text = await readText(join(directory, "commands", `${number}-${stream}`));
    if (text !== null && text.trim() !== "") parts.push(lastLines(text, all).replaceAll(/^/gm, "    "));
  }
  return printable(parts.join("\n"));
}

/** Agent CLIs write events of many kilobytes, one a line. */
function lastLines(text: string, all: boolean): string {
  const whole = text.trimEnd();
  if (all) return whole;
  const lines = whole.split("\n").map((line) => (line.length <= LINE_CHARACTERS ? line : `${line.slice(0, LINE_CHARACTERS)} ... ${line.length - LINE_CHARACTERS} characters more`));
  if (lines.length <= OUTPUT_LINES) return lines.join("\n");
  return [`... ${lines.length - OUTPUT_LINES} lines before (--all shows them)`, ...lines.slice(-OUTPUT_LINES)].join("\n");
}

async function readText(path: string): Promise<string | null> {
  try {
    if (!(await stat(path)).isFile()) return null;
    const bytes = await readFile(path);
    return bytes.length <= SHOWN_BYTES ? bytes.toString("utf8") : `${bytes.toString("utf8", 0, SHOWN_BYTES)}\n... ${bytes.length - SHOWN_BYTES} bytes more in ${path}`;
  } catch {
    return null;
  }
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return null;
  }
}

/** Whole lines; the last one may be a record that was being written when its writer died. */
async function readLines(path: string): Promise<readonly Readonly<Record<string, unknown>>[]> {
  const text = await readFile(path, "utf8").catch(() => "");
  return text.split("\n").flatMap((line) => {
    try {
      const value: unknown = JSON.parse(line);
      return isRecord(value) ? [value] : [];
    } catch {
      return [];
    }
  });
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}

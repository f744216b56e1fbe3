/** One rollout on one page: facts from the log, what its files say, and where the time went. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RolloutId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import { fromLogEvent } from "../../rollout/events.ts";
import { rolloutDocument } from "../../rollout/report.ts";
import { PHASE_LABELS } from "../../rollout/run-statistics.ts";
import { PHASES, TRANSITIONS, type Phase, type RolloutEventType } from "../../rollout/rollout-state.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import type { EventView, RolloutReport, Stretch } from "./contract/rollout.ts";
import type { LiveRun } from "./live-run.ts";
import { reproduceCommand } from "./reproduce.ts";
import { readRange } from "./rollout-files.ts";
import type { RecordStore, RolloutRecord } from "./rollout-record.ts";
import { rolloutRow, type Marks } from "./run-rows.ts";

const LABEL_CHARACTERS = 160;

export async function rolloutReport(run: LiveRun, id: RolloutId, records: RecordStore, marks: Marks, now: number): Promise<RolloutReport> {
  const state = run.rollout(id);
  const directory = rolloutDirectory(run.home, run.run, id);
  const [record, stored, verdict, artifacts, drawn, notes, verifier, tries] = await Promise.all([
    records.of(directory),
    run.eventsOf(id),
    readJson(join(directory, "verdict.json")),
    readJson(join(directory, "artifacts.json")),
    readJson(join(directory, "harness.json")),
    textFile(directory, "notes.txt"),
    textFile(directory, "verifier/test-stdout.txt"),
    readdir(join(directory, "tries")).catch(() => []),
  ]);
  const events = stored.map(({ seq, at, event }): EventView => {
    const { type, rollout: _rollout, v: _v, ...fields } = event;
    return { seq, at, type: type.replace("rollout_", ""), fields };
  });
  const document = rolloutDocument(state);
  // Where the plan puts it.
  const index = run.order.indexOf(state);
  return {
    run: run.run,
    seq: run.seq,
    version: record.version,
    row: rolloutRow(state, marks, run.config?.prices),
    directory,
    taskDirectory: document.taskDirectory,
    taskDigest: document.taskDigest,
    seed: document.seed,
    rewards: { ...document.rewards },
    modelMs: document.modelMs,
    toolMs: document.toolMs,
    waitMs: document.waitMs,
    cpuMs: document.cpuMs,
    frozenMs: document.frozenMs,
    phaseMs: Object.fromEntries(Object.entries(document.phaseMs)),
    instruction: record.instruction === null ? null : { text: record.instruction.slice(0, LIMITS.viewedTextBytes), truncated: record.instruction.length > LIMITS.viewedTextBytes },
    verdict: isRecord(verdict) ? verdict : null,
    verifierOutput: verifier,
    artifacts,
    drawn,
    notes: notes?.text ?? null,
    events,
    stretches: stretchesOf(record, stored.map(({ at, event }) => ({ at: Date.parse(at), event: fromLogEvent(event) })), state.phase === "recorded" ? state.at : now),
    calls: record.calls.length,
    commands: record.commands.length,
    messages: record.messages.length,
    tries: tries.sort((a, b) => Number(a) - Number(b)),
    reproduce: reproduceCommand(run.config, state),
    mark: marks.get(id) ?? null,
    previous: run.order[index - 1]?.rollout ?? null,
    next: run.order[index + 1]?.rollout ?? null,
    damage: record.damage,
  };
}

/** Phases of all tries, model calls and commands, as stretches of time. */
function stretchesOf(record: RolloutRecord, events: readonly { readonly at: number; readonly event: ReturnType<typeof fromLogEvent> }[], until: number): Stretch[] {
  let phase: Phase = "planned";
  const phases = events.flatMap(({ at, event }, index): Stretch[] => {
    const transition = TRANSITIONS[event.type as RolloutEventType];
    if (transition === undefined || transition.to === "recorded") return [];
    phase = transition.to ?? phase;
    const next = events[index + 1];
    const bad = event.type === "rollout_try_failed";
    const detail = bad ? `${event.outcome}: ${event.error.message}` : "try" in event && event.try > 1 ? `try ${event.try}` : "";
    return [{ lane: "phase", start: at, end: Math.max(at, next?.at ?? until), label: bad ? "waits for its next try" : PHASE_LABELS[phase], detail: detail.slice(0, LABEL_CHARACTERS), ref: PHASES.indexOf(phase), ok: !bad }];
  });
  const calls = record.calls.map(
    ({ number, at, durationMs, status, failure, completionTokens }): Stretch => ({
      lane: "model",
      start: Date.parse(at),
      end: Date.parse(at) + durationMs,
      label: `call ${number}`,
      detail: status === "complete" ? `${completionTokens ?? "?"} tokens` : `${status}: ${failure?.message ?? ""}`.slice(0, LABEL_CHARACTERS),
      ref: number,
      ok: status === "complete",
    }),
  );
  const commands = record.commands.map(
    ({ number, at, durationMs, command, code }): Stretch => ({ lane: "tool", start: Date.parse(at), end: Date.parse(at) + durationMs, label: command.slice(0, LABEL_CHARACTERS), detail: code === null ? "" : `exit ${code}`, ref: number, ok: code === 0 }),
  );
  return [...phases, ...calls, ...commands].filter(({ start, end }) => Number.isFinite(start) && Number.isFinite(end));
}

async function textFile(directory: string, name: string): Promise<{ readonly text: string; readonly bytes: number; readonly truncated: boolean } | null> {
  const range = await readRange(directory, name, 0, LIMITS.viewedTextBytes);
  return range === null ? null : { text: range.bytes.toString("utf8"), bytes: range.total, truncated: range.total > range.bytes.length };
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return null;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

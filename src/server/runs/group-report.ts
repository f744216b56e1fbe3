/** The attempts of one group side by side: what each did, and where they part. */
import { MwError } from "../../core/errors.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import type { AttemptView, GroupReport } from "./contract/lists.ts";
import type { LiveRun } from "./live-run.ts";
import type { RecordStore, RolloutRecord } from "./rollout-record.ts";
import { groupRow, rolloutRow, spread, type Marks } from "./run-rows.ts";

const STEPS_SHOWN = 400;
const STEP_CHARACTERS = 600;
/** Attempts whose records are read at once. */
const READ_AT_ONCE = 4;

export async function groupReport(run: LiveRun, id: string, records: RecordStore, marks: Marks): Promise<GroupReport> {
  const index = run.groupOf.get(id);
  const group = index === undefined ? undefined : run.state.groups[index];
  if (group === undefined || index === undefined) throw new MwError("not_found", `there is no group ${JSON.stringify(id)} in run ${run.run}`, { fix: "look at the run's list of groups" });
  const { mean, deviation } = spread(group.rollouts.map(({ reward }) => reward));
  const steps: (readonly AttemptView["steps"][number][])[] = [];
  for (let at = 0; at < group.rollouts.length; at += READ_AT_ONCE) {
    const read = group.rollouts.slice(at, at + READ_AT_ONCE).map(({ rollout }) => records.of(rolloutDirectory(run.home, run.run, rollout)).then(stepsOf));
    steps.push(...(await Promise.all(read)));
  }
  const divergesAt = divergence(steps);
  const attempts = group.rollouts.map((rollout, at) => ({
    ...rolloutRow(rollout, marks, run.config?.prices),
    advantage: rollout.reward === null || mean === null || deviation === null || deviation === 0 ? null : (rollout.reward - mean) / deviation,
    steps: (steps[at] ?? []).slice(0, STEPS_SHOWN),
    stepsTotal: steps[at]?.length ?? 0,
    divergesAt,
  }));
  return { run: run.run, seq: run.seq, group: groupRow(group, run.config?.prices), attempts, previous: run.state.groups[index - 1]?.group ?? null, next: run.state.groups[index + 1]?.group ?? null };
}

/** What an attempt said and did, in order: from its conversation, or from its commands where it had none. */
export function stepsOf(record: RolloutRecord): readonly AttemptView["steps"][number][] {
  const spoken = record.messages.filter(({ role }) => role === "assistant");
  if (spoken.length === 0) return record.commands.map(({ command, code, durationMs }) => ({ kind: "act", text: short(command), ok: code === null ? null : code === 0, ms: durationMs }));
  const results = new Map(record.messages.flatMap(({ role, toolCallId, isError }) => (role === "tool" && toolCallId !== null ? [[toolCallId, !isError] as const] : [])));
  const steps: AttemptView["steps"][number][] = [];
  for (const { text, toolCalls } of spoken) {
    if (text.trim() !== "") steps.push({ kind: "say", text: short(text.trim()), ok: null, ms: null });
    for (const { id, name, arguments: given } of toolCalls) steps.push({ kind: "act", text: short(`${name} ${argumentText(given)}`), ok: results.get(id) ?? null, ms: null });
  }
  return steps;
}

/** The first step at which not all attempts that did anything did the same. */
function divergence(all: readonly (readonly AttemptView["steps"][number][])[]): number | null {
  const began = all.filter((steps) => steps.length > 0);
  const [first] = began;
  if (first === undefined || began.length < 2) return null;
  const longest = Math.max(...began.map((steps) => steps.length));
  for (let at = 0; at < longest; at++) {
    const { kind, text } = first[at] ?? { kind: null, text: null };
    if (began.some((steps) => steps[at]?.kind !== kind || steps[at]?.text !== text)) return at;
  }
  return null;
}

/** Of arguments that are one text, that text; the rest as it was sampled. */
function argumentText(given: string): string {
  try {
    const value: unknown = JSON.parse(given);
    const fields = typeof value === "object" && value !== null ? Object.values(value) : [];
    return fields.length === 1 && typeof fields[0] === "string" ? fields[0] : given;
  } catch {
    return given;
  }
}

function short(text: string): string {
  return text.length <= STEP_CHARACTERS ? text : `${text.slice(0, STEP_CHARACTERS)} …`;
}

/** From what happened to what is recorded. */
import type { Isolation } from "../../sandbox/sandbox.ts";
import type { Verdict } from "../task.ts";
import type { TestOutcome } from "./run-tests.ts";

export interface Evidence {
  readonly restored: readonly string[];
  readonly removed: readonly string[];
  readonly notes: readonly string[];
}

/** Entries kept of each list; a workspace can have a million. */
const LISTED = 500;

export function noEvidence(): Evidence {
  return { restored: [], removed: [], notes: [] };
}

export interface VerdictFacts {
  readonly outcome: TestOutcome;
  /** What the verifier did on a pristine machine, when it was asked. */
  readonly pristine: TestOutcome | null;
  readonly brokenByAgent: "zero" | "error";
  readonly mode: Verdict["mode"];
  readonly isolation: Isolation;
  readonly verifierDigest: string;
  readonly durationMs: number;
  readonly evidence: Evidence;
}

export function buildVerdict(facts: VerdictFacts): Verdict {
  const { outcome, pristine, evidence } = facts;
  const { reading, exit } = outcome;
  const works = pristine === null ? ("not_run" as const) : pristine.reading.kind === "rewards" ? ("works" as const) : ("fails" as const);
  const notes = [...evidence.notes, ...outcome.notes, ...(reading.kind === "rewards" ? reading.notes : [])];
  const common = {
    mode: facts.mode,
    isolation: facts.isolation,
    writtenAt: outcome.writtenAt,
    verifierDigest: facts.verifierDigest,
    exitCode: exit.ended === "exited" ? exit.code : null,
    durationMs: facts.durationMs,
  };
  const record = (extra: readonly string[], conflict: boolean): Verdict["evidence"] => ({
    restored: listed(evidence.restored),
    removed: listed(evidence.removed),
    conflict,
    pristine: works,
    notes: [...notes, ...extra].slice(0, LISTED),
  });
  if (reading.kind === "rewards") {
    return { ...common, status: "scored", reward: reading.reward, rewards: reading.rewards, source: reading.source, error: null, evidence: record([], reading.conflict) };
  }
  const { kind, message } = reading.error;
  if (works === "works" && facts.brokenByAgent === "zero") {
    const note = `the verifier works on a pristine machine and fails on the agent's work: ${kind}: ${message}`;
    return { ...common, status: "scored", reward: 0, rewards: { reward: 0 }, source: "broken_by_agent", error: null, evidence: record([note], false) };
  }
  return { ...common, status: "verifier_error", reward: null, rewards: {}, source: null, error: { kind, message }, evidence: record([], false) };
}

function listed(paths: readonly string[]): readonly string[] {
  return paths.length <= LISTED ? paths : [...paths.slice(0, LISTED), `... and ${paths.length - LISTED} more`];
}

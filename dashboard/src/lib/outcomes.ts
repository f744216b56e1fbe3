/** How endings look: one colour a boundary, wherever they are shown. */
export type Tone = "good" | "warn" | "bad" | "infra" | "accent" | "";

export function toneOf(outcome: string | null, reward: number | null): Tone {
  if (outcome === null) return "accent";
  if (outcome === "scored") return reward === null ? "" : reward >= 1 ? "good" : reward > 0 ? "warn" : "bad";
  if (outcome === "cancelled" || outcome === "stale") return "";
  return "infra";
}

const OUTCOME_COLOURS: Readonly<Record<string, string>> = {
  scored: "var(--accent)",
  harness_error: "light-dark(#b45309, #f5b36b)",
  model_error: "light-dark(#2563eb, #7eb0ff)",
  verifier_error: "light-dark(#be185d, #f59ac4)",
  task_error: "light-dark(#9d174d, #f07fb2)",
  sandbox_error: "light-dark(#7c3aa8, #d6a6f5)",
  cancelled: "light-dark(#8a8b9a, #6b6f80)",
  stale: "light-dark(#a1a1b0, #585c6b)",
};

export function outcomeColour(outcome: string): string {
  return OUTCOME_COLOURS[outcome] ?? "var(--wait)";
}

/** What is done in each phase. */
export const PHASE_WORDS: Readonly<Record<string, string>> = {
  planned: "waiting",
  admitted: "getting a machine",
  leased: "preparing",
  prepared: "starting agent",
  running: "agent at work",
  ended: "collecting",
  collected: "verifying",
  verified: "recording",
  recorded: "done",
};

export const KIND_COLOURS: Readonly<Record<string, string>> = {
  main: "var(--accent)",
  branch: "light-dark(#c2571a, #ffab70)",
  subagent: "light-dark(#0f766e, #5ed3c5)",
  compaction: "light-dark(#be185d, #f59ac4)",
  side: "light-dark(#8a8b9a, #8b8fa2)",
  probe: "light-dark(#a1a1b0, #6b6f80)",
};

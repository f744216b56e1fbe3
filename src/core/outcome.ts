/**
 * How a rollout ends, as three separate facts: why the agent stopped, which boundary the ending is attributed to, and the reward.
 */

/** Why the agent stopped. Says nothing about the reward: every one of these is verified. */
export const STOP_REASONS = [
  /** The agent said that it was done, or its command exited with 0. */
  "finished",
  /** The turn budget was used up. */
  "turns",
  /** The token budget was used up. */
  "tokens",
  /** The agent's time was used up. */
  "agent_time",
  /** The model refused. */
  "refused",
  /** The conversation no longer fits the model. */
  "context_overflow",
  /** The agent's command exited with an error or by a signal. */
  "crashed",
  /** The kernel or the sandbox killed it for memory. */
  "oom_killed",
  /** Somebody asked to stop. */
  "cancelled",
] as const;
export type StopReason = (typeof STOP_REASONS)[number];

/** The one boundary that an ending is attributed to. Recorded once per rollout. */
export const OUTCOMES = {
  /** The verifier ran and a finite reward exists, whatever the stop reason. */
  scored: { boundary: "policy" },
  /** The agent's machinery would not install or start, through no act of the policy. */
  harness_error: { boundary: "harness" },
  /** The upstream was down or answered nonsense. */
  model_error: { boundary: "model" },
  /** No usable reward, on a pristine workspace too. */
  verifier_error: { boundary: "task" },
  /** The image does not build, the health check fails, the task cannot be honoured. */
  task_error: { boundary: "task" },
  /** The machine died or the host ran out of something. */
  sandbox_error: { boundary: "infra" },
  /** Asked to stop. */
  cancelled: { boundary: "trainer" },
  /** Too old to train on. */
  stale: { boundary: "trainer" },
} as const;
export type Outcome = keyof typeof OUTCOMES;

/** What follows from an outcome. A table of these is part of each run's configuration. */
export interface OutcomeRule {
  /** Attempts beyond the first, with the same draw, before the outcome stands. */
  readonly retries: number;
  /** Whether the rollout counts in its group's baseline. Only a finite reward can. */
  readonly counts: boolean;
}
export type OutcomeRules = Readonly<Record<Outcome, OutcomeRule>>;

/** Infrastructure and model failures are tried again; what the task or the policy caused is not. */
export const DEFAULT_OUTCOME_RULES: OutcomeRules = {
  scored: { retries: 0, counts: true },
  harness_error: { retries: 1, counts: false },
  model_error: { retries: 2, counts: false },
  verifier_error: { retries: 0, counts: false },
  task_error: { retries: 0, counts: false },
  sandbox_error: { retries: 2, counts: false },
  cancelled: { retries: 0, counts: false },
  stale: { retries: 0, counts: false },
};

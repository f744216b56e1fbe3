/** What goes over the wire of rollouts that are driven from outside. Names as on the wire. */
import { z } from "zod";
import { OUTCOMES, STOP_REASONS } from "../../core/outcome.ts";
import { LIMITS } from "../../core/limits.ts";

const count = z.int().nonnegative();
const leaseSeconds = z.number().min(LIMITS.leaseMinMs / 1000).max(LIMITS.leaseMaxMs / 1000);

export const beginSchema = z.strictObject({
  /** Absolute host path of the task's directory. */
  task: z.string().min(1),
  seed: z.string().max(256).default("0"),
  /** Rollouts of one task that are compared with each other; a group of its own where absent. */
  group: z.string().regex(/^[A-Za-z0-9._:-]{1,128}$/, "1 to 128 of A-Z a-z 0-9 . _ : -").exactOptional(),
  /** The rollout is cancelled this long after the last sign of its driver. */
  ttl_s: leaseSeconds.default(LIMITS.leaseDefaultMs / 1000),
});
export type BeginRequest = z.infer<typeof beginSchema>;

export const begunSchema = z.strictObject({
  rollout_id: z.string(),
  run: z.string(),
  sandbox_id: z.string(),
  instruction: z.string(),
  /** Where its commands run; null: the image's. */
  workdir: z.string().nullable(),
  user: z.string().nullable(),
  expires_at: z.number(),
});

export const execSchema = z.strictObject({
  /** argv, or a string for `/bin/sh -c`. */
  command: z.union([z.string().min(1), z.array(z.string()).min(1).max(4096)]),
  stdin: z.string().max(LIMITS.agentCommandBytes).exactOptional(),
  timeout_s: z.number().positive().max(LIMITS.agentTimeoutMs / 1000).exactOptional(),
});
export type ExecRequest = z.infer<typeof execSchema>;

/** Output as text, clipped in the middle as an agent of ours sees it; `*_bytes` says how much was written. */
export const execResultSchema = z.strictObject({
  code: z.int(),
  ended: z.enum(["exited", "timed_out", "killed", "lost"]),
  cause: z.string().nullable(),
  stdout: z.string(),
  stderr: z.string(),
  stdout_bytes: count,
  stderr_bytes: count,
  duration_ms: z.number(),
});

export const extendSchema = z.strictObject({ ttl_s: leaseSeconds.exactOptional() });
export const extendedSchema = z.strictObject({ expires_at: z.number() });

export const endSchema = z.strictObject({
  stop_reason: z.enum(STOP_REASONS).default("finished"),
  detail: z.string().max(1000).default("The driver ended it."),
  prompt_tokens: count.default(0),
  completion_tokens: count.default(0),
});
export type EndRequest = z.infer<typeof endSchema>;

export const endedSchema = z.strictObject({
  rollout_id: z.string(),
  outcome: z.enum(Object.keys(OUTCOMES) as [keyof typeof OUTCOMES]),
  reward: z.number().nullable(),
  reward_components: z.record(z.string(), z.number()),
  stop_reason: z.string().nullable(),
  error: z.strictObject({ code: z.string(), message: z.string() }).nullable(),
});
export type Ended = z.infer<typeof endedSchema>;

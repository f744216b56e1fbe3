/** Groups and rollouts of a run, in lists and side by side. */
import { z } from "zod";
import { count, nullableText, failureSchema, thrownAwaySchema } from "./common.ts";
import { MARKS } from "./marks.ts";

export const groupRowSchema = z.object({
  group: z.string(),
  index: count,
  task: z.string(),
  family: z.string(),
  directory: z.string(),
  digest: nullableText,
  error: failureSchema.nullable(),
  rollouts: count,
  recorded: count,
  scored: count,
  mean: z.number().nullable(),
  /** Of the rewards; null below two. */
  deviation: z.number().nullable(),
  passed: count,
  dollars: z.number().nullable(),
  /** In the order of attempts; null where there is none (yet). */
  rewards: z.array(z.number().nullable()),
  outcomes: z.array(z.string()),
  members: z.array(z.string()),
});
export type GroupRow = z.infer<typeof groupRowSchema>;

export const groupsPageSchema = z.object({ seq: count, groups: z.array(groupRowSchema), total: count, offset: count });
export type GroupsPage = z.infer<typeof groupsPageSchema>;

export const rolloutRowSchema = z.object({
  rollout: z.string(),
  group: z.string(),
  task: z.string(),
  family: z.string(),
  attempt: count,
  harness: z.string(),
  phase: z.string(),
  outcome: nullableText,
  reward: z.number().nullable(),
  stopReason: nullableText,
  seconds: z.number(),
  tries: count,
  /** As the tokens, of the last try. */
  turns: count,
  promptTokens: count,
  cachedTokens: count,
  completionTokens: count,
  /** Of all tries. Null where the run was given no prices, it has not ended, or its agent came to no end in a log that does not say what it asked for. */
  dollars: z.number().nullable(),
  thrownAway: thrownAwaySchema.extend({ dollars: z.number().nullable() }),
  admittedAt: z.number().nullable(),
  at: z.number(),
  error: failureSchema.nullable(),
  mark: z.enum(MARKS).nullable(),
  noted: z.boolean(),
});
export type RolloutRow = z.infer<typeof rolloutRowSchema>;

export const rolloutsPageSchema = z.object({ seq: count, rollouts: z.array(rolloutRowSchema), total: count, offset: count });
export type RolloutsPage = z.infer<typeof rolloutsPageSchema>;
export const ROLLOUT_SORTS = ["plan", "task", "family", "harness", "attempt", "outcome", "reward", "seconds", "turns", "tokens", "cost", "at", "tries"] as const;

export const rolloutFilterSchema = z.object({
  q: z.string().max(512).default(""),
  task: z.string().max(1024).exactOptional(),
  family: z.string().max(1024).exactOptional(),
  harness: z.string().max(256).exactOptional(),
  group: z.string().max(64).exactOptional(),
  /** An outcome, `failed` for every one but scored, `passed`, `running` or `waiting`. */
  outcome: z.string().max(64).exactOptional(),
  code: z.string().max(64).exactOptional(),
  stop: z.string().max(64).exactOptional(),
  marked: z.enum(["any", ...MARKS]).exactOptional(),
  sort: z.enum(ROLLOUT_SORTS).default("plan"),
  order: z.enum(["asc", "desc"]).default("asc"),
});
export type RolloutFilter = z.infer<typeof rolloutFilterSchema>;

/** One thing that an attempt did, short enough to be compared with its siblings. */
export const stepSchema = z.object({ kind: z.enum(["say", "act"]), text: z.string(), ok: z.boolean().nullable(), ms: z.number().nullable() });
export const attemptSchema = rolloutRowSchema.extend({
  /** (reward - mean) / deviation, as GRPO has it; null unless scored and the rewards differ. */
  advantage: z.number().nullable(),
  steps: z.array(stepSchema),
  stepsTotal: count,
  /** First step that is not the same in all attempts; null where all are. */
  divergesAt: count.nullable(),
});
export type AttemptView = z.infer<typeof attemptSchema>;

export const groupReportSchema = z.object({ run: z.string(), seq: count, group: groupRowSchema, attempts: z.array(attemptSchema), previous: nullableText, next: nullableText });
export type GroupReport = z.infer<typeof groupReportSchema>;

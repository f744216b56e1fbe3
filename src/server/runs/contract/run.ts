/** Runs: a row of their list, one run on one page, its statistics. */
import { z } from "zod";
import { pricesSchema } from "../../../rollout/cost.ts";
import { count, nullableText, counts, failureSchema, intervalSchema, runStatusSchema, thrownAwaySchema } from "./common.ts";

export const runRowSchema = z.object({
  run: z.string(),
  status: runStatusSchema,
  createdAt: nullableText,
  lastAt: nullableText,
  tasks: count,
  rollouts: count,
  recorded: count,
  scored: count,
  running: count,
  /** Mean reward of what is scored. */
  mean: z.number().nullable(),
  /** Share of scored rollouts with a reward of 1 or more, with its Wilson interval. */
  passed: intervalSchema.nullable(),
  outcomes: counts,
  /** Of recorded rollouts; null where the run was given no prices. */
  dollars: z.number().nullable(),
  harnesses: z.array(z.string()),
  model: nullableText,
  inputs: z.array(z.string()),
  error: nullableText,
});
export type RunRow = z.infer<typeof runRowSchema>;

export const runsPageSchema = z.object({ home: z.string(), runs: z.array(runRowSchema), total: count, offset: count });
export type RunsPage = z.infer<typeof runsPageSchema>;

export const seriesPointSchema = z.object({ at: z.number(), recorded: count, scored: count, mean: z.number().nullable(), running: count, perMinute: z.number() });

export const failureGroupSchema = z.object({
  boundary: z.string(),
  outcome: z.string(),
  code: z.string(),
  count,
  /** Rollouts that ended so, as against tries that were tried again. */
  final: count,
  example: z.object({ rollout: z.string(), message: z.string(), fix: nullableText }),
});
export type FailureGroup = z.infer<typeof failureGroupSchema>;

export const activeRolloutSchema = z.object({ rollout: z.string(), task: z.string(), harness: z.string(), attempt: count, try: count, phase: z.string(), admittedAt: z.number().nullable(), phaseAt: z.number(), straggler: z.boolean() });
export type ActiveRollout = z.infer<typeof activeRolloutSchema>;

/** In dollars, by what was paid for. */
const costSchema = z.object({ total: z.number(), input: z.number(), cached: z.number(), output: z.number(), machine: z.number(), /** Of the total: in tries that do not stand. */ thrownAway: z.number(), /** Rollouts not all of whose tokens are known: an agent came to no end in a log that does not say what it asked for. */ unknown: count });

export const runReportSchema = z.object({
  run: z.string(),
  directory: z.string(),
  /** Last event that went into this. */
  seq: count,
  status: runStatusSchema,
  interruption: nullableText,
  error: nullableText,
  createdAt: nullableText,
  lastAt: nullableText,
  planCompleted: z.boolean(),
  /** Rollouts that will be, where that is known before they are planned. */
  expected: count.nullable(),
  counts: z.object({ rollouts: count, planned: count, running: count, recorded: count, scored: count, groups: count, refused: count }),
  mean: z.number().nullable(),
  passed: intervalSchema.nullable(),
  outcomes: counts,
  boundaries: counts,
  /** Groups that are over, by what a group-relative gradient makes of them: `useful`, or none because `all_passed`, `none_passed`, `alike` (rewards between) or `too_few` were scored. */
  gradient: z.object({ useful: count, all_passed: count, none_passed: count, alike: count, too_few: count }),
  stops: counts,
  /** Sums over recorded rollouts: of tokens, machines and money over all their tries, of the rest over the last ones. */
  cost: z.object({ promptTokens: count, cachedTokens: count, completionTokens: count, turns: count, machineMs: z.number(), cpuMs: z.number().nullable(), modelMs: z.number(), toolMs: z.number(), waitMs: z.number(), frozenMs: z.number(), thrownAway: thrownAwaySchema, /** Null where the run was given no prices. */ dollars: costSchema.nullable() }),
  phases: z.array(z.object({ phase: z.string(), label: z.string(), count, totalMs: z.number(), medianMs: z.number(), maximumMs: z.number(), dollars: z.number().nullable() })),
  series: z.array(seriesPointSchema),
  active: z.array(activeRolloutSchema),
  activeTotal: count,
  /** Half of the recorded rollouts took longer. */
  medianMs: z.number().nullable(),
  failures: z.array(failureGroupSchema),
  refused: z.array(z.object({ source: z.string(), error: failureSchema })),
  /** Milliseconds since the epoch; null when nothing tells. */
  estimatedEndAt: z.number().nullable(),
  config: z.object({ version: z.string(), seed: z.string(), attempts: count, concurrency: count, harnesses: z.array(z.string()), model: nullableText, upstream: nullableText, inputs: z.array(z.string()), network: nullableText, tokenizer: z.boolean(), prices: pricesSchema.nullable() }).nullable(),
});
export type RunReport = z.infer<typeof runReportSchema>;
const meanSchema = z.object({ mean: z.number().nullable(), standardError: z.number().nullable(), count });

export const groupStatisticsSchema = z.object({
  name: z.string(),
  rollouts: count,
  scored: count,
  reward: meanSchema,
  passAtK: z.array(intervalSchema.extend({ k: count, tasks: count, method: z.string() })),
  outcomes: z.array(z.object({ outcome: z.string(), count, share: intervalSchema })),
  dollars: z.number().nullable(),
});
export type GroupStatisticsView = z.infer<typeof groupStatisticsSchema>;

/** As `mw show RUN --json` has it under `statistics`; of tasks, a page. */
export const statisticsSchema = z.object({
  seq: count,
  overall: groupStatisticsSchema.omit({ name: true }),
  families: z.array(groupStatisticsSchema),
  harnesses: z.array(groupStatisticsSchema),
});
export type StatisticsView = z.infer<typeof statisticsSchema>;

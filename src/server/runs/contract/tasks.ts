/** Tasks over the latest runs. */
import { z } from "zod";
import { certificateSchema } from "../../../task/check/certificate.ts";
import { count, nullableText, intervalSchema } from "./common.ts";

export const taskRowSchema = z.object({
  name: z.string(),
  family: z.string(),
  directory: z.string(),
  digests: z.array(z.string()),
  rollouts: count,
  scored: count,
  passed: count,
  mean: z.number().nullable(),
  pass: intervalSchema.nullable(),
  medianSeconds: z.number().nullable(),
  /** Newest last; `group` is the run's latest group of this task. */
  runs: z.array(z.object({ run: z.string(), group: z.string(), groups: count, createdAt: nullableText, rollouts: count, scored: count, passed: count, mean: z.number().nullable(), harnesses: z.array(z.string()), model: nullableText })),
  /**
   * How hard it was for each version of a run's policy, oldest first. Versions are those of one run: another run's version of the same name is another policy. A rollout counts for
   * the oldest version that sampled it, as staleness does; null: nobody said a version.
   */
  versions: z.array(z.object({ run: z.string(), version: nullableText, scored: count, passed: count, mean: z.number().nullable(), pass: intervalSchema })),
});
export type TaskRow = z.infer<typeof taskRowSchema>;

export const tasksPageSchema = z.object({ tasks: z.array(taskRowSchema), total: count, offset: count, runs: count, pending: count });
export type TasksPage = z.infer<typeof tasksPageSchema>;

export const taskReportSchema = z.object({
  task: taskRowSchema,
  /** The directory as it is now; null when it is gone. */
  present: z.boolean(),
  /** Digest of it is the one of the newest run. */
  instruction: nullableText,
  config: nullableText,
  files: z.array(z.object({ path: z.string(), bytes: count, text: nullableText })),
  /** What `mw task check --certify` wrote there; null where nothing is that can be read. */
  certificate: certificateSchema.nullable(),
});
export type TaskReport = z.infer<typeof taskReportSchema>;

/** Marks and notes that people leave. */
import { z } from "zod";

export const markSchema = z.object({
  /** Id of a rollout, of a group, or of the run itself. */
  target: z.string(),
  /** Null: no mark, or taken back. */
  mark: z.enum(["star", "good", "bad", "question"]).nullable(),
  note: z.string().max(16_384),
  at: z.string(),
});
export type MarkView = z.infer<typeof markSchema>;
export const MARKS = ["star", "good", "bad", "question"] as const;
export const markRequestSchema = z.strictObject({ mark: z.enum(MARKS).nullable(), note: z.string().max(16_384).default("") });
export type MarkRequest = z.input<typeof markRequestSchema>;

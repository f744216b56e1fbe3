/**
 * What the read API answers, as schemas; the dashboard takes its types from this directory and has none of its own. Names are those of `mw show --json`. Times of day are ISO 8601 or, where
 * there are many of them, milliseconds since the epoch (`...At` as a number); durations are milliseconds (`...Ms`).
 */
import { z } from "zod";

export const count = z.int().nonnegative();
export const nullableText = z.string().nullable();
export const counts = z.record(z.string(), count);

export const failureSchema = z.object({ code: z.string(), message: z.string(), fix: nullableText });
export type FailureView = z.infer<typeof failureSchema>;

/** `killed`: its controller is gone and said nothing; `damaged`: the log cannot be read; `reading`: it is being read for the first time, ask again. */
export const RUN_STATUSES = ["running", "finished", "interrupted", "killed", "damaged", "reading"] as const;
export const runStatusSchema = z.enum(RUN_STATUSES);
export type RunStatus = z.infer<typeof runStatusSchema>;

/** What tries took that do not stand, besides what the next one went on with. `uncounted`: of those, tries of which nobody knows what their agents asked for. */
export const thrownAwaySchema = z.object({ tries: count, promptTokens: count, cachedTokens: count, completionTokens: count, machineMs: z.number(), uncounted: count });

export const intervalSchema = z.object({ estimate: z.number(), low: z.number(), high: z.number() });
export type IntervalView = z.infer<typeof intervalSchema>;

export const pageSchema = z.object({ offset: z.coerce.number().int().min(0).max(1_000_000_000).default(0), limit: z.coerce.number().int().min(1).max(1000).default(100) });

/** Errors, by RFC 9457. */
export const problemSchema = z.object({ type: z.string(), title: z.string(), status: count, detail: z.string(), code: z.string(), fix: nullableText });
export type Problem = z.infer<typeof problemSchema>;

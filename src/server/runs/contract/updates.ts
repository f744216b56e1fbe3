/** What streams tell of a run and of a rollout, and what the server offers. */
import { z } from "zod";
import { count, nullableText, runStatusSchema } from "./common.ts";
import { rolloutRowSchema } from "./lists.ts";

/** `event: run` of a run's stream: what has changed since the last one; its id is `seq`. */
export const runUpdateSchema = z.object({
  seq: count,
  status: runStatusSchema,
  rollouts: count,
  recorded: count,
  running: count,
  scored: count,
  mean: z.number().nullable(),
  changed: z.array(rolloutRowSchema),
  /** More changed than is told here: fetch again. */
  more: z.boolean(),
});
export type RunUpdate = z.infer<typeof runUpdateSchema>;

/** `event: rollout` of a rollout's stream. */
export const rolloutUpdateSchema = z.object({ seq: count, version: z.string(), phase: z.string(), outcome: nullableText });
export type RolloutUpdate = z.infer<typeof rolloutUpdateSchema>;

/** `event: calls` of a rollout's stream: what has come of the answers of calls under way. `ended` goes before `calls`; of a `fresh` one what was told before is void. */
export const callsUpdateSchema = z.object({
  ended: z.array(count),
  calls: z.array(z.object({ call: count, at: z.number(), fresh: z.boolean(), pieces: z.array(z.object({ block: count, type: z.enum(["text", "reasoning", "refusal", "tool_call"]), name: nullableText, text: z.string() })) })),
});
export type CallsUpdate = z.infer<typeof callsUpdateSchema>;

/** A machine of this server that works for a run: for whom, since when, what it uses. Null: nobody counts, or it is gone by now. */
export const runMachineSchema = z.object({ sandbox: z.string(), run: z.string(), rollout: nullableText, task: nullableText, createdAt: z.number(), state: z.string(), cpuMs: z.number().nullable(), memoryBytes: z.number().nullable(), pids: z.number().nullable() });
export type RunMachine = z.infer<typeof runMachineSchema>;
export const runMachinesSchema = z.object({ machines: z.array(runMachineSchema), total: count });
export type RunMachines = z.infer<typeof runMachinesSchema>;

/** What this server offers beside the read API, so that the page shows only what is there. */
export const siteSchema = z.object({ version: z.string(), home: z.string(), sandboxes: z.boolean(), delivery: z.boolean(), writable: z.boolean() });
export type Site = z.infer<typeof siteSchema>;
